#include "services/executor/evaluation.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "common/base/words.h"
#include "common/messages/evaluation_result.h"
#include "common/messages/metric_sums.h"
#include "common/storage/module_values.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/open_data.h"
#include "services/executor/steps.h"

namespace muster::executor {
namespace {

// The job as if one device held its variables. They are all that is read of the checkpoint: without
// an optimizer that has slots none of these take memory.
Result<v1::ExecutorStart> StartOf(const v1::ToExecutor& message) {
  const v1::EvaluateCheckpoint& request = message.evaluate();
  v1::ExecutorStart start;
  start.set_archive_path(message.archive_path());
  start.set_cache_directory(message.cache_directory());
  start.set_threads(message.threads());
  v1::StartExecutor& job = *start.mutable_start();
  *job.mutable_spec() = request.spec();
  job.mutable_spec()->mutable_strategy()->Clear();
  job.mutable_spec()->mutable_strategy()->set_kind(v1::STRATEGY_KIND_ONE_DEVICE);
  *job.mutable_plan() = request.plan();
  job.mutable_plan()->clear_ps();
  job.mutable_plan()->mutable_optimizer()->Clear();
  job.mutable_plan()->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  job.mutable_plan()->mutable_optimizer()->set_learning_rate(1);
  job.set_restore_from(request.directory());
  if (!message.archive_path().empty()) {
    MUSTER_TRY_ASSIGN(*job.mutable_buffers(), storage::ReadBuffers(request.directory()));
  }
  return start;
}

}  // namespace

Result<v1::EvaluationResult> EvaluateCheckpoint(
    const v1::ToExecutor& message, const std::function<void(std::uint64_t)>& progress) {
  const v1::EvaluateCheckpoint& request = message.evaluate();
  const v1::JobSpec& spec = request.spec();
  // The checkpoint first: retention may remove it meanwhile.
  MUSTER_TRY_ASSIGN(const v1::ExecutorStart start, StartOf(message));
  MUSTER_TRY_ASSIGN(const std::unique_ptr<BatchReader> data,
                    OpenEvaluationData(spec, message.cache_directory(), request.data()));
  MUSTER_TRY_ASSIGN(const std::unique_ptr<Steps> steps,
                    OpenLocalSteps(start, data->source().columns()));
  progress(0);
  v1::MetricSums sums;
  const std::uint64_t batches = data->source().batches_per_epoch();
  for (std::uint64_t batch = 1; batch <= batches; ++batch) {
    if (batch < batches) data->Request(batch + 1);
    MUSTER_TRY_ASSIGN(const data::Element examples, data->Take(batch));
    engine::StepTimes times;
    MUSTER_TRY_ASSIGN(const v1::MetricSums scored,
                      steps->Evaluate(fmt::format("evaluation batch {}", batch), examples, times));
    AddSums(scored, sums);
    progress(batch);
  }
  if (sums.examples() != data->source().examples()) {
    return Internal("{} scored {} examples; there are {}", Counted(batches, "batch", "batches"),
                    sums.examples(), data->source().examples());
  }
  return Summarise(sums, spec, request.plan().start_step());
}

}  // namespace muster::executor
