// How many shards a variable gets, and on which parameter server each of them lives. The rules and
// names are tf.distribute's.
//
// Threading: free functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/partition/placer.h"
#include "muster/v1/common.pb.h"

namespace muster::partition {

// What a partitioner looks at. An empty shape is a scalar: always one shard.
struct TensorSize {
  std::span<const std::int64_t> shape;
  // A string counts as 16 bytes.
  DType dtype = DType::kFloat32;
};

inline constexpr std::int64_t kDefaultMinShardBytes = 256 << 10;

// Shards along axis 0, never more than it has rows. Each refuses an argument below 1 by its name
// (kInvalidArgument), and a shape with a dimension below 1.
Result<std::int64_t> FixedShards(TensorSize size, std::int64_t num_shards);
// ceil(bytes / min_shard_bytes), at most max_shards. Rounding up makes shards below the minimum
// possible (120 bytes with a minimum of 50: 3 shards); the count is tf.distribute's.
Result<std::int64_t> MinSizeShards(TensorSize size, std::int64_t min_shard_bytes,
                                   std::int64_t max_shards);
// As few as keep each shard within max_shard_bytes (but a row is never split), at most max_shards.
Result<std::int64_t> MaxSizeShards(TensorSize size, std::int64_t max_shard_bytes,
                                   std::optional<std::int64_t> max_shards);
// By the spec of a model job; unset fields mean what job_spec.proto says, with `ps_count` servers.
Result<std::int64_t> CountShards(const v1::PartitionerSpec& spec, TensorSize size,
                                 std::uint32_t ps_count);

// Decides the whole layout of a job. Takes variables with name, shape, initializer and embedding
// (and dtype, else float32), returns them sorted by name with ids from 0 and with shards. These
// go round the servers, each variable starting where the one before it ended; or by bytes: the
// largest first, each to the server that has the fewest.
//   kInvalidArgument: a name is empty or repeated, a shape is impossible, an embedding is not
//   [rows, dim], the partitioner is malformed.
//   kFailedPrecondition: no parameter server.
Result<std::vector<v1::VariableLayout>> PlaceVariables(
    std::vector<v1::VariableLayout> variables, const v1::PartitionerSpec& partitioner,
    std::uint32_t ps_count, Placer::Policy policy = Placer::Policy::kRoundRobin);

// Elements of a shape (1 for a scalar). kInvalidArgument: a dimension below 1, or more than 2^62
// elements. `what` names the tensor in the message.
Result<std::int64_t> CountElements(std::span<const std::int64_t> shape, std::string_view what);

}  // namespace muster::partition
