#include "strategy/parameter_server/partitioner.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "common/partition/placement.h"
#include "common/torch/dtypes.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"

namespace muster {
namespace {

void RequirePositive(const char* name, std::int64_t number) {
  if (number >= 1) return;
  raise(InvalidArgument("Argument `{}` must be positive: it is {}", name, number));
}

// A partitioner by what common/partition counts.
template <class Count>
VariablePartitioner By(Count count) {
  return [count](const std::vector<std::int64_t>& shape, torch::ScalarType type) {
    std::vector<std::int64_t> parts(shape.size(), 1);
    if (shape.empty()) return parts;
    parts[0] = value_of(count(partition::TensorSize{.shape = shape, .dtype = DTypeOf(type)}));
    return parts;
  };
}

}  // namespace

VariablePartitioner fixed_shards_partitioner(std::int64_t num_shards) {
  RequirePositive("num_shards", num_shards);
  return By([=](partition::TensorSize size) { return partition::FixedShards(size, num_shards); });
}

VariablePartitioner min_size_partitioner(std::int64_t min_shard_bytes, std::int64_t max_shards) {
  RequirePositive("min_shard_bytes", min_shard_bytes);
  RequirePositive("max_shards", max_shards);
  return By([=](partition::TensorSize size) {
    return partition::MinSizeShards(size, min_shard_bytes, max_shards);
  });
}

VariablePartitioner max_size_partitioner(std::int64_t max_shard_bytes,
                                         std::optional<std::int64_t> max_shards) {
  RequirePositive("max_shard_bytes", max_shard_bytes);
  if (max_shards) RequirePositive("max_shards", *max_shards);
  return By([=](partition::TensorSize size) {
    return partition::MaxSizeShards(size, max_shard_bytes, max_shards);
  });
}

std::int64_t internal::count_shards(const VariablePartitioner& partitioner,
                                    const std::vector<std::int64_t>& shape,
                                    torch::ScalarType type) {
  if (partitioner == nullptr || shape.empty()) return 1;
  const std::vector<std::int64_t> parts = partitioner(shape, type);
  const bool whole =
      parts.size() == shape.size() && parts[0] >= 1 &&
      std::all_of(parts.begin() + 1, parts.end(), [](std::int64_t part) { return part == 1; });
  if (!whole) {
    raise(
        InvalidArgument("variable_partitioner answers [{}] for a value of shape {}: it must have a "
                        "number for each axis, at least 1 for the first and 1 for all others",
                        fmt::join(parts, ", "), ShapeText(shape)));
  }
  return std::min(parts[0], shape[0]);
}

}  // namespace muster
