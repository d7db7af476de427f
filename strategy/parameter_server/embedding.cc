#include "strategy/parameter_server/embedding.h"

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
  if (!ids.defined() || (ids.scalar_type() != torch::kLong && ids.scalar_type() != torch::kInt)) {
    raise(InvalidArgument("variable {}: rows are named by int32 or int64, not by {}", name,
                          ids.defined() ? torch::toString(ids.scalar_type()) : "no tensor"));
  }
  if (ids.numel() == 0) return;
  const auto least = ids.min().item<std::int64_t>();
  const auto most = ids.max().item<std::int64_t>();
  if (least >= 0 && most < sizes[0]) return;
  raise(InvalidArgument("variable {}: row {} is not in [0, {})", name, least < 0 ? least : most,
                        sizes[0]));
}

}  // namespace muster
