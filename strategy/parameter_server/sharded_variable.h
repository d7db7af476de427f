// A variable as the parts that it lies in on parameter servers.
//
// A variable that a partitioner has cut is a Variable like others: it is read, written and saved as
// one. This shows its parts, and reads some rows of it alone.
//
// Threading: as Variable. Lifetime: a handle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/variables/variable.h"

namespace muster {

class ShardedVariable {
 public:
  // Rows [offset, offset + rows) of the variable.
  struct Shard {
    std::string name;    // "w/part_0"; "w" of one that is not cut
    std::string device;  // "/job:ps/replica:0/task:0/device:CPU:0"
    std::int64_t offset = 0;
    std::int64_t rows = 0;
  };

  // INVALID_ARGUMENT: not on parameter servers.  FAILED_PRECONDITION: its driver has not made it.
  explicit ShardedVariable(Variable variable);

  const Variable& variable() const { return variable_; }
  const std::string& name() const { return variable_.name(); }
  const std::vector<Shard>& shards() const { return shards_; }
  int size() const { return static_cast<int>(shards_.size()); }

  // The whole value.
  torch::Tensor value() const { return variable_.value(); }
  // NOLINTNEXTLINE(google-explicit-constructor): it stands where a tensor may.
  operator torch::Tensor() const { return value(); }
  // A shard's rows. OUT_OF_RANGE.
  torch::Tensor value_of_shard(int shard) const;
  // One row, counted from the end if negative. OUT_OF_RANGE.
  torch::Tensor operator[](std::int64_t row) const;
  // Rows start, start + step, ... before stop: as Python's w[start:stop:step]. No other row is
  // fetched.
  //   INVALID_ARGUMENT: step 0.
  torch::Tensor slice(std::optional<std::int64_t> start = std::nullopt,
                      std::optional<std::int64_t> stop = std::nullopt, std::int64_t step = 1) const;
  // As tensor.index(): v.index({Slice(None, 2), 0}), v.index({"...", 0}), v.index({mask}). Where
  // the first index is of rows (an integer, a slice, a mask, a list of int64) and none of the
  // others is a tensor or "...", no other row is fetched, and gradients are not followed
  // (embedding_lookup() does that).
  //   OUT_OF_RANGE: a row that is not there.  INVALID_ARGUMENT: what libtorch refuses.
  torch::Tensor index(const std::vector<torch::indexing::TensorIndex>& indices) const;
  // The rows of a list. INVALID_ARGUMENT: not of one dimension, or no row.
  torch::Tensor sparse_read(const torch::Tensor& rows) const;

  // With full values; each shard gets its rows.
  const ShardedVariable& assign(const VariableValue& value) const;
  const ShardedVariable& assign_add(const VariableValue& value) const;
  const ShardedVariable& assign_sub(const VariableValue& value) const;

 private:
  torch::Tensor gather(const torch::Tensor& rows) const;

  Variable variable_;
  std::vector<std::int64_t> sizes_;
  std::vector<Shard> shards_;
};

}  // namespace muster
