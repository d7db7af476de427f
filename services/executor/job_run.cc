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

namespace muster::executor {
namespace {

constexpr std::size_t kPieceBytes = 4 << 20;

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

// What errors of the two kinds of data begin with; the coordinator goes by it (StartExecutor).
constexpr std::string_view kTraining = "data";
constexpr std::string_view kEvaluation = "evaluation.data";

using DataFiles = google::protobuf::RepeatedPtrField<v1::DataFile>;

void SetFile(const data::FileState& state, v1::DataFile& file) {
  file.set_path(state.path);
  file.set_size(state.size);
  file.set_mtime_ns(state.mtime_ns);
  file.set_records(state.records);
  file.set_index_hash(state.index_hash);
}

Result<std::unique_ptr<BatchReader>> OpenReader(const v1::DataSpec& spec,
                                                data::BatchSource::Options options,
                                                const DataFiles& expected, std::string_view what) {
  for (const v1::DataFile& file : expected) {
    options.expected.push_back({.path = file.path(),
                                .size = file.size(),
                                .mtime_ns = file.mtime_ns(),
                                .records = file.records(),
                                .index_hash = file.index_hash()});
  }
  auto source = data::BatchSource::Open(spec, std::move(options));
  if (!source.ok()) {
    return MakeStatus(source.status().code(), data::InSection(what, Message(source.status())));
  }
  return std::make_unique<BatchReader>(*std::move(source));
}

// Which batch it is: an evaluation closure's number without its round.
std::uint64_t BatchNumber(const v1::Closure& closure) {
  return closure.kind() == v1::CLOSURE_KIND_EVALUATE ? EvaluationId(closure.id()).batch()
                                                     : closure.id();
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

std::uint32_t EvaluationBatch(const v1::JobSpec& spec) {
  return spec.evaluation().batch_size() != 0 ? spec.evaluation().batch_size() : spec.batch_size();
}

// Evaluation reads in order, whatever its data says.
v1::DataSpec InOrder(v1::DataSpec spec) {
  spec.set_shuffle(false);
  spec.set_drop_remainder(false);
  return spec;
}

// What the coordinator should do about it: a server that was too slow is one that was lost.
Status AsClosureStatus(const Status& status) {
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return Unavailable("{}", Message(status));
}

}  // namespace

Result<std::unique_ptr<JobRun>> JobRun::Open(const v1::ExecutorStart& start,
                                             const std::string& token) {
  const v1::JobPlan& plan = start.start().plan();
  const v1::JobSpec& spec = start.start().spec();
  std::unique_ptr<JobRun> run(new JobRun);
  run->job_id_ = plan.job_id();
  run->view_ = plan.view();
  const v1::DataFiles& expected = start.start().data();
  data::BatchSource::Options options{.cache_directory = start.cache_directory(),
                                     .seed = spec.seed(),
                                     .batch_size = spec.batch_size()};
  MUSTER_TRY_ASSIGN(run->training_,
                    OpenReader(spec.data(), options, expected.training(), kTraining));
  if (spec.has_evaluation()) {
    options.batch_size = EvaluationBatch(spec);
    options.shuffle = false;
    MUSTER_TRY_ASSIGN(run->evaluation_, OpenReader(InOrder(spec.evaluation().data()), options,
                                                   expected.evaluation(), kEvaluation));
  }
  TellBadRecords(run->training_->source(), kTraining);
  if (run->evaluation_) TellBadRecords(run->evaluation_->source(), kEvaluation);
  const std::vector<data::ColumnInfo> columns = run->training_->source().columns();
  MUSTER_TRY_ASSIGN(run->steps_, plan.ps().empty() ? OpenLocalSteps(start, columns)
                                                   : OpenPsSteps(start, columns, token));
  return run;
}

void JobRun::Expect(const v1::ClosureAssignment& assignment) {
  if (assignment.job_id() != job_id_ || assignment.view() != view_) return;
  const v1::Closure& closure = assignment.closure();
  if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
    training_->Request(closure.id());
  } else if (evaluation_ != nullptr) {
    evaluation_->Request(BatchNumber(closure));
  }
}

v1::ClosureResult JobRun::Run(const v1::ClosureAssignment& assignment) {
  v1::ClosureResult result;
  const ps::LinkBytes before = steps_->bytes();
  Status status;
  if (assignment.job_id() != job_id_ || assignment.view() != view_) {
    status = Aborted("closure of job {} view {}; this executor serves job {} view {}",
                     assignment.job_id(), assignment.view(), job_id_, view_);
  } else if (assignment.closure().kind() == v1::CLOSURE_KIND_TRAIN) {
    status = Train(assignment, result);
  } else if (assignment.closure().kind() == v1::CLOSURE_KIND_EVALUATE) {
    status = Evaluate(assignment, result);
  } else {
    status = InvalidArgument("closure kind {} is none that this executor knows",
                             static_cast<int>(assignment.closure().kind()));
  }
  status = AsClosureStatus(status);
  result.set_job_id(assignment.job_id());
  result.set_view(assignment.view());
  *result.mutable_closure() = assignment.closure();
  result.set_attempt(assignment.attempt());
  SetStatus(status, *result.mutable_status());
  const ps::LinkBytes after = steps_->bytes();
  result.set_tcp_bytes(after.tcp - before.tcp);
  result.set_local_bytes(after.local - before.local);
  result.set_bad_records(training_->source().bad_records());
  return result;
}

Status JobRun::Train(const v1::ClosureAssignment& assignment, v1::ClosureResult& result) {
  const std::uint64_t step = assignment.closure().id();
  Stopwatch watch;
  MUSTER_TRY_ASSIGN(const data::Element batch, training_->Take(step));
  result.set_read_us(watch.Lap());
  engine::StepTimes times;
  MUSTER_TRY_ASSIGN(*result.mutable_metrics(),
                    steps_->Train(step, assignment.attempt(), batch, times));
  SetTimes(times, result);
  return Ok();
}

Status JobRun::Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result) {
  const std::uint64_t number = BatchNumber(assignment.closure());
  if (evaluation_ == nullptr) {
    return FailedPrecondition("closure {}: the job has no evaluation", assignment.closure().id());
  }
  if (number == 0 || number > evaluation_->source().batches_per_epoch()) {
    return OutOfRange("evaluation batch {}: the data here has batches 1 to {}", number,
                      evaluation_->source().batches_per_epoch());
  }
  if (assignment.buffers() != buffers_version_) {
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
  if (request.job_id() != job_id_ || request.view() != view_) {
    return Aborted("values of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
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
  if (request.job_id() != job_id_ || request.view() != view_) return Ok();
  MUSTER_TRY(steps_->EvaluateWith(request.buffers()));
  buffers_version_ = request.version();
  return Ok();
}

Result<v1::SaveReport> JobRun::Save(const v1::SaveVariables& request) {
  if (request.job_id() != job_id_ || request.view() != view_) {
    return Aborted("variables of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
  return steps_->Save(request.step(), request.directory());
}

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
      report.set_records((*source)->RecordsOf(BatchNumber(closure)));
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
