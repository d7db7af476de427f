// The gradients of one step on one shard, added up in the order of closures, so that the sum has
// the same bits whatever the order in which they come. What comes early waits.
//
// Memory: the sum, and what waits; a dense shard keeps both for the next step. Threading: not
// thread-safe; the shard's lock owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/apply_pool.h"
#include "ps/region.h"

namespace muster::ps {

class StepSum {
 public:
  // Sums gradients of the whole shard, or (`rows`) of some of its rows. `next`: the first closure
  // of the step. `pool` outlives it.
  StepSum(std::size_t elements, std::size_t row_elements, bool rows, ClosureId next,
          ApplyPool& pool)
      : elements_(elements), row_elements_(row_elements), rows_(rows), next_(next), pool_(pool) {}

  // Takes a closure's gradient, once for each closure of the step. Ids are unique, and none without
  // `rows`. No values: the closure is counted, and adds nothing.
  //   kResourceExhausted: no memory. It is to come again, and counts once whatever was taken of it.
  Status Add(ClosureId closure, std::span<const std::int64_t> ids, std::span<const float> values);

  // The first closure that is not in the sum.
  ClosureId next() const { return next_; }
  // Row k of values() belongs to row ids()[k]. Values are empty where no closure has any.
  std::span<const float> values() const;
  std::span<const std::int64_t> ids() const { return ids_; }
  // Begins the next step with the closure next().
  void Clear();

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Early {
    std::vector<std::int64_t> ids;
    Region values;
    std::size_t floats = 0;
  };

  Result<Region> TakeRegion(std::size_t floats);
  Status Keep(ClosureId closure, std::span<const std::int64_t> ids, std::span<const float> values);
  Status AddNext(std::span<const std::int64_t> ids, std::span<const float> values);
  Status AddRows(std::span<const std::int64_t> ids, std::span<const float> values);
  // Fills `found_`, and makes room for the rows that are new.
  Status FindRows(std::span<const std::int64_t> ids);

  const std::size_t elements_;
  const std::size_t row_elements_;
  const bool rows_;
  ClosureId next_;
  ApplyPool& pool_;
  bool empty_ = true;
  std::map<ClosureId, Early> early_;
  Region sum_;
  std::vector<Region> spare_;
  // With rows: where each id stands.
  std::vector<std::int64_t> ids_;
  std::vector<float> row_sums_;
  absl::flat_hash_map<std::int64_t, std::size_t> places_;
  // Where the rows of the gradient that is being added stand. Kept for its memory.
  std::vector<std::size_t> found_;
  std::uint64_t bytes_ = 0;
};

}  // namespace muster::ps
