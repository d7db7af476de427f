#include "services/coordinator/coordinator_metrics.h"

#include <map>
#include <string>

#include "common/messages/job_state.h"

namespace muster::coordinator {
namespace {

using services::Metric;
using services::Samples;

// An ended job's last values stay for so long: longer than anybody pauses between two scrapes.
constexpr std::int64_t kShownAfterEndMs = 5 * 60 * 1'000;

double FromMs(std::int64_t ms) { return static_cast<double>(ms) / 1000; }
double Count(std::uint64_t number) { return static_cast<double>(number); }

void AddTasks(const v1::ClusterStatus& status, Samples& samples) {
  samples.Add(Metric::kEpoch, Count(status.epoch()));
  for (const v1::TaskState& state : status.tasks()) {
    const std::string task = FromProto(state.task()).ToString();
    const bool drained = state.state() == "drained";
    // Nobody misses it.
    if (drained && state.pid() == 0) continue;
    const bool up = drained || state.state() == "up" || state.state() == "draining";
    samples.Add(Metric::kTaskUp, up ? 1 : 0, {task});
    if (!up) continue;
    samples.Add(Metric::kTaskResidentBytes, Count(state.resident_bytes()), {task});
    if (state.task().type() != "worker") continue;
    samples.Add(Metric::kTaskClosures, Count(state.closures_done()), {task});
    for (const v1::CollectiveWait& wait : state.waits()) {
      samples.Add(Metric::kJobWait, Count(wait.lasts_ms()) / 1000,
                  {wait.job_id(), FromProto(wait.task()).ToString()});
    }
  }
}

void AddProgress(const std::string& job, const v1::JobProgress& progress, Samples& samples) {
  samples.Add(Metric::kJobStep, Count(progress.step()), {job});
  samples.Add(Metric::kJobSteps, Count(progress.total_steps()), {job});
  samples.Add(Metric::kJobLinkBytes, Count(progress.tcp_bytes()), {job, "tcp"});
  samples.Add(Metric::kJobLinkBytes, Count(progress.local_bytes()), {job, "local"});
  samples.Add(Metric::kJobBadRecords, Count(progress.bad_records()), {job});
  // A mean over no step would look like a perfect one.
  if (progress.step() == 0) return;
  samples.Add(Metric::kJobExamplesPerSecond, progress.examples_per_second(), {job});
  samples.Add(Metric::kJobLoss, progress.loss(), {job});
  if (progress.has_accuracy()) samples.Add(Metric::kJobAccuracy, progress.accuracy(), {job});
  if (progress.has_eta_seconds()) samples.Add(Metric::kJobEta, progress.eta_seconds(), {job});
  samples.Add(Metric::kJobStepSeconds, progress.read_us() / 1e6, {job, "read"});
  samples.Add(Metric::kJobStepSeconds, progress.pull_us() / 1e6, {job, "pull"});
  samples.Add(Metric::kJobStepSeconds, progress.compute_us() / 1e6, {job, "compute"});
  samples.Add(Metric::kJobStepSeconds, progress.push_us() / 1e6, {job, "push"});
}

void AddEvaluation(const std::string& job, const v1::EvaluationResult& result, Samples& samples) {
  samples.Add(Metric::kJobEvaluationStep, Count(result.step()), {job});
  samples.Add(Metric::kJobEvaluationLoss, result.loss(), {job});
  if (result.has_accuracy()) {
    samples.Add(Metric::kJobEvaluationAccuracy, result.accuracy(), {job});
  }
  if (result.has_auc()) samples.Add(Metric::kJobEvaluationAuc, result.auc(), {job});
}

void AddJob(const Job& one, Samples& samples) {
  const v1::Job& job = one.record().job();
  const std::string& id = job.id();
  samples.Add(Metric::kJobInfo, 1, {id, job.name(), StateName(job.state())});
  samples.Add(Metric::kJobReruns, Count(job.closures_rerun()), {id});
  if (job.has_progress()) AddProgress(id, job.progress(), samples);
  if (job.has_evaluation()) AddEvaluation(id, job.evaluation(), samples);
  if (job.has_program()) samples.Add(Metric::kJobClosures, Count(job.program().done()), {id});
  if (job.spec().has_program() || job.spec().has_launch()) {
    samples.Add(Metric::kJobRestarts, job.restarts(), {id});
  } else if (job.view() > 0) {
    samples.Add(Metric::kJobViews, Count(job.view() - 1), {id});
  }
  const auto& saved = one.checkpoints();
  for (auto info = saved.rbegin(); info != saved.rend(); ++info) {
    if (!info->refused().empty()) continue;
    samples.Add(Metric::kJobCheckpointTime, FromMs(info->created_ms()), {id});
    samples.Add(Metric::kJobCheckpointStall, Count(info->stall_ms()) / 1000, {id});
    break;
  }
}

}  // namespace

void AddMetrics(const Coordinator& core, std::int64_t now_ms, Samples& samples) {
  AddTasks(core.Status(), samples);
  std::map<v1::JobState, int> states;
  for (int state = v1::JOB_STATE_PENDING; state <= v1::JOB_STATE_CANCELLED; ++state) {
    states[static_cast<v1::JobState>(state)] = 0;
  }
  core.ForEachJob([&](const Job& job) {
    const v1::Job& row = job.record().job();
    ++states[row.state()];
    if (!job.ended() || now_ms - row.ended_ms() < kShownAfterEndMs) AddJob(job, samples);
  });
  for (const auto& [state, count] : states) {
    samples.Add(Metric::kJobs, count, {StateName(state)});
  }
}

}  // namespace muster::coordinator
