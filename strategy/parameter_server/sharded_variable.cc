#include "strategy/parameter_server/sharded_variable.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/parameter_server/internal/remote_component.h"

namespace muster {
namespace {

// libtorch 2 has symbolic integers in slices.
template <class Number>
std::int64_t AsNumber(const Number& number) {
  if constexpr (std::is_integral_v<Number>) {
    return number;
  } else {
    return number.expect_int();
  }
}

using Indices = std::vector<torch::indexing::TensorIndex>;

// Whether the first index is of rows and the others are of what is in each: then the rows are
// fetched, and the others applied to them.
bool BeginsWithRows(const Indices& indices, const std::vector<std::int64_t>& sizes) {
  if (indices.empty() || sizes.size() < (indices.size() == 1 ? 1 : 2)) return false;
  const bool apart = std::all_of(indices.begin() + 1, indices.end(), [](const auto& one) {
    return one.is_integer() || one.is_slice() || one.is_none();
  });
  const torch::indexing::TensorIndex& first = indices[0];
  if (!apart) return false;
  if (!first.is_tensor()) return first.is_integer() || first.is_slice();
  const torch::Tensor& rows = first.tensor();
  if (rows.dim() != 1) return false;
  if (rows.scalar_type() == torch::kBool) return rows.size(0) == sizes[0];
  // What libtorch takes, and where; others it is to refuse.
  return rows.scalar_type() == torch::kLong && rows.is_cpu();
}

// Rows that may be counted from the end, as they are counted from the beginning. OUT_OF_RANGE.
torch::Tensor FromTheBeginning(const torch::Tensor& rows, std::int64_t of,
                               const std::string& name) {
  if (rows.numel() == 0) return rows;
  const auto least = rows.min().item<std::int64_t>();
  const auto most = rows.max().item<std::int64_t>();
  if (least < -of || most >= of) {
    raise(OutOfRange("row {} of variable {}, which has {}", least < -of ? least : most, name, of));
  }
  return least < 0 ? torch::where(rows < 0, rows + of, rows) : rows;
}

}  // namespace

ShardedVariable::ShardedVariable(Variable variable)
    : variable_(std::move(variable)),
      sizes_(variable_.valid() ? variable_.sizes() : std::vector<std::int64_t>()) {
  const ps::VariableHandle placed = internal::remote_component(variable_).placed();
  const bool whole = placed->shards.size() == 1;
  for (const ps::ShardRef& shard : placed->shards) {
    shards_.push_back(
        {.name = whole ? name() : fmt::format("{}/part_{}", name(), shards_.size()),
         .device = fmt::format("/job:ps/replica:0/task:{}/device:CPU:0", shard.server),
         .offset = shard.row_offset,
         .rows = shard.rows});
  }
}

torch::Tensor ShardedVariable::value_of_shard(int shard) const {
  if (shard < 0 || shard >= size()) {
    raise(OutOfRange("shard {} of variable {}, which has {}", shard, name(), size()));
  }
  if (size() == 1) return value();
  const Shard& of = shards_[static_cast<std::size_t>(shard)];
  return gather(torch::arange(of.offset, of.offset + of.rows, torch::kLong));
}

torch::Tensor ShardedVariable::operator[](std::int64_t row) const {
  const std::int64_t rows = sizes_.empty() ? 0 : sizes_[0];
  if (row < -rows || row >= rows) {
    raise(OutOfRange("row {} of variable {}, which has {}", row, name(), rows));
  }
  return gather(torch::full({1}, row < 0 ? row + rows : row, torch::kLong))[0];
}

torch::Tensor ShardedVariable::slice(std::optional<std::int64_t> start,
                                     std::optional<std::int64_t> stop, std::int64_t step) const {
  if (step == 0) raise(InvalidArgument("slice of variable {}: the step must not be 0", name()));
  if (sizes_.empty()) raise(InvalidArgument("variable {} is a scalar: it has no rows", name()));
  const std::int64_t rows = sizes_[0];
  // The borders that a step may begin and end at: 0 .. rows, backwards rows - 1 .. -1.
  const std::int64_t low = step > 0 ? 0 : -1;
  const std::int64_t high = step > 0 ? rows : rows - 1;
  const auto border = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    if (!at.has_value()) return otherwise;
    return std::clamp(*at < 0 ? *at + rows : *at, low, high);
  };
  const std::int64_t from = border(start, step > 0 ? low : high);
  const std::int64_t to = border(stop, step > 0 ? high : low);
  const bool none = step > 0 ? from >= to : from <= to;
  // A longer step has as many rows, one, and libtorch adds it to the border, past what int64 holds.
  return gather(none ? torch::empty({0}, torch::kLong)
                     : torch::arange(from, to, std::clamp(step, -rows, rows), torch::kLong));
}

torch::Tensor ShardedVariable::index(
    const std::vector<torch::indexing::TensorIndex>& indices) const {
  try {
    if (!BeginsWithRows(indices, sizes_)) return value().index(indices);
    const Indices others(indices.begin() + 1, indices.end());
    const auto axes =
        1 + std::ranges::count_if(others, [](const auto& one) { return !one.is_none(); });
    if (axes > std::ssize(sizes_)) {
      raise(InvalidArgument("index of variable {}: too many indices, {} for {} axes", name(), axes,
                            sizes_.size()));
    }
    const torch::indexing::TensorIndex& first = indices[0];
    if (first.is_integer()) {
      const torch::Tensor row = (*this)[AsNumber(first.integer())];
      return others.empty() ? row : row.index(others);
    }
    torch::Tensor rows;
    if (first.is_slice()) {
      const torch::indexing::Slice& wanted = first.slice();
      rows = slice(AsNumber(wanted.start()), AsNumber(wanted.stop()), AsNumber(wanted.step()));
    } else if (first.tensor().scalar_type() == torch::kBool) {
      rows = gather(first.tensor().nonzero().flatten());
    } else {
      rows = gather(FromTheBeginning(first.tensor(), sizes_[0], name()));
    }
    return others.empty() ? rows : rows.movedim(0, -1).index(others).movedim(-1, 0);
  } catch (const c10::Error& error) {
    raise(InvalidArgument("index of variable {}: {}", name(), error.what_without_backtrace()));
  }
}

torch::Tensor ShardedVariable::sparse_read(const torch::Tensor& rows) const {
  internal::require_rows(name(), sizes_, rows);
  if (rows.dim() != 1) {
    raise(InvalidArgument(
        "variable {}: rows to read must be a list of one dimension, not of shape {}", name(),
        ShapeText(rows.sizes())));
  }
  return gather(rows);
}

torch::Tensor ShardedVariable::gather(const torch::Tensor& rows) const {
  return internal::remote_component(variable_).Gather(rows);
}

const ShardedVariable& ShardedVariable::assign(const VariableValue& value) const {
  (void)variable_.assign(value, /*read_value=*/false);
  return *this;
}

const ShardedVariable& ShardedVariable::assign_add(const VariableValue& value) const {
  (void)variable_.assign_add(value, /*read_value=*/false);
  return *this;
}

const ShardedVariable& ShardedVariable::assign_sub(const VariableValue& value) const {
  (void)variable_.assign_sub(value, /*read_value=*/false);
  return *this;
}

}  // namespace muster
