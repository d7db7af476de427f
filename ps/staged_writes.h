// The write sets of one synchronous step on one shard, kept until the step is over, and what they
// are together: the same whatever the order in which they came.
//
// Threading: not thread-safe; the shard's lock owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "ps/flush_window.h"
#include "ps/program_wire.h"

namespace muster::ps {

// What it takes to keep them.
std::uint64_t BytesOf(std::span<const ShardWrite> writes);

class StagedWrites {
 public:
  // Copies them. Of each flush once.
  //   kResourceExhausted: no memory; nothing was taken.
  Status Add(const FlushId& id, std::span<const ShardWrite> writes);
  // In the order of closures, and of each one's flushes (OrderOfFlush): operations as they are,
  // then one gradient of the whole shard and one of rows, each the sum of those that there are,
  // with the learning rate of the last. Spans live until Clear().
  //   kResourceExhausted: no memory for the sum; it may be asked for again.
  Result<std::vector<ShardWrite>> Merge(DType dtype, std::size_t row_bytes);
  void Clear();

  bool empty() const { return sets_.empty(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Write {
    ShardWrite write;
    std::vector<std::int64_t> ids;
    std::vector<std::byte> values;
  };
  // The gradients of rows, each row once.
  struct Rows {
    std::vector<std::int64_t> ids;
    std::vector<std::byte> values;
    absl::flat_hash_map<std::int64_t, std::size_t> places;
  };

  void AddRows(const Write& from, DType dtype, std::size_t row_bytes);

  // By closure and OrderOfFlush().
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Write>> sets_;
  Rows rows_;
  std::uint64_t bytes_ = 0;
};

}  // namespace muster::ps
