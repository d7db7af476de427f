#include "services/executor/job_run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/ids.h"
#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/messages/status_proto.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "services/executor/open_data.h"

namespace muster::executor {
namespace {

constexpr std::size_t kPieceBytes = 4 << 20;
constexpr std::chrono::seconds kBuffersWait{2};

// Microseconds since it was made or last asked.
class Stopwatch {
 public:
  std::uint64_t Lap() {
    const auto now = std::chrono::steady_clock::now();
    const auto lap = std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count();
    last_ = now;
    return static_cast<std::uint64_t>(lap);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void SetFile(const data::FileState& state, v1::DataFile& file) {
  file.set_path(state.path);
  file.set_size(state.size);
  file.set_mtime_ns(state.mtime_ns);
  file.set_records(state.records);
  file.set_index_hash(state.index_hash);
}

// Another host may well be able to open the data.
bool IsHostsTrouble(const Status& status) {
  return IsDiskTrouble(status.code()) || status.code() == StatusCode::kUnavailable;
}

// Says in the job's log which records it does without.
void TellBadRecords(const data::BatchSource& source, std::string_view section) {
  constexpr std::size_t kTold = 100;
  const std::vector<std::string> places = source.BadRecordPlaces(kTold);
  for (const std::string& place : places) {
    fmt::print(stderr, "warning: {}: skipped {}\n", section, place);
  }
  if (source.bad_records() > places.size()) {
    fmt::print(stderr, "warning: {}: {} skipped in all; these were the first {}\n", section,
               Counted(source.bad_records(), "record"), places.size());
  }
}

void SetTimes(const engine::StepTimes& times, v1::ClosureResult& result) {
  result.set_pull_us(times.fetch_us);
  result.set_compute_us(times.compute_us);
  result.set_push_us(times.give_us);
}

// What the coordinator should do about it: a server that was too slow is one that was lost.
Status AsClosureStatus(const Status& status) {
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return Unavailable("{}", Message(status));
}

}  // namespace

Result<std::unique_ptr<JobRun>> JobRun::Open(const v1::ExecutorStart& start,
                                             std::function<void()> on_group_over) {
  const v1::JobPlan& plan = start.start().plan();
  const v1::JobSpec& spec = start.start().spec();
  std::unique_ptr<JobRun> run(new JobRun);
  run->job_id_ = plan.job_id();
  run->view_ = ViewId(plan.view());
  run->number_ = Incarnation(start.start().program().incarnation());
  const v1::DataFiles& expected = start.start().data();
  MUSTER_TRY_ASSIGN(run->training_, OpenTrainingData(spec, start.cache_directory(), expected));
  if (spec.has_evaluation()) {
    MUSTER_TRY_ASSIGN(run->evaluation_,
                      OpenEvaluationData(spec, start.cache_directory(), expected));
  }
  TellBadRecords(run->training_->source(), kTraining);
  if (run->evaluation_) TellBadRecords(run->evaluation_->source(), kEvaluation);
  const std::vector<data::ColumnInfo> columns = run->training_->source().columns();
  if (!plan.ps().empty()) {
    MUSTER_TRY_ASSIGN(run->steps_, OpenPsSteps(start, columns));
  } else if (spec.strategy().kind() == v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED) {
    MUSTER_TRY_ASSIGN(run->steps_,
                      OpenGroupSteps(start, columns, *run->training_, std::move(on_group_over)));
  } else {
    MUSTER_TRY_ASSIGN(run->steps_, OpenLocalSteps(start, columns));
  }
  return run;
}

void JobRun::Expect(const v1::Closure& closure) {
  if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
    training_->Request(closure.id());
  } else if (evaluation_ != nullptr) {
    evaluation_->Request(closure.id());
  }
}

Result<v1::ClosureResult> JobRun::Run(const v1::ClosureAssignment& assignment, Attempt attempt) {
  const MutexLock lock(mutex_);
  if (attempt < least_attempt_) {
    return Aborted("closure {} is of a driver whose coordinator was lost",
                   assignment.closure().id());
  }
  v1::ClosureResult result;
  const ps::LinkBytes before = steps_->bytes();
  const Status status = assignment.closure().kind() == v1::CLOSURE_KIND_TRAIN
                            ? Train(assignment, attempt, result)
                            : Evaluate(assignment, result);
  if (!status.ok()) return AsClosureStatus(status);
  const ps::LinkBytes after = steps_->bytes();
  result.set_tcp_bytes(after.tcp - before.tcp);
  result.set_local_bytes(after.local - before.local);
  result.set_bad_records(training_->source().bad_records());
  result.set_executor(number_.value());
  return result;
}

Status JobRun::Train(const v1::ClosureAssignment& assignment, Attempt attempt,
                     v1::ClosureResult& result) {
  const std::uint64_t step = assignment.closure().id();
  Stopwatch watch;
  MUSTER_TRY_ASSIGN(const data::Element batch, training_->Take(step));
  result.set_read_us(watch.Lap());
  engine::StepTimes times;
  MUSTER_TRY_ASSIGN(*result.mutable_metrics(), steps_->Train(step, attempt, batch, times));
  SetTimes(times, result);
  return Ok();
}

// The coordinator has sent them already, another way.
bool JobRun::AwaitBuffers(std::uint64_t version) {
  const auto until = std::chrono::steady_clock::now() + kBuffersWait;
  while (buffers_version_ < version && buffers_changed_.wait_until(mutex_, until)) {
  }
  return buffers_version_ == version;
}

Status JobRun::Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result) {
  const std::uint64_t number = assignment.closure().id();
  if (evaluation_ == nullptr) {
    return FailedPrecondition("closure {}: the job has no evaluation", assignment.closure().id());
  }
  if (number == 0 || number > evaluation_->source().batches_per_epoch()) {
    return OutOfRange("evaluation batch {}: the data here has batches 1 to {}", number,
                      evaluation_->source().batches_per_epoch());
  }
  if (assignment.buffers() != 0 && !AwaitBuffers(assignment.buffers())) {
    return Unavailable("this executor has version {} of the buffers to evaluate with, not {}",
                       buffers_version_, assignment.buffers());
  }
  Stopwatch watch;
  MUSTER_TRY_ASSIGN(const data::Element batch, evaluation_->Take(number));
  result.set_read_us(watch.Lap());
  engine::StepTimes times;
  MUSTER_TRY_ASSIGN(*result.mutable_metrics(),
                    steps_->Evaluate(fmt::format("evaluation batch {}", number), batch, times));
  SetTimes(times, result);
  return Ok();
}

Result<v1::Piece> JobRun::Values(const v1::GetValues& request) {
  if (request.job_id() != job_id_ || ViewId(request.view()) != view_) {
    return Aborted("values of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
  const MutexLock lock(mutex_);
  if (request.offset() == 0) snapshot_ = steps_->Values(request.frozen()).SerializeAsString();
  if (request.offset() > snapshot_.size()) {
    return FailedPrecondition("values from byte {}; there are {}", request.offset(),
                              snapshot_.size());
  }
  v1::Piece piece;
  piece.set_total(snapshot_.size());
  piece.set_data(snapshot_.substr(request.offset(), kPieceBytes));
  if (request.offset() + piece.data().size() == snapshot_.size()) std::string().swap(snapshot_);
  return piece;
}

Status JobRun::SetBuffers(const v1::SetBuffers& request) {
  if (request.job_id() != job_id_ || ViewId(request.view()) != view_) return Ok();
  const MutexLock lock(mutex_);
  MUSTER_TRY(steps_->EvaluateWith(request.buffers()));
  buffers_version_ = request.version();
  buffers_changed_.notify_all();
  return Ok();
}

Result<std::uint64_t> JobRun::Adopt(Attempt least_attempt) {
  const MutexLock lock(mutex_);
  least_attempt_ = std::max(least_attempt_, least_attempt);
  return steps_->Done();
}

Result<v1::SaveReport> JobRun::Save(const v1::SaveVariables& request) {
  if (request.job_id() != job_id_ || ViewId(request.view()) != view_) {
    return Aborted("variables of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
  const MutexLock lock(mutex_);
  return steps_->Save(request.step(), request.directory());
}

Result<v1::GroupReport> JobRun::Join(const v1::JoinGroup& request) {
  if (request.job_id() != job_id_ || ViewId(request.view()) != view_) {
    return Aborted("a group of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
  return steps_->Join(request);
}

// What is wrong with the data itself stands in the report, all of it at once; an error sends the
// question to another host.
Result<v1::ProbeReport> ProbeData(const v1::ProbeData& request,
                                  const std::string& cache_directory) {
  const v1::JobSpec& spec = request.spec();
  const v1::Closure& closure = request.closure();
  v1::ProbeReport report;
  const auto look = [&](const v1::DataSpec& data, std::uint32_t batch_size, std::string_view what,
                        bool evaluation) -> Status {
    auto source = data::BatchSource::Open(data, {.cache_directory = cache_directory,
                                                 .seed = spec.seed(),
                                                 .batch_size = std::max(1u, batch_size),
                                                 .shuffle = !evaluation});
    if (!source.ok()) {
      if (IsHostsTrouble(source.status())) return Annotate(source.status(), what);
      report.add_problems(data::InSection(what, Message(source.status())));
      return Ok();
    }
    const std::uint64_t examples = (*source)->examples();
    if (examples == 0) report.add_problems(fmt::format("{}: no examples", what));
    if (evaluation) {
      report.set_evaluation_examples(examples);
    } else {
      report.set_training_examples(examples);
    }
    for (const data::FileState& file : (*source)->files()) {
      SetFile(file, evaluation ? *report.mutable_data()->add_evaluation()
                               : *report.mutable_data()->add_training());
    }
    if (closure.kind() == (evaluation ? v1::CLOSURE_KIND_EVALUATE : v1::CLOSURE_KIND_TRAIN)) {
      report.set_records((*source)->RecordsOf(closure.id()));
    }
    return Ok();
  };
  MUSTER_TRY(look(spec.data(), spec.batch_size(), kTraining, false));
  if (spec.has_evaluation()) {
    MUSTER_TRY(look(InOrder(spec.evaluation().data()), EvaluationBatch(spec), kEvaluation, true));
  }
  return report;
}

}  // namespace muster::executor
