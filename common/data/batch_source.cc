#include "common/data/batch_source.h"

#include <algorithm>
#include <utility>

#include "common/base/host_name.h"
#include "common/base/words.h"
#include "common/data/cache.h"
#include "common/data/epoch_order.h"
#include "common/data/formats.h"
#include "common/data/open_reader.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

class ReaderBatches final : public BatchSource {
 public:
  ReaderBatches(std::unique_ptr<Reader> reader, const Options& options, bool drop_remainder,
                bool shuffle)
      : reader_(std::move(reader)),
        batch_size_(options.batch_size),
        batches_((reader_->records() + (drop_remainder ? 0 : batch_size_ - 1)) / batch_size_),
        order_(reader_->records(), options.seed, shuffle) {}

  std::uint64_t examples() const override { return reader_->records(); }
  std::uint64_t batches_per_epoch() const override { return batches_; }
  const std::vector<ColumnInfo>& columns() const override { return reader_->columns(); }
  std::uint64_t bad_records() const override { return reader_->bad_records(); }
  std::vector<std::string> BadRecordPlaces(std::size_t limit) const override {
    return reader_->BadRecordPlaces(limit);
  }

  std::vector<FileState> files() const override { return reader_->files(); }
  std::string RecordsOf(std::uint64_t closure) override {
    return closure == 0 ? std::string() : reader_->Name(RecordNumbers(closure));
  }

  Result<Element> Batch(std::uint64_t closure) override {
    if (closure == 0) return OutOfRange("there is no batch of closure 0: closures count from 1");
    return reader_->Read(RecordNumbers(closure));
  }

 private:
  std::vector<std::uint64_t> RecordNumbers(std::uint64_t closure) {
    const std::uint64_t epoch = (closure - 1) / batches_;
    const std::uint64_t begin = (closure - 1) % batches_ * batch_size_;
    std::vector<std::uint64_t> records(std::min(batch_size_, examples() - begin));
    order_.Fill(epoch, begin, records);
    return records;
  }

  const std::unique_ptr<Reader> reader_;
  const std::uint64_t batch_size_;
  const std::uint64_t batches_;
  EpochOrder order_;
};

}  // namespace

std::string InSection(std::string_view section, std::string_view message) {
  constexpr std::string_view kData = "data";
  if (message.starts_with("data.") || message.starts_with("data: ")) {
    return fmt::format("{}{}", section, message.substr(kData.size()));
  }
  return fmt::format("{}: {}", section, message);
}

Result<std::unique_ptr<BatchSource>> BatchSource::Open(const v1::DataSpec& spec, Options options) {
  if (options.batch_size == 0) return InvalidArgument("batch_size: 0, must be at least 1");
  MUSTER_TRY_ASSIGN(const Cache cache,
                    Cache::Open({.directory = options.cache_directory,
                                 .limit_bytes = spec.cache_bytes() == 0 ? kDefaultCacheBytes
                                                                        : spec.cache_bytes()}));
  MUSTER_TRY(CompareOnDisk(options.expected));
  MUSTER_TRY_ASSIGN(std::unique_ptr<Reader> reader, OpenReader(spec, cache));
  if (!options.expected.empty()) MUSTER_TRY(CompareFiles(options.expected, reader->files()));
  const std::uint64_t examples = reader->records();
  if (examples == 0) {
    return InvalidArgument("data: the files have no {}records (host {})",
                           reader->bad_records() > 0 ? "good " : "", HostName());
  }
  if (spec.drop_remainder() && examples < options.batch_size) {
    return InvalidArgument("data: {} are less than one batch of {}, and drop_remainder is set",
                           Counted(examples, "example"), options.batch_size);
  }
  const bool shuffle = spec.has_shuffle() ? spec.shuffle() : options.shuffle;
  return std::unique_ptr<BatchSource>(
      std::make_unique<ReaderBatches>(std::move(reader), options, spec.drop_remainder(), shuffle));
}

}  // namespace muster::data
