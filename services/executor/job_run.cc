#include "services/executor/job_run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "common/base/suggest.h"
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

Result<ps::LinkMode> LinkModeOf(const std::string& name) {
  if (name.empty() || name == "auto") return ps::LinkMode::kAuto;
  if (name == "tcp") return ps::LinkMode::kTcp;
  if (name == "local") return ps::LinkMode::kLocal;
  return InvalidArgument("link \"{}\": wanted auto, tcp or local", name);
}

Result<std::unique_ptr<BatchReader>> OpenReader(const v1::DataSpec& spec, const std::string& cache,
                                                std::uint64_t seed, std::uint32_t batch_size,
                                                bool shuffle) {
  MUSTER_TRY_ASSIGN(auto source, data::BatchSource::Open(spec, {.cache_directory = cache,
                                                                .seed = seed,
                                                                .batch_size = batch_size,
                                                                .shuffle = shuffle}));
  return std::make_unique<BatchReader>(std::move(source));
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
  MUSTER_TRY_ASSIGN(run->training_, OpenReader(spec.data(), start.cache_directory(), spec.seed(),
                                               spec.batch_size(), /*shuffle=*/true));
  if (spec.has_evaluation()) {
    MUSTER_TRY_ASSIGN(run->evaluation_,
                      OpenReader(InOrder(spec.evaluation().data()), start.cache_directory(),
                                 spec.seed(), EvaluationBatch(spec), /*shuffle=*/false));
  }
  MUSTER_TRY_ASSIGN(run->model_, engine::Model::Create(spec, {start.archive_path(),
                                                              run->training_->source().columns()}));
  if (start.start().has_buffers()) MUSTER_TRY(run->model_->SetBuffers(start.start().buffers()));
  ps::PsClient::Options options;
  options.token = token;
  options.host_id = start.host_id();
  MUSTER_TRY_ASSIGN(options.link, LinkModeOf(start.link()));
  MUSTER_TRY_ASSIGN(run->client_, ps::PsClient::Connect(plan, std::move(options)));
  MUSTER_TRY(run->MatchVariables(start));
  if (start.start().assign_initial_values()) MUSTER_TRY(run->GiveInitialValues(start));
  MUSTER_TRY(run->BindParameters());
  return run;
}

Status JobRun::MatchVariables(const v1::ExecutorStart& start) {
  const auto& variables = start.start().plan().variables();
  const auto find = [&](const std::string& name, bool embedding,
                        const std::vector<std::int64_t>& shape) -> Result<std::uint32_t> {
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
  for (const engine::ParameterInfo& parameter : model_->parameters()) {
    MUSTER_TRY_ASSIGN(dense_.emplace_back(), find(parameter.name, false, parameter.shape));
  }
  for (const engine::EmbeddingInfo& info : model_->embeddings()) {
    MUSTER_TRY_ASSIGN(embedding_.emplace_back(), find(info.name, true, {info.rows, info.dim}));
  }
  return Ok();
}

Status JobRun::GiveInitialValues(const v1::ExecutorStart& start) {
  if (start.archive_path().empty()) return Ok();
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    const Status status = client_->Assign(dense_[i], model_->InitialValue(i));
    // Training has begun, so an executor before this one has given them.
    if (status.code() == StatusCode::kFailedPrecondition) return Ok();
    if (!status.ok()) {
      return Annotate(status, "initial value of " + model_->parameters()[i].name);
    }
  }
  return Ok();
}

Status JobRun::BindParameters() {
  for (std::size_t i = 0; i < dense_.size(); ++i) {
    const std::span<float> value = client_->Value(dense_[i]);
    const std::span<float> gradient = client_->Gradient(dense_[i]);
    const auto elements = static_cast<std::size_t>(model_->parameters()[i].elements);
    if (value.size() != elements || gradient.size() != elements) {
      return Internal("variable {}: memory for {} values, the model has {}",
                      model_->parameters()[i].name, value.size(), elements);
    }
    MUSTER_TRY(model_->Bind(i, value.data(), gradient.data()));
  }
  return Ok();
}

void JobRun::Expect(const v1::ClosureAssignment& assignment) {
  if (assignment.job_id() != job_id_ || assignment.view() != view_) return;
  const v1::Closure& closure = assignment.closure();
  if (closure.kind() == v1::CLOSURE_KIND_TRAIN) {
    training_->Request(closure.id());
  } else if (evaluation_ != nullptr) {
    evaluation_->Request(closure.id() & 0xffffffff);
  }
}

v1::ClosureResult JobRun::Run(const v1::ClosureAssignment& assignment) {
  v1::ClosureResult result;
  const ps::LinkBytes before = client_->bytes();
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
  result.mutable_status()->set_code(static_cast<int>(status.code()));
  result.mutable_status()->set_message(Message(status));
  const ps::LinkBytes after = client_->bytes();
  result.set_tcp_bytes(after.tcp - before.tcp);
  result.set_local_bytes(after.local - before.local);
  result.set_bad_records(training_->source().bad_records());
  return result;
}

Result<std::vector<engine::Lookup>> JobRun::Pull(const data::Element& batch,
                                                 v1::ClosureResult& result) {
  MUSTER_TRY_ASSIGN(std::vector<engine::Lookup> lookups, model_->FindRows(batch));
  Stopwatch watch;
  MUSTER_TRY(client_->PullDense(dense_));
  for (engine::Lookup& lookup : lookups) {
    const std::uint32_t variable = embedding_[lookup.embedding];
    MUSTER_TRY_ASSIGN(lookup.rows, client_->PullRows(variable, lookup.ids));
  }
  result.set_pull_us(watch.Lap());
  return lookups;
}

Status JobRun::Push(const v1::ClosureAssignment& assignment, std::vector<engine::Lookup>& lookups,
                    v1::ClosureResult& result) {
  std::vector<ps::RowGradient> rows;
  for (const engine::Lookup& lookup : lookups) {
    rows.push_back({embedding_[lookup.embedding], lookup.ids, lookup.row_gradients});
  }
  Stopwatch watch;
  MUSTER_TRY(client_->Push(assignment.closure().id(), assignment.attempt(), dense_, rows));
  result.set_push_us(watch.Lap());
  return Ok();
}

Status JobRun::Train(const v1::ClosureAssignment& assignment, v1::ClosureResult& result) {
  const std::uint64_t step = assignment.closure().id();
  Stopwatch watch;
  MUSTER_TRY_ASSIGN(const data::Element batch, training_->Take(step));
  result.set_read_us(watch.Lap());
  MUSTER_TRY_ASSIGN(std::vector<engine::Lookup> lookups, Pull(batch, result));
  for (engine::Lookup& lookup : lookups) {
    MUSTER_TRY_ASSIGN(lookup.row_gradients,
                      client_->RowGradientBuffer(embedding_[lookup.embedding], lookup.ids.size()));
  }
  watch.Lap();
  MUSTER_TRY_ASSIGN(*result.mutable_metrics(), model_->TrainStep(step, batch, lookups));
  result.set_compute_us(watch.Lap());
  return Push(assignment, lookups, result);
}

Status JobRun::Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result) {
  const std::uint64_t number = assignment.closure().id() & 0xffffffff;
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
  MUSTER_TRY_ASSIGN(const std::vector<engine::Lookup> lookups, Pull(batch, result));
  watch.Lap();
  MUSTER_TRY_ASSIGN(*result.mutable_metrics(),
                    model_->Evaluate(fmt::format("evaluation batch {}", number), batch, lookups));
  result.set_compute_us(watch.Lap());
  return Ok();
}

Result<v1::Piece> JobRun::Values(const v1::GetValues& request) {
  if (request.job_id() != job_id_ || request.view() != view_) {
    return Aborted("values of job {} view {}; this executor serves job {} view {}",
                   request.job_id(), request.view(), job_id_, view_);
  }
  if (request.offset() == 0) snapshot_ = model_->Values(request.frozen()).SerializeAsString();
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
  MUSTER_TRY(model_->EvaluateWith(request.buffers()));
  buffers_version_ = request.version();
  return Ok();
}

v1::ProbeReport ProbeData(const v1::JobSpec& spec, const std::string& cache_directory) {
  v1::ProbeReport report;
  const auto count = [&](const v1::DataSpec& data, std::uint32_t batch_size, std::string_view what,
                         auto set) {
    auto source = data::BatchSource::Open(
        data, {.cache_directory = cache_directory, .seed = spec.seed(), .batch_size = batch_size});
    if (!source.ok()) {
      report.add_problems(fmt::format("{}: {}", what, Message(source.status())));
    } else if ((*source)->examples() == 0) {
      report.add_problems(fmt::format("{}: no examples", what));
    } else {
      set((*source)->examples());
    }
  };
  count(spec.data(), std::max(1u, spec.batch_size()), "data",
        [&](std::uint64_t n) { report.set_training_examples(n); });
  if (spec.has_evaluation()) {
    count(InOrder(spec.evaluation().data()), std::max(1u, EvaluationBatch(spec)), "evaluation.data",
          [&](std::uint64_t n) { report.set_evaluation_examples(n); });
  }
  return report;
}

}  // namespace muster::executor
