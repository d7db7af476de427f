#include "strategy/variables/internal/variable_write.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/values/internal/reduction.h"

namespace muster::internal {
namespace {

// The variable's type, on its device; refuses to drop fractions or signs, as libtorch's in-place
// calls do.
torch::Tensor Converted(const std::string& name, const torch::Tensor& value,
                        const torch::Tensor& like) {
  const torch::ScalarType dtype = like.scalar_type();
  if (!c10::canCast(value.scalar_type(), dtype)) {
    raise(InvalidArgument("variable {} is {} and cannot be assigned {}", name,
                          torch::toString(dtype), torch::toString(value.scalar_type())));
  }
  return value.to(like.device(), dtype);  // itself, where it fits
}

// A number, or a value of the shape of `like`.
torch::Tensor Dense(const std::string& name, const WriteArgument& argument,
                    const torch::Tensor& like) {
  const torch::Tensor value = Converted(name, argument.values, like);
  if (!argument.number && !value.sizes().equals(like.sizes())) {
    raise(InvalidArgument("variable {} has shape {} and cannot be assigned a value of shape {}",
                          name, ShapeText(like.sizes()), ShapeText(value.sizes())));
  }
  return value;
}

// In host memory, as positions are checked and counted there.
torch::Tensor Indices(const std::string& name, const torch::Tensor& indices, std::int64_t rows) {
  if (!indices.defined() || indices.dim() > 1 ||
      (indices.scalar_type() != torch::kLong && indices.scalar_type() != torch::kInt)) {
    raise(InvalidArgument(
        "variable {}: scatter indices must be a list of int32 or int64, not {}", name,
        !indices.defined() ? "undefined"
                           : fmt::format("{} of shape {}", torch::toString(indices.scalar_type()),
                                         ShapeText(indices.sizes()))));
  }
  const torch::Tensor list = indices.reshape({-1}).to(torch::kCPU, torch::kLong).contiguous();
  const auto* const index = list.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < list.numel(); ++i) {
    if (index[i] < 0 || index[i] >= rows) {
      raise(InvalidArgument("variable {}: scatter index {} at position {} is not in [0, {})", name,
                            index[i], i, rows));
    }
  }
  return list;
}

// One row of `like` for each index.
torch::Tensor Rows(const std::string& name, const torch::Tensor& values, std::int64_t count,
                   const torch::Tensor& like) {
  std::vector<std::int64_t> wanted = like.sizes().vec();
  wanted[0] = count;
  const torch::Tensor rows = Converted(name, values, like);
  if (rows.dim() == 0) return rows.expand(wanted);
  if (!rows.sizes().equals(wanted)) {
    raise(InvalidArgument(
        "variable {} of shape {}: {} scatter indices need values of shape {}, "
        "not {}",
        name, ShapeText(like.sizes()), count, ShapeText(wanted), ShapeText(values.sizes())));
  }
  return rows;
}

void RequireRows(const std::string& name, const torch::Tensor& old) {
  if (old.dim() >= 1) return;
  raise(InvalidArgument("variable {} is a scalar: it has no rows to scatter to", name));
}

// Positions of first occurrences, of second ones, ...: within each list no index comes twice.
std::vector<torch::Tensor> Rounds(const torch::Tensor& indices) {
  std::unordered_map<std::int64_t, std::size_t> seen;
  std::vector<std::vector<std::int64_t>> rounds;
  const auto* const index = indices.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < indices.numel(); ++i) {
    const std::size_t round = seen[index[i]]++;
    if (round == rounds.size()) rounds.emplace_back();
    rounds[round].push_back(i);
  }
  std::vector<torch::Tensor> positions;
  for (const auto& round : rounds) positions.push_back(torch::tensor(round, torch::kLong));
  return positions;
}

// Before anything is written: rows are divided in place, one round after the other.
void RequireDivisors(const std::string& name, const torch::Tensor& into,
                     const torch::Tensor& values) {
  if (!torch::isIntegralType(into.scalar_type(), /*includeBool=*/false)) return;
  if (!(values == 0).any().item<bool>()) return;
  raise(InvalidArgument(
      "scatter_div of variable {}: division by zero, and {} has no infinity; give values that are "
      "not 0",
      name, torch::toString(into.scalar_type())));
}

// Toward zero.
torch::Tensor Quotient(const torch::Tensor& rows, const torch::Tensor& values) {
  const torch::ScalarType type = rows.scalar_type();
  if (!torch::isIntegralType(type, /*includeBool=*/true)) return rows / values;
  if (type == torch::kByte || type == torch::kBool) return rows.div(values, "trunc");
  // The least number by -1 would trap; as elsewhere, it wraps around.
  const torch::Tensor negates = values == -1;
  return torch::where(negates, rows.neg(), rows.div(values.masked_fill(negates, 1), "trunc"));
}

torch::Tensor Combine(WriteKind kind, const torch::Tensor& rows, const torch::Tensor& values) {
  switch (kind) {
    case WriteKind::kScatterMul:
      return rows * values;
    case WriteKind::kScatterDiv:
      return Quotient(rows, values);
    case WriteKind::kScatterMin:
      return torch::minimum(rows, values);
    case WriteKind::kScatterMax:
      return torch::maximum(rows, values);
    default:
      return values;
  }
}

// sum / count; integers stay integers.
torch::Tensor Mean(const torch::Tensor& sum, std::size_t count) {
  const auto divisor = static_cast<std::int64_t>(count);
  return torch::isIntegralType(sum.scalar_type(), /*includeBool=*/true) ? sum.div(divisor, "trunc")
                                                                        : sum / divisor;
}

bool SameOnAll(const std::vector<WriteArgument>& all) {
  const WriteArgument& first = all[0];
  return std::all_of(all.begin(), all.end(), [&](const WriteArgument& one) {
    if (first.indices.defined() && !one.indices.is_same(first.indices)) return false;
    if (one.values.is_same(first.values)) return true;
    return first.number && one.number && one.values.scalar_type() == first.values.scalar_type() &&
           one.values.equal(first.values.to(one.values.device()));
  });
}

// All rows of all replicas, in replica order: one that comes twice counts twice.
WriteArgument JoinRows(const std::string& name, const std::vector<WriteArgument>& all,
                       const torch::Tensor& like) {
  RequireRows(name, like);
  std::vector<torch::Tensor> indices;
  std::vector<torch::Tensor> rows;
  for (const WriteArgument& one : all) {
    indices.push_back(Indices(name, one.indices, like.size(0)));
    rows.push_back(Rows(name, one.values, indices.back().numel(), like));
  }
  return {.values = torch::cat(rows), .indices = torch::cat(indices)};
}

// The sum of each row over replicas, in the type `wide`; every index once, ascending.
WriteArgument SumRows(const std::string& name, const std::vector<WriteArgument>& all,
                      const torch::Tensor& like, torch::ScalarType wide) {
  const WriteArgument joined = JoinRows(name, all, like);
  const auto [unique, inverse, counts] =
      torch::_unique2(joined.indices, /*sorted=*/true, /*return_inverse=*/true);
  (void)counts;
  std::vector<std::int64_t> shape = like.sizes().vec();
  shape[0] = unique.numel();
  torch::Tensor sums = torch::zeros(shape, torch::dtype(wide).device(like.device()));
  sums.index_add_(0, inverse.to(like.device()), joined.values.to(wide));
  return {.values = sums, .indices = unique};
}

bool Multiplies(WriteKind kind) {
  return kind == WriteKind::kScatterMul || kind == WriteKind::kScatterDiv;
}

}  // namespace

std::string_view name_of(WriteKind kind) {
  switch (kind) {
    case WriteKind::kAssign:
      return "assign";
    case WriteKind::kAssignAdd:
      return "assign_add";
    case WriteKind::kAssignSub:
      return "assign_sub";
    case WriteKind::kScatterAdd:
      return "scatter_add";
    case WriteKind::kScatterSub:
      return "scatter_sub";
    case WriteKind::kScatterMul:
      return "scatter_mul";
    case WriteKind::kScatterDiv:
      return "scatter_div";
    case WriteKind::kScatterMin:
      return "scatter_min";
    case WriteKind::kScatterMax:
      return "scatter_max";
    case WriteKind::kScatterUpdate:
      return "scatter_update";
  }
  return "write";
}

WriteArgument Fitted(WriteKind kind, const std::string& name, torch::ScalarType type,
                     const std::vector<std::int64_t>& sizes, const WriteArgument& argument) {
  // It looks like the value and takes no memory.
  const torch::Tensor like = torch::zeros({}, torch::dtype(type)).expand(sizes);
  WriteArgument fitted{.number = argument.number, .values = {}};
  if (is_scatter(kind)) {
    RequireRows(name, like);
    fitted.indices = Indices(name, argument.indices, like.size(0));
    fitted.values = plain_of(Rows(name, argument.values, fitted.indices.numel(), like));
  } else {
    fitted.values = plain_of(Dense(name, argument, like).expand(sizes));
  }
  return fitted;
}

torch::Tensor Written(WriteKind kind, const std::string& name, const torch::Tensor& old,
                      const WriteArgument& argument) {
  if (is_scatter(kind)) {
    RequireRows(name, old);
    torch::Tensor result = old.clone(at::MemoryFormat::Contiguous);
    ScatterInto(kind, name, result, argument);
    return result;
  }
  const torch::Tensor value = Dense(name, argument, old);
  if (kind == WriteKind::kAssignAdd) return old + value;
  if (kind == WriteKind::kAssignSub) return old - value;
  return torch::empty(old.sizes(), torch::dtype(old.scalar_type()).device(old.device()))
      .copy_(value);
}

void ScatterInto(WriteKind kind, const std::string& name, torch::Tensor into,
                 const WriteArgument& argument) {
  RequireRows(name, into);
  const torch::Tensor indices = Indices(name, argument.indices, into.size(0));
  const torch::Tensor values = Rows(name, argument.values, indices.numel(), into);
  if (kind == WriteKind::kScatterDiv) RequireDivisors(name, into, values);
  const torch::Tensor all = indices.to(into.device());
  if (kind == WriteKind::kScatterAdd) return void(into.index_add_(0, all, values));
  if (kind == WriteKind::kScatterSub) return void(into.index_add_(0, all, values, -1));
  for (const torch::Tensor& list : Rounds(indices)) {
    const torch::Tensor positions = list.to(into.device());
    const torch::Tensor rows = all.index_select(0, positions);
    const torch::Tensor theirs = values.index_select(0, positions);
    into.index_copy_(0, rows, Combine(kind, into.index_select(0, rows), theirs));
  }
}

WriteArgument Aggregate(WriteKind kind, const std::string& name, VariableAggregation aggregation,
                        const std::vector<WriteArgument>& all, const torch::Tensor& like) {
  if (aggregation == VariableAggregation::kOnlyFirstReplica || all.size() == 1) return all[0];
  const bool sum = aggregation == VariableAggregation::kSum;
  if (SameOnAll(all)) {
    // Nothing, however often, as of reduce(): how a sum is begun anew.
    if (!sum || (!is_scatter(kind) && all[0].number && !all[0].values.is_nonzero())) return all[0];
    raise(InvalidArgument(
        "A non-DistributedValues value cannot be reduced with the given reduce op SUM: {} of "
        "variable {} got the same {} on all {} replicas; give each replica a value of its own, or "
        "create the variable with another aggregation",
        name_of(kind), name, all[0].number ? "number" : "tensor object", all.size()));
  }
  if (is_scatter(kind)) {
    const torch::ScalarType type = like.scalar_type();
    const torch::ScalarType wide = sum ? sum_type(type) : mean_sum_type(type);
    // Factors are no summands: each is applied.
    WriteArgument rows =
        Multiplies(kind) ? JoinRows(name, all, like) : SumRows(name, all, like, wide);
    if (!sum) rows.values = Mean(rows.values, all.size());
    rows.values = rows.values.to(like.scalar_type());
    return rows;
  }
  std::vector<torch::Tensor> values;
  bool numbers = true;
  for (const WriteArgument& one : all) {
    const torch::Tensor value = Converted(name, one.values, like);
    // A sum that has no room in a narrow type has one in its mean.
    values.push_back(sum ? value : value.to(mean_sum_type(value.scalar_type())));
    numbers = numbers && one.number;
  }
  const torch::Tensor total = reduce_tensors(ReduceOp::kSum, values, Axes());
  return {.number = numbers, .values = sum ? total : Mean(total, all.size())};
}

}  // namespace muster::internal
