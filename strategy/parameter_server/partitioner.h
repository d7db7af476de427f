// How many shards a variable on parameter servers gets, along its first axis.
//
//   ParameterServerStrategy strategy(min_size_partitioner(256 << 10, 4));
//
// Threading: any thread. Partitioners are called in the driver alone, where variables are made.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "strategy/base/torch.h"

namespace muster {

// Given a variable's shape and type; answers how many parts each axis is cut into. All but the
// first must be 1; more parts than rows are as many as there are rows. Not called for scalars.
using VariablePartitioner = std::function<std::vector<std::int64_t>(
    const std::vector<std::int64_t>& shape, torch::ScalarType type)>;

// Each refuses numbers below 1 by their names: INVALID_ARGUMENT.
VariablePartitioner fixed_shards_partitioner(std::int64_t num_shards);
// As many as leave min_shard_bytes for each, rounded up, at most max_shards.
VariablePartitioner min_size_partitioner(std::int64_t min_shard_bytes = 256 << 10,
                                         std::int64_t max_shards = 1);
// As few as keep each within max_shard_bytes (a row is never cut), at most max_shards.
VariablePartitioner max_size_partitioner(std::int64_t max_shard_bytes,
                                         std::optional<std::int64_t> max_shards = std::nullopt);

namespace internal {
// What a partitioner answers for a value, checked; 1 without one and for scalars.
//   INVALID_ARGUMENT: the answer is none.
std::int64_t count_shards(const VariablePartitioner& partitioner,
                          const std::vector<std::int64_t>& shape, torch::ScalarType type);
}  // namespace internal

}  // namespace muster
