// The entry: a header of 6 words (magic, version, offsets, bad records, described ones, xxh3-64 of
// the rest), the offsets, then of each described bad record offset, line, length and text padded to
// 8 bytes. Little-endian 64-bit words throughout.
#include "common/data/record_index.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <xxhash.h>

namespace muster::data {
namespace {

constexpr std::uint64_t kMagic = 0x58444e4952545355;  // "USTRINDX"
constexpr std::uint64_t kVersion = 1;
using Header = std::array<std::uint64_t, 6>;

std::uint64_t Hash(std::span<const std::byte> offsets, std::span<const std::byte> bad) {
  return XXH3_64bits_withSeed(bad.data(), bad.size(), XXH3_64bits(offsets.data(), offsets.size()));
}

// Scratch rows to parse into.
class Scratch {
 public:
  explicit Scratch(const std::vector<ColumnInfo>& columns) {
    std::size_t bytes = 0;
    for (const ColumnInfo& column : columns) bytes += RowBytes(column) + 16;
    memory_.resize(bytes);
    std::byte* next = memory_.data();
    for (const ColumnInfo& column : columns) {
      rows_.push_back(next);
      next += (RowBytes(column) + 15) / 16 * 16;
    }
  }
  std::span<std::byte* const> rows() const { return rows_; }

 private:
  std::vector<std::byte> memory_;
  std::vector<std::byte*> rows_;
};

void Append(std::vector<std::byte>& out, std::uint64_t word) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&word);
  out.insert(out.end(), bytes, bytes + sizeof(word));
}

}  // namespace

RecordIndex RecordIndex::Build(const RecordFormat& format, const RecordParser& parser,
                               std::string_view content, std::uint64_t bad_limit) {
  RecordIndex index;
  const Scratch scratch(format.columns());
  std::uint64_t counted_to = 0;  // lines are counted only when a bad one must be named
  std::uint64_t line = 1;
  for (std::uint64_t offset = parser.first(); offset < content.size();) {
    Parsed parsed = parser.Parse(offset, scratch.rows());
    if (parsed.kind == Parsed::Kind::kRecord) index.built_.push_back(offset);
    if (parsed.kind == Parsed::Kind::kBad) {
      ++index.bad_count_;
      const bool last = index.bad_count_ > bad_limit;
      if (last || index.bad_.size() < kDescribed) {
        BadRecord bad{.offset = offset, .problem = std::move(parsed.problem)};
        if (format.lines()) {
          const std::string_view between = content.substr(counted_to, offset - counted_to);
          line += static_cast<std::uint64_t>(std::count(between.begin(), between.end(), '\n'));
          counted_to = offset;
          bad.line = line;
        }
        index.bad_.push_back(std::move(bad));
      }
      if (last) break;
    }
    MUSTER_INVARIANT(parsed.next > offset);
    offset = parsed.next;
  }
  index.offsets_ = index.built_;
  return index;
}

std::optional<RecordIndex> RecordIndex::Load(Mapping entry) {
  RecordIndex index;
  index.entry_ = std::move(entry);
  const std::span<const std::byte> bytes = index.entry_.bytes();
  Header header = {};
  if (bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  const auto [magic, version, offsets, bad, described, hash] = header;
  const std::span<const std::byte> rest = bytes.subspan(sizeof(header));
  if (magic != kMagic || version != kVersion || offsets > rest.size() / 8) return std::nullopt;
  const auto words = rest.first(offsets * 8);
  const auto texts = rest.subspan(offsets * 8);
  if (Hash(words, texts) != hash) return std::nullopt;

  index.offsets_ = {reinterpret_cast<const std::uint64_t*>(words.data()), offsets};
  index.bad_count_ = bad;
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < described; ++i) {
    std::uint64_t fields[3];
    if (texts.size() - at < sizeof(fields)) return std::nullopt;
    std::memcpy(fields, texts.data() + at, sizeof(fields));
    at += sizeof(fields);
    if (fields[2] > texts.size() - at) return std::nullopt;
    const auto* const text = reinterpret_cast<const char*>(texts.data() + at);
    index.bad_.push_back({fields[0], fields[1], std::string(text, fields[2])});
    at = std::min<std::size_t>(texts.size(), at + (fields[2] + 7) / 8 * 8);
  }
  return index;
}

std::uint64_t RecordIndex::hash() const {
  return XXH3_64bits(offsets_.data(), offsets_.size_bytes());
}

Status RecordIndex::Store(const Cache& cache, const SourceFile& file, std::string_view kind) const {
  std::vector<std::byte> texts;
  for (const BadRecord& bad : bad_) {
    Append(texts, bad.offset);
    Append(texts, bad.line);
    Append(texts, bad.problem.size());
    const auto text = std::as_bytes(std::span(bad.problem));
    texts.insert(texts.end(), text.begin(), text.end());
    texts.resize((texts.size() + 7) / 8 * 8);
  }
  const auto words = std::as_bytes(offsets_);
  const Header header = {kMagic,     kVersion,    offsets_.size(),
                         bad_count_, bad_.size(), Hash(words, texts)};
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(header)), words, texts};
  return cache.Store(file, kind, pieces);
}

}  // namespace muster::data
