// How the steps of one job are computed: with parameter servers (ps_steps.cc), or under a strategy
// that keeps the variables in this process (local_steps.h), alone or together with the executors of
// other workers (group_steps.cc). The step itself is worker/engine/step.h for all.
//
// Threading: one thread makes and uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/data/element.h"
#include "ps/client/ps_client.h"
#include "services/executor/batch_reader.h"
#include "worker/engine/model.h"
#include "worker/engine/step.h"

namespace muster::v1 {
class ExecutorStart;
class GroupReport;
class JobPlan;
class JoinGroup;
class SaveReport;
}  // namespace muster::v1

namespace muster::executor {

class Steps {
 public:
  virtual ~Steps() = default;

  // The step of this closure, on the whole batch; applied at most once, whatever the attempt.
  //   kUnavailable: a peer was lost, or the step before it has not been made here: run it again.
  virtual Result<v1::MetricSums> Train(std::uint64_t step, Attempt attempt,
                                       const data::Element& batch, engine::StepTimes& times) = 0;
  virtual Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                          engine::StepTimes& times) = 0;

  // The values of the model. With several replicas the first one's buffers count.
  virtual v1::ModelValues Values(bool frozen) const = 0;
  virtual Status EvaluateWith(const v1::TensorSet& buffers) = 0;

  // Writes variables and slots after `step` into `directory`.
  //   kFailedPrecondition: another step is the last one, an update has failed halfway, or they are
  //   not here.
  virtual Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory) = 0;
  // Steps done, where the variables are here.
  //   kFailedPrecondition: an update has failed halfway.
  virtual Result<std::uint64_t> Done() const { return 0; }
  virtual ps::LinkBytes bytes() const { return {}; }

  // Where several executors make steps together: host:port at which this one waits for the
  // others, and taking part in their next group.
  //   The errors of JoinGroup (cluster.proto).
  virtual std::string group_address() const { return {}; }
  virtual Result<v1::GroupReport> Join(const v1::JoinGroup& request);
  // Whose part this one reads or computes now while another executor leads, and has the closure.
  // From any thread.
  struct Part {
    std::uint64_t step = 0;    // 0: none, or it waits for the others
    std::uint64_t number = 0;  // grows with each
  };
  virtual Part part() const { return {}; }
};

// All load the model, over data with these columns. kInvalidArgument, kNotFound, kDataLoss: the
// user's error; else PsClient's, or kResourceExhausted: the variables do not fit into memory.
Result<std::unique_ptr<Steps>> OpenPsSteps(const v1::ExecutorStart& start,
                                           const std::vector<data::ColumnInfo>& columns);
Result<std::unique_ptr<Steps>> OpenLocalSteps(const v1::ExecutorStart& start,
                                              const std::vector<data::ColumnInfo>& columns);
// `batches` outlives the steps, which read from it where another executor leads. `on_over` is
// called, from any thread, when a group has ended with an error and no other one is asked for soon.
Result<std::unique_ptr<Steps>> OpenGroupSteps(const v1::ExecutorStart& start,
                                              const std::vector<data::ColumnInfo>& columns,
                                              BatchReader& batches, std::function<void()> on_over);

// With the buffers that the start names.
Result<std::unique_ptr<engine::Model>> OpenModel(const v1::ExecutorStart& start,
                                                 const std::vector<data::ColumnInfo>& columns);
// The plan's variables by Model::parameters() and Model::embeddings(), as indices.
//   kFailedPrecondition: the plan is of another model.
struct ModelVariables {
  std::vector<std::uint32_t> dense;
  std::vector<std::uint32_t> embeddings;
};
Result<ModelVariables> MatchVariables(const engine::Model& model, const v1::JobPlan& plan);

}  // namespace muster::executor
