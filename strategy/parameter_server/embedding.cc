#include "strategy/parameter_server/embedding.h"

#include <algorithm>

#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {

torch::Tensor embedding_lookup(const Variable& table, const torch::Tensor& ids) {
  internal::RemoteComponent& remote = internal::remote_component(table);
  const std::vector<std::int64_t> sizes = table.sizes();
  internal::require_rows(table.name(), sizes, ids);
  const torch::Tensor flat = ids.reshape({-1}).to(torch::kCPU, torch::kLong);
  const auto [unique, inverse, counts] =
      torch::_unique2(flat, /*sorted=*/true, /*return_inverse=*/true);
  (void)counts;
  std::vector<std::int64_t> wanted = ids.sizes().vec();
  wanted.insert(wanted.end(), sizes.begin() + 1, sizes.end());
  return remote.LookUp(unique, table.trainable()).index_select(0, inverse).reshape(wanted);
}

IndexedSlices embedding_gradient(const Variable& table) {
  const std::vector<internal::Lookup> lookups = internal::remote_component(table).TakeLookups();
  std::vector<torch::Tensor> ids;
  std::vector<torch::Tensor> gradients;
  for (const auto& [looked_up, rows] : lookups) {
    if (!rows.grad().defined()) continue;
    ids.push_back(looked_up);
    gradients.push_back(rows.grad());
  }
  if (ids.empty()) return {};
  const torch::NoGradGuard no_grad;
  const auto [unique, inverse, counts] =
      torch::_unique2(torch::cat(ids), /*sorted=*/true, /*return_inverse=*/true);
  (void)counts;
  const torch::Tensor all = torch::cat(gradients);
  std::vector<std::int64_t> sizes = all.sizes().vec();
  sizes[0] = unique.numel();
  const torch::Tensor sums = torch::zeros(sizes, all.options()).index_add_(0, inverse, all);
  return {.values = sums, .indices = unique};
}

namespace {

bool AreIntegers(const torch::Tensor& tensor) {
  return tensor.defined() &&
         (tensor.scalar_type() == torch::kLong || tensor.scalar_type() == torch::kInt);
}

std::string TypeText(const torch::Tensor& tensor) {
  return tensor.defined() ? torch::toString(tensor.scalar_type()) : "no tensor";
}

void RequireIntegers(const std::string& name, const torch::Tensor& ids) {
  if (AreIntegers(ids)) return;
  raise(InvalidArgument("variable {}: rows are named by int32 or int64, not by {}", name,
                        TypeText(ids)));
}

// The bag of each id.
torch::Tensor BagsOf(const std::string& name, const torch::Tensor& ids,
                     const torch::Tensor& offsets, const torch::Tensor& weights) {
  RequireIntegers(name, ids);
  if (!AreIntegers(offsets)) {
    raise(InvalidArgument("lookup in variable {}: offsets are int32 or int64, not {}", name,
                          TypeText(offsets)));
  }
  if (ids.dim() != 1 || offsets.dim() != 1) {
    raise(
        InvalidArgument("lookup in variable {}: ids have shape {}, offsets {}; both must be lists",
                        name, ShapeText(ids), ShapeText(offsets)));
  }
  if (weights.defined() && !weights.sizes().equals(ids.sizes())) {
    raise(InvalidArgument("lookup in variable {}: {} ids, but weights of shape {}", name,
                          ids.numel(), ShapeText(weights)));
  }
  const torch::Tensor begins = offsets.to(torch::kCPU, torch::kLong).contiguous();
  const std::int64_t bags = begins.numel();
  const auto at = [&](std::int64_t bag) {
    return bag == bags ? ids.numel() : begins.data_ptr<std::int64_t>()[bag];
  };
  if (bags == 0 ? ids.numel() > 0 : at(0) != 0) {
    raise(InvalidArgument("lookup in variable {}: offsets begin at 0", name));
  }
  const torch::Tensor bag_of = torch::empty({ids.numel()}, torch::kLong);
  for (std::int64_t bag = 0; bag < bags; ++bag) {
    if (at(bag) > at(bag + 1) || at(bag + 1) > ids.numel()) {
      raise(InvalidArgument("lookup in variable {}: offset {} is {}, after {} of {} ids", name,
                            bag + 1, at(bag + 1), at(bag), ids.numel()));
    }
    std::fill(bag_of.data_ptr<std::int64_t>() + at(bag),
              bag_of.data_ptr<std::int64_t>() + at(bag + 1), bag);
  }
  return bag_of;
}

// Rows with their weights, one sum for each bag.
torch::Tensor Combined(const torch::Tensor& rows, const torch::Tensor& bag_of, std::int64_t bags,
                       const torch::Tensor& weights, EmbeddingCombiner combiner) {
  const torch::Tensor each = weights.defined() ? weights.to(rows.scalar_type())
                                               : torch::ones({rows.size(0)}, rows.options());
  std::vector<std::int64_t> wide(static_cast<std::size_t>(rows.dim()), 1);
  wide[0] = -1;
  std::vector<std::int64_t> sizes = rows.sizes().vec();
  sizes[0] = bags;
  const torch::Tensor sums = torch::zeros(sizes, rows.options().requires_grad(false))
                                 .index_add(0, bag_of, rows * each.reshape(wide));
  if (combiner == EmbeddingCombiner::kSum) return sums;
  const bool squares = combiner == EmbeddingCombiner::kSqrtN;
  const torch::Tensor total =
      torch::zeros({bags}, sums.options()).index_add(0, bag_of, squares ? each * each : each);
  // Before the root, whose gradient at 0 is none.
  const torch::Tensor some = torch::where(total == 0, torch::ones_like(total), total);
  return sums / (squares ? some.sqrt() : some).reshape(wide);
}

}  // namespace

torch::Tensor embedding_lookup_sparse(const Variable& table, const torch::Tensor& ids,
                                      const torch::Tensor& offsets, const torch::Tensor& weights,
                                      EmbeddingCombiner combiner) {
  const torch::Tensor bag_of = BagsOf(table.name(), ids, offsets, weights);
  return Combined(embedding_lookup(table, ids), bag_of, offsets.numel(), weights, combiner);
}

torch::Tensor safe_embedding_lookup_sparse(const Variable& table, const torch::Tensor& ids,
                                           const torch::Tensor& offsets,
                                           const torch::Tensor& weights, EmbeddingCombiner combiner,
                                           std::optional<std::int64_t> otherwise) {
  const torch::Tensor bag_of = BagsOf(table.name(), ids, offsets, weights);
  torch::Tensor good = ids >= 0;
  if (weights.defined()) good = good & (weights > 0);
  const torch::Tensor kept = good.nonzero().flatten();
  const std::int64_t bags = offsets.numel();
  torch::Tensor kept_bags = bag_of.index_select(0, kept);
  torch::Tensor kept_ids = ids.to(torch::kLong).index_select(0, kept);
  torch::Tensor kept_weights = weights.defined() ? weights.index_select(0, kept) : weights;
  if (otherwise.has_value()) {
    const torch::Tensor filled = torch::zeros({bags}, torch::kLong).index_fill(0, kept_bags, 1);
    const torch::Tensor empty = (filled == 0).nonzero().flatten();
    kept_bags = torch::cat({kept_bags, empty});
    kept_ids = torch::cat({kept_ids, torch::full_like(empty, *otherwise)});
    if (weights.defined()) {
      kept_weights =
          torch::cat({kept_weights, torch::ones({empty.numel()}, kept_weights.options())});
    }
  }
  return Combined(embedding_lookup(table, kept_ids), kept_bags, bags, kept_weights, combiner);
}

internal::RemoteComponent& internal::remote_component(const Variable& variable) {
  if (variable.valid()) {
    VariableState& state = *variable.state();
    const int index = std::max(0, variable.component_index());
    if (auto* const remote = dynamic_cast<RemoteComponent*>(&state.at(index))) return *remote;
  }
  raise(InvalidArgument(
      "variable {} is on no parameter server: a ParameterServerStrategy makes those",
      variable.valid() ? variable.name() : "(none)"));
}

void internal::require_rows(const std::string& name, const std::vector<std::int64_t>& sizes,
                            const torch::Tensor& ids) {
  if (sizes.empty()) raise(InvalidArgument("variable {} is a scalar: it has no rows", name));
  RequireIntegers(name, ids);
  if (ids.numel() == 0) return;
  const auto least = ids.min().item<std::int64_t>();
  const auto most = ids.max().item<std::int64_t>();
  if (least >= 0 && most < sizes[0]) return;
  raise(InvalidArgument("variable {}: row {} is not in [0, {})", name, least < 0 ? least : most,
                        sizes[0]));
}

}  // namespace muster
