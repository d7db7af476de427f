#include <algorithm>
#include <utility>

#include "common/base/host_name.h"
#include "common/data/record_format.h"
#include "common/data/record_index.h"

namespace muster::data {
namespace {

struct IndexedFile {
  SourceFile source;
  Mapping content;
  std::unique_ptr<RecordParser> parser;
  RecordIndex index;
};

std::vector<SourceFile> SourcesOf(std::span<const IndexedFile> files) {
  std::vector<SourceFile> sources;
  for (const IndexedFile& file : files) sources.push_back(file.source);
  return sources;
}

std::string NameAndHost(const SourceFile& file) {
  return fmt::format("{} on host {}", file.path, HostName());
}

std::string Describe(const SourceFile& file, const BadRecord& bad) {
  if (bad.line > 0) {
    return fmt::format("{}:{} on host {}: {}", file.path, bad.line, HostName(), bad.problem);
  }
  return fmt::format("{} on host {}, byte {}{}: {}", file.path, HostName(), bad.offset,
                     file.compression == Compression::kNone ? "" : " of its decoded content",
                     bad.problem);
}

Status OverBudget(const std::string& place, std::uint64_t skip_up_to) {
  if (skip_up_to == 0) {
    return DataLoss("{}; to skip such records, set data.bad_records.skip_up_to", place);
  }
  return DataLoss("{}; more than the {} bad records that data.bad_records.skip_up_to allows", place,
                  skip_up_to);
}

class IndexedReader final : public Reader {
 public:
  IndexedReader(std::unique_ptr<RecordFormat> format, std::vector<IndexedFile> files)
      : format_(std::move(format)), files_(std::move(files)), watch_(SourcesOf(files_)) {
    for (const IndexedFile& file : files_) {
      starts_.push_back(starts_.back() + file.index.offsets().size());
      bad_ += file.index.bad_count();
    }
  }

  std::uint64_t records() const override { return starts_.back(); }
  const std::vector<ColumnInfo>& columns() const override { return format_->columns(); }
  std::uint64_t bad_records() const override { return bad_; }

  std::vector<std::string> BadRecordPlaces(std::size_t limit) const override {
    std::vector<std::string> places;
    for (const IndexedFile& file : files_) {
      for (const BadRecord& bad : file.index.bad()) {
        if (places.size() == limit) return places;
        places.push_back(Describe(file.source, bad));
      }
    }
    return places;
  }

  std::vector<FileState> files() const override {
    std::vector<FileState> states;
    for (const IndexedFile& file : files_) {
      states.push_back({.path = file.source.path,
                        .size = file.source.size,
                        .mtime_ns = file.source.mtime_ns,
                        .records = file.index.offsets().size(),
                        .index_hash = file.index.hash()});
    }
    return states;
  }
  std::string Name(std::span<const std::uint64_t> records) const override {
    std::vector<std::string> paths;
    for (const IndexedFile& file : files_) paths.push_back(file.source.path);
    return NameRecords(records, starts_, paths);
  }

  Result<Element> Read(std::span<const std::uint64_t> records) const override {
    const std::vector<ColumnInfo>& infos = columns();
    MUSTER_TRY_ASSIGN(Element element, AllocateBatch(infos, records.size()));
    const TimePoint now = watch_.Now();
    std::vector<std::byte*> rows;
    for (Column& column : element.columns) rows.push_back(Writable(column));
    std::vector<std::size_t> widths;
    for (const ColumnInfo& info : infos) widths.push_back(RowBytes(info));

    for (const std::uint64_t record : records) {
      const auto it = std::upper_bound(starts_.begin(), starts_.end(), record);
      const auto number = static_cast<std::size_t>(it - starts_.begin()) - 1;
      const IndexedFile& file = files_[number];
      MUSTER_TRY(watch_.Look(number, now));
      const std::uint64_t offset = file.index.offsets()[record - starts_[number]];
      const Parsed parsed = file.parser->Parse(offset, rows);
      if (parsed.kind != Parsed::Kind::kRecord) {
        return DataLoss("{}, byte {}: was changed after the job opened it: {}",
                        NameAndHost(file.source), offset,
                        parsed.problem.empty() ? "a blank line" : parsed.problem);
      }
      for (std::size_t c = 0; c < rows.size(); ++c) rows[c] += widths[c];
    }
    return element;
  }

 private:
  const std::unique_ptr<RecordFormat> format_;
  const std::vector<IndexedFile> files_;
  const FileWatch watch_;
  // starts_[i]: number of the first record of files_[i]; one more at the end.
  std::vector<std::uint64_t> starts_ = {0};
  std::uint64_t bad_ = 0;
};

// Maps, decodes and indexes one file, or finds all that in the cache.
Status Prepare(const RecordFormat& format, const IndexedOptions& options, const Cache& cache,
               IndexedFile& file) {
  MUSTER_TRY_ASSIGN(file.content, cache.Content(file.source));
  const std::string_view text = file.content.text();
  MUSTER_TRY_ASSIGN(file.parser, format.Begin(file.source.path, NameAndHost(file.source), text));
  const std::string kind = fmt::format("index-{:016x}", options.fingerprint);
  MUSTER_TRY_ASSIGN(std::optional<Mapping> entry, cache.Find(file.source, kind));
  if (entry.has_value()) {
    if (auto index = RecordIndex::Load(*std::move(entry)); index.has_value()) {
      file.index = *std::move(index);
      return Ok();
    }
  }
  file.index = RecordIndex::Build(format, *file.parser, text, options.skip_up_to);
  if (file.index.bad_count() > options.skip_up_to) {
    return OverBudget(Describe(file.source, file.index.bad().back()), options.skip_up_to);
  }
  return file.index.Store(cache, file.source, kind);
}

}  // namespace

Result<std::unique_ptr<Reader>> OpenIndexed(std::unique_ptr<RecordFormat> format,
                                            const IndexedOptions& options, const Cache& cache) {
  MUSTER_TRY_ASSIGN(const std::vector<SourceFile> sources, FindFiles(options.files));
  std::vector<IndexedFile> files(sources.size());
  const auto prepare = [&](std::size_t i) {
    files[i].source = sources[i];
    return Prepare(*format, options, cache, files[i]);
  };
  MUSTER_TRY(cache.ForEachLocked(sources, prepare));

  std::uint64_t bad = 0;
  for (const IndexedFile& file : files) {
    const std::vector<BadRecord>& described = file.index.bad();
    if (bad + file.index.bad_count() > options.skip_up_to) {
      const std::size_t at = std::min(options.skip_up_to - bad, described.size() - 1);
      return OverBudget(Describe(file.source, described[at]), options.skip_up_to);
    }
    bad += file.index.bad_count();
  }
  return std::unique_ptr<Reader>(
      std::make_unique<IndexedReader>(std::move(format), std::move(files)));
}

}  // namespace muster::data
