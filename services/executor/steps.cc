#include "services/executor/steps.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"

namespace muster::executor {

Result<v1::GroupReport> Steps::Join(const v1::JoinGroup&) {
  return Unimplemented("the steps of this job are made by one process");
}

Result<std::unique_ptr<engine::Model>> OpenModel(const v1::ExecutorStart& start,
                                                 const std::vector<data::ColumnInfo>& columns) {
  MUSTER_TRY_ASSIGN(auto model,
                    engine::Model::Create(start.start().spec(), {start.archive_path(), columns}));
  if (start.start().has_buffers()) MUSTER_TRY(model->SetBuffers(start.start().buffers()));
  return model;
}

Result<ModelVariables> MatchVariables(const engine::Model& model, const v1::JobPlan& plan) {
  const auto find = [&](const std::string& name, bool embedding,
                        const std::vector<std::int64_t>& shape) -> Result<std::uint32_t> {
    const auto& variables = plan.variables();
    const auto at = std::ranges::find(variables, name, &v1::VariableLayout::name);
    if (at == variables.end() || at->embedding() != embedding ||
        !std::ranges::equal(at->shape(), shape)) {
      return FailedPrecondition(
          "the plan has no {} \"{}\" of shape [{}], which the model has: the archive on this host "
          "is not the one that was checked",
          embedding ? "embedding" : "variable", name, fmt::join(shape, ", "));
    }
    return at->id();
  };
  ModelVariables matched;
  for (const engine::ParameterInfo& parameter : model.parameters()) {
    MUSTER_TRY_ASSIGN(matched.dense.emplace_back(), find(parameter.name, false, parameter.shape));
  }
  for (const engine::EmbeddingInfo& info : model.embeddings()) {
    MUSTER_TRY_ASSIGN(matched.embeddings.emplace_back(),
                      find(info.name, true, {info.rows, info.dim}));
  }
  return matched;
}

}  // namespace muster::executor
