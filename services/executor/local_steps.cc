#include "services/executor/local_steps.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "common/base/mutex.h"
#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/data/pipeline/element_ops.h"
#include "common/messages/metric_sums.h"
#include "common/storage/checkpoint.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "strategy/base/random.h"
#include "strategy/core/replica_context.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/tpu/tpu_strategy.h"
#include "strategy/tpu/tpu_system.h"
#include "worker/engine/metrics.h"

namespace muster::executor {
namespace {

// Results that are kept for closures which are asked for again; at most two are in flight.
constexpr std::size_t kResultsKept = 16;

std::unique_ptr<Strategy> MakeStrategy(const v1::StrategySpec& spec) {
  std::vector<std::string> devices;
  for (std::uint32_t i = 0; i < std::max(1u, spec.devices()); ++i) {
    devices.push_back("CPU:" + std::to_string(i));
  }
  switch (spec.kind()) {
    case v1::STRATEGY_KIND_ONE_DEVICE:
      return std::make_unique<OneDeviceStrategy>(devices[0]);
    case v1::STRATEGY_KIND_MIRRORED:
    case v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED:
      return std::make_unique<MirroredStrategy>(devices);
    case v1::STRATEGY_KIND_CENTRAL_STORAGE:
      return std::make_unique<CentralStorageStrategy>(devices);
    case v1::STRATEGY_KIND_TPU:
      (void)initialize_tpu_system({.topology = spec.topology()});
      return std::make_unique<TPUStrategy>();
    default:
      Raise(InvalidArgument("the plan has no parameter servers, which strategy {} needs",
                            v1::StrategyKind_Name(spec.kind())));
  }
}

// How far a member is, as it tells the others.
enum : std::size_t { kHas, kGeneration, kDone, kReach, kResult };

// At once: the generator that is seeded, and drawn from, is the whole process's.
void SeedParts(const engine::Model& model, std::uint64_t step, StepSeed& seed) {
  static Mutex mutex;
  const MutexLock lock(mutex);
  model.SeedStep(step);
  (void)seed.OfReplica(0);
}

}  // namespace

LocalSteps::LocalSteps(const v1::ExecutorStart& start, const std::vector<data::ColumnInfo>& columns)
    : strategy_(MakeStrategy(start.start().spec().strategy())),
      deterministic_(start.start().spec().strategy().deterministic()),
      replicas_(strategy_->num_replicas_in_sync()),
      threads_(deterministic_ ? 1 : std::max(1, static_cast<int>(start.threads()) / replicas_)),
      has_variables_(!start.start().joins()),
      done_(has_variables_ ? start.start().plan().start_step() : 0) {
  for (int r = 0; r < replicas_; ++r) {
    auto model = OpenModel(start, columns);
    Require(model.status());
    models_.push_back(*std::move(model));
  }
  v1::JobPlan plan = start.start().plan();
  auto ids = MatchVariables(*models_[0], plan);
  Require(ids.status());
  ids_ = *std::move(ids);
  // Who joins begins with any values: they are another member's soon.
  if (!has_variables_) plan.set_start_step(0);
  variables_ = std::make_unique<LocalVariables>(
      *strategy_, plan, start.start().restore_from(), [&](std::uint32_t id) {
        const auto at = std::ranges::find(ids_.dense, id);
        return models_[0]->InitialValue(static_cast<std::size_t>(at - ids_.dense.begin()));
      });
  for (int r = 0; r < replicas_; ++r) {
    sources_.push_back(
        std::make_unique<ReplicaSource>(*variables_, ids_, *models_[static_cast<std::size_t>(r)]));
  }
}

v1::ModelValues LocalSteps::Values(bool frozen) const { return models_[0]->Values(frozen); }

Status LocalSteps::EvaluateWith(const v1::TensorSet& buffers) {
  for (const auto& model : models_) MUSTER_TRY(model->EvaluateWith(buffers));
  return Ok();
}

Result<std::uint64_t> LocalSteps::Done() const {
  if (broken_) return FailedPrecondition("the update of step {} has failed", done_ + 1);
  return done_;
}

Result<v1::SaveReport> LocalSteps::Save(std::uint64_t step, const std::string& directory) {
  MUSTER_TRY(Done().status());
  if (step != done_) {
    return FailedPrecondition("a checkpoint of step {} was asked for; {} steps are done here", step,
                              done_);
  }
  // A process that was stopped and wakes late must not write over what counts.
  MUSTER_TRY_ASSIGN(const bool committed, storage::IsCommitted(directory));
  if (committed) return Aborted("{} has been committed without this executor", directory);
  v1::SaveReport report;
  MUSTER_TRY(Guarded([&] { report = variables_->Save(directory); }));
  return report;
}

LocalSteps::PartRange LocalSteps::PartsOf(int replica, int parts, int replicas) const {
  return {replica * parts / replicas, (replica + 1) * parts / replicas};
}

Result<v1::MetricSums> LocalSteps::OnParts(const data::Element& batch, int parts, int first_replica,
                                           int all_replicas, engine::StepTimes& times,
                                           const Body& body) {
  MUSTER_TRY_ASSIGN(const std::int64_t rows, data::Rows(batch));
  const std::int64_t most = (rows + parts - 1) / parts;
  std::vector<v1::MetricSums> sums(static_cast<std::size_t>(parts));
  MUSTER_TRY(Guarded([&] {
    strategy_->run([&] {
      const int replica = replica_context().replica_id_in_sync_group();
      if (torch::get_num_threads() != threads_) torch::set_num_threads(threads_);
      engine::StepTimes own;
      const PartRange range = PartsOf(first_replica + replica, parts, all_replicas);
      for (int part = range.begin; part < range.end; ++part) {
        const std::int64_t begin = std::min(rows, part * most);
        const std::int64_t end = std::min(rows, begin + most);
        auto result = body(static_cast<std::size_t>(replica),
                           {part, end - begin, data::SliceRows(batch, begin, end)}, own);
        Require(result.status());
        sums[static_cast<std::size_t>(part)] = *std::move(result);
      }
      if (replica == 0) times = own;
    });
  }));
  v1::MetricSums total;
  for (const v1::MetricSums& one : sums) AddSums(one, total);
  return total;
}

// Step `done_` + 1, on all replicas. A step that was made is answered with what it gave; once an
// update has failed halfway every later one is refused, since copies may differ.
Result<v1::MetricSums> LocalSteps::Train(std::uint64_t step, Attempt /*attempt*/,
                                         const data::Element& batch, engine::StepTimes& times) {
  if (broken_) return Internal("step {}: the update of a step before it has failed", step);
  if (step <= done_) {
    // Its result was lost on the way; it is not applied again.
    const auto found = std::ranges::find(results_, step, [](const auto& one) { return one.first; });
    return found == results_.end() ? v1::MetricSums() : found->second;
  }
  if (step != done_ + 1) {
    return Unavailable("step {} before step {}: steps are made in order", step, done_ + 1);
  }
  MUSTER_TRY_ASSIGN(const std::int64_t rows, data::Rows(batch));
  const int parts = this->parts();
  const int all_replicas = members() * replicas_;
  StepSeed seed;
  if (parts > 1) SeedParts(*models_[0], step, seed);
  Meeting meeting;
  std::optional<v1::MetricSums> gathered;
  if (deterministic_ || group_ != nullptr) {
    meeting = [&](std::uint64_t number, std::vector<PartResult> given) {
      PartResult sums = Gathered(number, std::move(given));
      gathered = sums.metrics;
      return sums;
    };
  }
  for (int r = 0; r < replicas_; ++r) {
    const PartRange range = PartsOf(first_replica() + r, parts, all_replicas);
    sources_[static_cast<std::size_t>(r)]->Expect(static_cast<std::size_t>(range.end - range.begin),
                                                  meeting);
  }
  updating_ = group_ == nullptr;
  auto sums = OnParts(
      batch, parts, first_replica(), all_replicas, times,
      [&](std::size_t replica, const Slice& slice,
          engine::StepTimes& own) -> Result<v1::MetricSums> {
        if (slice.rows == 0) {
          sources_[replica]->GiveNothing(step);
          return v1::MetricSums();
        }
        const engine::Part part{static_cast<std::uint32_t>(slice.part),
                                static_cast<std::uint32_t>(parts),
                                static_cast<double>(slice.rows) / static_cast<double>(rows)};
        std::optional<PartRandom> random;
        if (deterministic_ || group_ != nullptr) random.emplace(seed, slice.part);
        return engine::Train(*models_[replica], *sources_[replica], step, part, slice.batch, own);
      });
  if (!sums.ok()) {
    // Some copies may have been updated.
    broken_ = updating_;
    if (group_ != nullptr) group_->Abort(sums.status());
    return sums;
  }
  if (gathered) sums = *gathered;
  pending_.reset();
  Finish(step, *sums);
  return sums;
}

void LocalSteps::Finish(std::uint64_t step, const v1::MetricSums& sums) {
  done_ = step;
  results_.emplace_back(step, sums);
  if (results_.size() > kResultsKept) results_.pop_front();
}

// When the barrier is passed all members have the sums: the step counts, whoever is lost now.
PartResult LocalSteps::Gathered(std::uint64_t step, std::vector<PartResult> parts) {
  if (on_computed_ && group_ != nullptr) on_computed_();
  PartResult sums = SumParts(std::move(parts), deterministic_, step, group_);
  if (group_ == nullptr) return sums;
  pending_ = Pending{step, sums};
  Require(group_->Barrier(kStepWithin));
  updating_ = true;
  return sums;
}

Result<v1::MetricSums> LocalSteps::Evaluate(const std::string& label, const data::Element& batch,
                                            engine::StepTimes& times) {
  return OnParts(batch, deterministic_ ? kShards : replicas_, 0, replicas_, times,
                 [&](std::size_t replica, const Slice& slice,
                     engine::StepTimes& own) -> Result<v1::MetricSums> {
                   if (slice.rows == 0) return v1::MetricSums();
                   return engine::Evaluate(*models_[replica], *sources_[replica], label,
                                           slice.batch, own);
                 });
}

// ---- Members that find together

// All say how far they are, and go to the furthest step that each has the sums of: those one behind
// apply them, those without variables take a donor's.
Status LocalSteps::Meet(collectives::Group* group, Generation generation) {
  group_ = group;
  if (broken_) return Internal("the update of step {} has failed", done_ + 1);
  const bool holds = pending_ && pending_->step == done_ + 1;
  const std::uint64_t reach = holds ? pending_->step : done_;
  std::vector<std::int64_t> mine{
      has_variables_ ? 1 : 0, static_cast<std::int64_t>(generation_.value()),
      static_cast<std::int64_t>(done_), static_cast<std::int64_t>(reach)};
  v1::MetricSums last;
  if (holds) {
    last = pending_->sums.metrics;
  } else if (!results_.empty()) {
    last = results_.back().second;
  }
  const std::vector<std::int64_t> packed = Packed(last.SerializeAsString());
  mine.insert(mine.end(), packed.begin(), packed.end());
  std::vector<std::vector<std::int64_t>> all{mine};
  if (group != nullptr) {
    MUSTER_TRY_ASSIGN(all, group->Exchange("how far the members are", mine, kStepWithin));
  }
  // Those of the latest group in which all had met: others may have missed steps.
  std::int64_t latest = -1;
  for (const auto& one : all) {
    if (one[kHas] != 0) latest = std::max(latest, one[kGeneration]);
  }
  if (latest < 0) return Unavailable("no member of the group has the job's variables");
  const auto counts = [&](const std::vector<std::int64_t>& one) {
    return one[kHas] != 0 && one[kGeneration] == latest;
  };
  const auto donor = std::ranges::find_if(all, counts);
  std::int64_t target = (*donor)[kReach];
  std::int64_t done = 0;
  bool all_count = true;
  for (const auto& one : all) {
    if (!counts(one)) {
      all_count = false;
      continue;
    }
    target = std::min(target, one[kReach]);
    done = std::max(done, one[kDone]);
  }
  // Nobody finishes a step that not all have the sums of.
  if (done > target) return Internal("step {} is done, and {} is all that is left", done, target);
  const bool takes = !counts(mine);
  const auto step = static_cast<std::uint64_t>(target);
  if (!takes && done_ < step) MUSTER_TRY(Guarded([&] { FinishPending(); }));
  pending_.reset();
  if (!all_count) {
    MUSTER_TRY(Guarded(
        [&] { TakeVariables(*group, static_cast<int>(donor - all.begin()), takes, step); }));
    if (takes) {
      v1::MetricSums result;
      const std::vector<std::int64_t> theirs(donor->begin() + kResult, donor->end());
      if (result.ParseFromString(Unpacked(theirs))) Finish(step, result);
    }
  }
  generation_ = generation;
  return Ok();
}

void LocalSteps::FinishPending() {
  const Pending pending = *pending_;
  broken_ = true;
  strategy_->run([&] {
    const auto replica = static_cast<std::size_t>(replica_context().local_replica_id());
    sources_[replica]->Apply(pending.step, pending.sums);
  });
  broken_ = false;
  Finish(pending.step, pending.sums.metrics);
}

void LocalSteps::TakeVariables(collectives::Group& group, int donor, bool takes,
                               std::uint64_t step) {
  const torch::NoGradGuard no_grad;
  if (takes) has_variables_ = false;
  variables_->ForEach([&](const Variable& variable) {
    const torch::Tensor value = variable.component(0).value().clone();
    Require(group.Broadcast({static_cast<std::byte*>(value.data_ptr()), value.nbytes()}, donor,
                            kStepWithin));
    if (takes) variable.assign(value, /*read_value=*/false);
  });
  if (!takes) return;
  has_variables_ = true;
  done_ = step;
  results_.clear();
}

Result<std::unique_ptr<Steps>> OpenLocalSteps(const v1::ExecutorStart& start,
                                              const std::vector<data::ColumnInfo>& columns) {
  std::unique_ptr<Steps> steps;
  MUSTER_TRY(Guarded([&] { steps = std::make_unique<LocalSteps>(start, columns); }));
  return steps;
}

}  // namespace muster::executor
