// Where the good records of one file begin, and which are bad: found once, kept in the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/data/cache.h"
#include "common/data/record_format.h"

namespace muster::data {

struct BadRecord {
  std::uint64_t offset = 0;
  std::uint64_t line = 0;  // from 1; 0 for formats without lines
  std::string problem;
};

// Movable; the offsets stay where they are.
class RecordIndex {
 public:
  // Bad records that are described; all are counted.
  static constexpr std::size_t kDescribed = 1000;

  // Parses the whole of `content`. Stops after `bad_limit` + 1 bad records.
  static RecordIndex Build(const RecordFormat& format, const RecordParser& parser,
                           std::string_view content, std::uint64_t bad_limit);
  // From a cache entry; empty when the entry is damaged or of another version.
  static std::optional<RecordIndex> Load(Mapping entry);
  // Writes a complete index as the entry `kind` of `file`.
  Status Store(const Cache& cache, const SourceFile& file, std::string_view kind) const;

  std::span<const std::uint64_t> offsets() const { return offsets_; }
  // Hash of the offsets; the same for every process that finds the same records.
  std::uint64_t hash() const;
  std::uint64_t bad_count() const { return bad_count_; }
  // The first kDescribed ones; the last found is there too when Build() stopped at it.
  const std::vector<BadRecord>& bad() const { return bad_; }

 private:
  std::span<const std::uint64_t> offsets_;
  std::uint64_t bad_count_ = 0;
  std::vector<BadRecord> bad_;
  // What offsets_ points into, one of these.
  std::vector<std::uint64_t> built_;
  Mapping entry_;
};

}  // namespace muster::data
