#include "common/partition/placement.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/words.h"
#include "common/partition/div_layout.h"

namespace muster::partition {
namespace {

constexpr std::int64_t kStringBytes = 16;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

std::int64_t ItemBytes(DType dtype) {
  return dtype == DType::kString ? kStringBytes : static_cast<std::int64_t>(SizeOf(dtype));
}

Status RequirePositive(std::string_view argument, std::int64_t value) {
  if (value >= 1) return Ok();
  return InvalidArgument("partitioner: {} is {}; it must be at least 1", argument, value);
}

struct Extent {
  std::int64_t rows = 1;
  double row_bytes = 0;
  double bytes() const { return static_cast<double>(rows) * row_bytes; }
};

// Bytes as doubles: a shape may describe more than 2^63 bytes, and 53 bits are plenty for a count.
Result<Extent> Measure(TensorSize size) {
  MUSTER_TRY_ASSIGN(const std::int64_t elements, CountElements(size.shape, "variable"));
  Extent extent;
  if (!size.shape.empty()) extent.rows = size.shape[0];
  const std::int64_t row_elements = elements / extent.rows;
  extent.row_bytes = static_cast<double>(row_elements) *
                     static_cast<double>(std::max<std::int64_t>(ItemBytes(size.dtype), 1));
  return extent;
}

std::int64_t CeilToCount(double value, std::int64_t most) {
  if (value >= static_cast<double>(most)) return most;
  const auto floor = static_cast<std::int64_t>(value);
  return std::max<std::int64_t>(1, floor + (static_cast<double>(floor) < value ? 1 : 0));
}

std::int64_t OrDefault(std::uint64_t value, std::int64_t otherwise) {
  if (value == 0) return otherwise;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(value, kMaxElements));
}

Status CheckVariables(const std::vector<v1::VariableLayout>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::string& name = sorted[i].name();
    if (name.empty()) return InvalidArgument("a variable has no name");
    if (i > 0 && sorted[i - 1].name() == name) {
      return InvalidArgument("variable {} is declared twice", name);
    }
    if (sorted[i].embedding() && sorted[i].shape_size() != 2) {
      return InvalidArgument(
          "embedding {} has {}; it must have 2, rows and dim", name,
          Counted(static_cast<std::uint64_t>(sorted[i].shape_size()), "dimension"));
    }
  }
  return Ok();
}

// A shard that is to be placed. Sums of bytes may overflow; the layout is then one of many.
struct Sized {
  v1::ShardPlacement* shard = nullptr;
  std::uint64_t bytes = 0;
};

// Gives the variable its shards, which it adds to `shards`.
Status Split(v1::VariableLayout& variable, const v1::PartitionerSpec& partitioner,
             std::uint32_t ps_count, std::vector<Sized>& shards) {
  if (variable.dtype() == v1::DTYPE_UNSPECIFIED) variable.set_dtype(v1::DTYPE_FLOAT32);
  const std::span<const std::int64_t> shape(variable.shape().data(),
                                            static_cast<std::size_t>(variable.shape_size()));
  const std::string what = "variable " + variable.name();
  MUSTER_TRY_ASSIGN(const std::int64_t elements, CountElements(shape, what));
  const TensorSize size{shape, static_cast<DType>(variable.dtype())};
  const Result<std::int64_t> count = CountShards(partitioner, size, ps_count);
  if (!count.ok()) return Annotate(count.status(), what);
  const std::int64_t rows = shape.empty() ? 1 : shape[0];
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(elements / rows) *
                                  static_cast<std::uint64_t>(ItemBytes(size.dtype));
  const DivLayout layout(rows, *count);
  variable.clear_shards();
  for (std::int64_t i = 0; i < layout.shards(); ++i) {
    v1::ShardPlacement* shard = variable.add_shards();
    shard->set_row_offset(layout.Offset(i));
    shard->set_rows(layout.Rows(i));
    shards.push_back({shard, row_bytes * static_cast<std::uint64_t>(layout.Rows(i))});
  }
  return Ok();
}

}  // namespace

Result<std::int64_t> CountElements(std::span<const std::int64_t> shape, std::string_view what) {
  std::int64_t elements = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] < 1) {
      return InvalidArgument("{}: dimension {} is {}; it must be at least 1", what, axis,
                             shape[axis]);
    }
    if (shape[axis] > kMaxElements / elements) {
      return InvalidArgument("{}: more than 2^62 elements", what);
    }
    elements *= shape[axis];
  }
  return elements;
}

Result<std::int64_t> FixedShards(TensorSize size, std::int64_t num_shards) {
  MUSTER_TRY(RequirePositive("num_shards", num_shards));
  MUSTER_TRY_ASSIGN(const Extent extent, Measure(size));
  return std::min(num_shards, extent.rows);
}

Result<std::int64_t> MinSizeShards(TensorSize size, std::int64_t min_shard_bytes,
                                   std::int64_t max_shards) {
  MUSTER_TRY(RequirePositive("min_shard_bytes", min_shard_bytes));
  MUSTER_TRY(RequirePositive("max_shards", max_shards));
  MUSTER_TRY_ASSIGN(const Extent extent, Measure(size));
  const std::int64_t most = std::min(extent.rows, max_shards);
  return CeilToCount(extent.bytes() / static_cast<double>(min_shard_bytes), most);
}

Result<std::int64_t> MaxSizeShards(TensorSize size, std::int64_t max_shard_bytes,
                                   std::optional<std::int64_t> max_shards) {
  MUSTER_TRY(RequirePositive("max_shard_bytes", max_shard_bytes));
  if (max_shards) MUSTER_TRY(RequirePositive("max_shards", *max_shards));
  MUSTER_TRY_ASSIGN(const Extent extent, Measure(size));
  const double fitting = static_cast<double>(max_shard_bytes) / extent.row_bytes;
  // At most all: more than 2^63 - 1 is no number of rows.
  const std::int64_t rows_per_shard =
      fitting >= static_cast<double>(extent.rows)
          ? extent.rows
          : std::max<std::int64_t>(1, static_cast<std::int64_t>(fitting));
  const std::int64_t shards =
      extent.rows / rows_per_shard + (extent.rows % rows_per_shard != 0 ? 1 : 0);
  return std::min(shards, max_shards.value_or(shards));
}

Result<std::int64_t> CountShards(const v1::PartitionerSpec& spec, TensorSize size,
                                 std::uint32_t ps_count) {
  if (size.shape.empty()) return 1;
  const std::int64_t max_shards = OrDefault(spec.max_shards(), ps_count);
  switch (spec.kind()) {
    case v1::PARTITIONER_KIND_NONE:
      return 1;
    case v1::PARTITIONER_KIND_UNSPECIFIED:
    case v1::PARTITIONER_KIND_MIN_SIZE:
      return MinSizeShards(size, OrDefault(spec.min_shard_bytes(), kDefaultMinShardBytes),
                           max_shards);
    case v1::PARTITIONER_KIND_MAX_SIZE:
      return MaxSizeShards(size, OrDefault(spec.max_shard_bytes(), 0), max_shards);
    case v1::PARTITIONER_KIND_FIXED:
      return FixedShards(size, spec.num_shards());
    default:
      return InvalidArgument("partitioner: kind {} is not known to this version",
                             static_cast<int>(spec.kind()));
  }
}

Result<std::vector<v1::VariableLayout>> PlaceVariables(std::vector<v1::VariableLayout> variables,
                                                       const v1::PartitionerSpec& partitioner,
                                                       std::uint32_t ps_count,
                                                       Placer::Policy policy) {
  if (ps_count == 0) {
    return FailedPrecondition("variables cannot be placed: there is no parameter server");
  }
  std::sort(variables.begin(), variables.end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
  MUSTER_TRY(CheckVariables(variables));
  std::uint32_t id = 0;
  std::vector<Sized> shards;
  for (v1::VariableLayout& variable : variables) {
    variable.set_id(id++);
    MUSTER_TRY(Split(variable, partitioner, ps_count, shards));
  }
  if (policy == Placer::Policy::kByBytes) {
    std::stable_sort(shards.begin(), shards.end(),
                     [](const Sized& a, const Sized& b) { return a.bytes > b.bytes; });
  }
  Placer placer(ps_count);
  for (const Sized& one : shards) {
    one.shard->set_ps_index(placer.Place(std::span(&one.bytes, 1), policy).front());
  }
  return variables;
}

}  // namespace muster::partition
