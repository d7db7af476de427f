// Steps with parameter servers: values are pulled, gradients pushed.
#include <utility>

#include "program/executor_endpoint.h"

#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/steps.h"

namespace muster::executor {
namespace {

class PsSteps final : public Steps, private engine::ParameterSource {
 public:
  Status Open(const v1::ExecutorStart& start, const std::vector<data::ColumnInfo>& columns) {
    MUSTER_TRY_ASSIGN(model_, OpenModel(start, columns));
    ps::PsClient::Options options;
    options.key = start.start().program().key();
    options.tls = program::TlsOf(start.start().program());
    options.host_id = start.host_id();
    MUSTER_TRY_ASSIGN(options.link, ps::LinkModeOf(start.link()));
    const v1::JobPlan& plan = start.start().plan();
    MUSTER_TRY_ASSIGN(client_, ps::PsClient::Connect(plan, std::move(options)));
    MUSTER_TRY_ASSIGN(variables_, MatchVariables(*model_, plan));
    if (start.start().assign_initial_values()) MUSTER_TRY(GiveInitialValues(start));
    return BindParameters();
  }

  Result<v1::MetricSums> Train(std::uint64_t step, Attempt attempt, const data::Element& batch,
                               engine::StepTimes& times) override {
    attempt_ = attempt;
    step_ = step;
    return engine::Train(*model_, *this, step, {}, batch, times);
  }
  Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                  engine::StepTimes& times) override {
    return engine::Evaluate(*model_, *this, label, batch, times);
  }
  v1::ModelValues Values(bool frozen) const override { return model_->Values(frozen); }
  Status EvaluateWith(const v1::TensorSet& buffers) override {
    return model_->EvaluateWith(buffers);
  }
  Result<v1::SaveReport> Save(std::uint64_t step, const std::string&) override {
    return FailedPrecondition("step {}: this job's variables are on its parameter servers", step);
  }
  ps::LinkBytes bytes() const override { return client_->bytes(); }

 private:
  Status Fetch(bool train, std::span<engine::Lookup> lookups) override {
    const ClosureId closure(train ? step_ : 0);
    MUSTER_TRY(client_->PullDense(variables_.dense, closure));
    for (engine::Lookup& lookup : lookups) {
      const std::uint32_t variable = variables_.embeddings[lookup.embedding];
      MUSTER_TRY_ASSIGN(lookup.rows, client_->PullRows(variable, lookup.ids, closure));
      if (!train) continue;
      MUSTER_TRY_ASSIGN(lookup.row_gradients,
                        client_->RowGradientBuffer(variable, lookup.ids.size()));
    }
    return Ok();
  }

  Status Give(std::uint64_t step, std::span<const engine::Lookup> lookups,
              const v1::MetricSums& /*metrics*/) override {
    std::vector<ps::RowGradient> rows;
    for (const engine::Lookup& lookup : lookups) {
      rows.push_back({variables_.embeddings[lookup.embedding], lookup.ids, lookup.row_gradients});
    }
    return client_->Push(ClosureId(step), attempt_, variables_.dense, rows);
  }

  Status GiveInitialValues(const v1::ExecutorStart& start) {
    if (start.archive_path().empty()) return Ok();
    for (std::size_t i = 0; i < variables_.dense.size(); ++i) {
      const Status status = client_->Assign(variables_.dense[i], model_->InitialValue(i));
      // Training has begun, so an executor before this one has given them.
      if (status.code() == StatusCode::kFailedPrecondition) return Ok();
      if (!status.ok()) {
        return Annotate(status, "initial value of " + model_->parameters()[i].name);
      }
    }
    return Ok();
  }

  Status BindParameters() {
    for (std::size_t i = 0; i < variables_.dense.size(); ++i) {
      const std::span<float> value = client_->Value(variables_.dense[i]);
      const std::span<float> gradient = client_->Gradient(variables_.dense[i]);
      const auto elements = static_cast<std::size_t>(model_->parameters()[i].elements);
      if (value.size() != elements || gradient.size() != elements) {
        return Internal("variable {}: memory for {} values, the model has {}",
                        model_->parameters()[i].name, value.size(), elements);
      }
      MUSTER_TRY(model_->Bind(i, value.data(), gradient.data()));
    }
    return Ok();
  }

  // The client's memory holds the model's parameters, so it goes last.
  std::unique_ptr<ps::PsClient> client_;
  std::unique_ptr<engine::Model> model_;
  ModelVariables variables_;
  // The closure that trains.
  std::uint64_t step_ = 0;
  Attempt attempt_;
};

}  // namespace

Result<std::unique_ptr<Steps>> OpenPsSteps(const v1::ExecutorStart& start,
                                           const std::vector<data::ColumnInfo>& columns) {
  auto steps = std::make_unique<PsSteps>();
  MUSTER_TRY(steps->Open(start, columns));
  return steps;
}

}  // namespace muster::executor
