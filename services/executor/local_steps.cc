// Steps under a strategy of one machine: every replica computes its part of the batch on its own
// device and thread, the strategy sums the gradients, and each copy of a variable is updated by the
// parameter servers' own rules.
//
// With `deterministic` a batch is always cut into kLogicalShards parts, and their gradients are
// summed pair by pair in one fixed order, whatever the number of devices: the same bits on any.
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

#include "common/config/job_yaml/limits.h"
#include "common/data/pipeline/element_ops.h"
#include "common/messages/metric_sums.h"
#include "common/storage/checkpoint.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/local_variables.h"
#include "services/executor/steps.h"
#include "strategy/base/error.h"
#include "strategy/base/random.h"
#include "strategy/core/replica_context.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "worker/engine/metrics.h"

namespace muster::executor {
namespace {

// Results that are kept for closures which are asked for again; at most two are in flight.
constexpr std::size_t kResultsKept = 16;

// Our functions below and above the public API return statuses.
template <class Function>
Status Guarded(const Function& function) {
  try {
    function();
    return Ok();
  } catch (const Error& error) {
    return MakeStatus(static_cast<StatusCode>(error.code()), error.message());
  } catch (const c10::OutOfMemoryError& error) {
    return ResourceExhausted("{}", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return Internal("{}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory");
  }
}

void Require(const Status& status) {
  if (!status.ok()) Raise(status);
}

std::unique_ptr<Strategy> MakeStrategy(const v1::StrategySpec& spec) {
  std::vector<std::string> devices;
  for (std::uint32_t i = 0; i < std::max(1u, spec.devices()); ++i) {
    devices.push_back("CPU:" + std::to_string(i));
  }
  switch (spec.kind()) {
    case v1::STRATEGY_KIND_ONE_DEVICE:
      return std::make_unique<OneDeviceStrategy>(devices[0]);
    case v1::STRATEGY_KIND_MIRRORED:
      return std::make_unique<MirroredStrategy>(devices);
    case v1::STRATEGY_KIND_CENTRAL_STORAGE:
      return std::make_unique<CentralStorageStrategy>(devices);
    default:
      Raise(InvalidArgument("the plan has no parameter servers, which strategy {} needs",
                            v1::StrategyKind_Name(spec.kind())));
  }
}

// What one part of a batch says of every variable. Rows and ids are undefined where it has none.
struct Gradients {
  std::vector<torch::Tensor> dense;
  std::vector<torch::Tensor> rows;
  std::vector<torch::Tensor> ids;
};

// Joins the rows of all parts, in their order; the rows of one id add up.
IndexedSlices JoinRows(const std::vector<IndexedSlices>& parts) {
  std::vector<torch::Tensor> all_ids, all_rows;
  for (const IndexedSlices& part : parts) {
    all_ids.push_back(part.indices);
    all_rows.push_back(part.values);
  }
  const torch::Tensor ids = torch::cat(all_ids).contiguous();
  const torch::Tensor rows = torch::cat(all_rows).contiguous();
  const auto* const id = ids.data_ptr<std::int64_t>();
  std::vector<std::int64_t> order(static_cast<std::size_t>(ids.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return id[i]; });
  std::int64_t unique = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || id[order[i]] != id[order[i - 1]]) ++unique;
  }
  const std::int64_t dim = rows.size(1);
  IndexedSlices joined{.values = torch::empty({unique, dim}, torch::kFloat),
                       .indices = torch::empty({unique}, torch::kLong)};
  float* to = joined.values.data_ptr<float>() - dim;
  std::int64_t* to_id = joined.indices.data_ptr<std::int64_t>() - 1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const float* const from = rows.data_ptr<float>() + order[i] * dim;
    if (i == 0 || id[order[i]] != *to_id) {
      to += dim;
      *++to_id = id[order[i]];
      std::copy_n(from, dim, to);
    } else {
      for (std::int64_t k = 0; k < dim; ++k) to[k] += from[k];
    }
  }
  return joined;
}

// One tree for any number of replicas: ((0+1)+(2+3))+((4+5)+(6+7)). Parts without examples count
// nothing. Sums land in the first part's tensors.
Gradients SumShards(Strategy&, const PerReplica<std::vector<Gradients>>& replicas) {
  const torch::NoGradGuard no_grad;
  std::vector<Gradients> parts;
  for (const std::vector<Gradients>& some : replicas.values()) {
    parts.insert(parts.end(), some.begin(), some.end());
  }
  for (std::size_t width = 1; width < parts.size(); width *= 2) {
    for (std::size_t i = 0; i + width < parts.size(); i += 2 * width) {
      for (std::size_t v = 0; v < parts[i].dense.size(); ++v) {
        parts[i].dense[v].add_(parts[i + width].dense[v]);
      }
    }
  }
  Gradients sums = parts[0];
  for (std::size_t e = 0; e < sums.rows.size(); ++e) {
    std::vector<IndexedSlices> slices;
    for (const Gradients& part : parts) slices.push_back({part.rows[e], part.ids[e]});
    const IndexedSlices joined = JoinRows(slices);
    sums.rows[e] = joined.values;
    sums.ids[e] = joined.indices;
  }
  return sums;
}

// One replica's side of a step: its model sees the values of its device; when all its parts have
// been given, their gradients meet those of the other replicas.
class ReplicaSource final : public engine::ParameterSource {
 public:
  ReplicaSource(LocalVariables& variables, const ModelVariables& ids, engine::Model& model,
                bool deterministic)
      : variables_(variables), ids_(ids), model_(model), deterministic_(deterministic) {
    lookup_rows_.resize(ids.embeddings.size());
  }

  // The next step has so many parts here.
  void Expect(std::size_t parts) {
    parts_.resize(parts);
    given_ = 0;
  }

  Status Fetch(bool train, std::span<engine::Lookup> lookups) override {
    return Guarded([&] {
      const torch::NoGradGuard no_grad;
      if (parts_.empty()) parts_.resize(1);
      if (given_ == parts_.size()) given_ = 0;
      MakeRoom(parts_[given_]);
      held_.clear();
      for (std::size_t i = 0; i < ids_.dense.size(); ++i) {
        held_.push_back(variables_.Value(ids_.dense[i]));
        Require(model_.Bind(i, held_.back().data_ptr<float>(),
                            parts_[given_].dense[i].data_ptr<float>()));
      }
      for (engine::Lookup& lookup : lookups) FetchRows(train, lookup);
    });
  }

  Status Give(std::uint64_t step, std::span<const engine::Lookup> lookups) override {
    return Guarded([&] {
      const torch::NoGradGuard no_grad;
      Gradients& part = parts_[given_];
      for (const engine::Lookup& lookup : lookups) {
        torch::Tensor& ids = part.ids[lookup.embedding];
        ids = torch::empty({static_cast<std::int64_t>(lookup.ids.size())}, torch::kLong);
        std::ranges::copy(lookup.ids, ids.data_ptr<std::int64_t>());
      }
      Given(step);
    });
  }

  // A part without examples.
  void GiveNothing(std::uint64_t step) {
    const torch::NoGradGuard no_grad;
    Gradients& part = parts_[given_];
    MakeRoom(part);
    for (const torch::Tensor& gradient : part.dense) gradient.zero_();
    for (std::size_t e = 0; e < ids_.embeddings.size(); ++e) {
      part.rows[e] = torch::empty({0, model_.embeddings()[e].dim}, torch::kFloat);
      part.ids[e] = torch::empty({0}, torch::kLong);
    }
    Given(step);
  }

 private:
  void MakeRoom(Gradients& part) const {
    for (std::size_t i = part.dense.size(); i < ids_.dense.size(); ++i) {
      part.dense.push_back(torch::empty(model_.parameters()[i].shape, torch::kFloat));
    }
    part.rows.resize(ids_.embeddings.size());
    part.ids.resize(ids_.embeddings.size());
  }

  void FetchRows(bool train, engine::Lookup& lookup) {
    const std::size_t e = lookup.embedding;
    const auto dim = static_cast<std::size_t>(model_.embeddings()[e].dim);
    std::vector<float>& rows = lookup_rows_[e];
    rows.resize(lookup.ids.size() * dim);
    const torch::Tensor table = variables_.Value(ids_.embeddings[e]);
    ps::GatherRows(table.data_ptr<float>(), dim, lookup.ids, rows.data());
    lookup.rows = rows;
    if (!train) return;
    torch::Tensor& gradient = parts_[given_].rows[e];
    gradient =
        torch::empty({static_cast<std::int64_t>(lookup.ids.size()), static_cast<std::int64_t>(dim)},
                     torch::kFloat);
    lookup.row_gradients = {gradient.data_ptr<float>(), rows.size()};
  }

  void Given(std::uint64_t step) {
    if (++given_ < parts_.size()) return;
    held_.clear();
    const Gradients sums = Reduce();
    for (std::size_t i = 0; i < ids_.dense.size(); ++i) {
      variables_.UpdateDense(ids_.dense[i], step, sums.dense[i]);
    }
    for (std::size_t e = 0; e < ids_.embeddings.size(); ++e) {
      variables_.UpdateRows(ids_.embeddings[e], step, {sums.rows[e], sums.ids[e]});
    }
  }

  Gradients Reduce() {
    ReplicaContext& replica = replica_context();
    if (deterministic_) return replica.merge_call(SumShards, parts_);
    if (replica.num_replicas_in_sync() == 1) return parts_[0];
    Gradients sums = parts_[0];
    if (!sums.dense.empty()) sums.dense = replica.all_reduce(ReduceOp::kSum, sums.dense);
    std::vector<IndexedSlices> slices;
    for (std::size_t e = 0; e < sums.rows.size(); ++e) {
      slices.push_back({sums.rows[e], sums.ids[e]});
    }
    if (slices.empty()) return sums;
    slices = replica.all_reduce(ReduceOp::kSum, slices);
    for (std::size_t e = 0; e < slices.size(); ++e) {
      const IndexedSlices joined = JoinRows({slices[e]});
      sums.rows[e] = joined.values;
      sums.ids[e] = joined.indices;
    }
    return sums;
  }

  LocalVariables& variables_;
  const ModelVariables& ids_;
  engine::Model& model_;
  const bool deterministic_;
  std::vector<Gradients> parts_;
  std::size_t given_ = 0;
  std::vector<torch::Tensor> held_;  // what the model is bound to
  std::vector<std::vector<float>> lookup_rows_;
};

class LocalSteps final : public Steps {
 public:
  LocalSteps(const v1::ExecutorStart& start, const std::vector<data::ColumnInfo>& columns)
      : strategy_(MakeStrategy(start.start().spec().strategy())),
        deterministic_(start.start().spec().strategy().deterministic()),
        replicas_(strategy_->num_replicas_in_sync()),
        parts_(deterministic_ ? static_cast<int>(config::kLogicalShards) : replicas_),
        threads_(deterministic_ ? 1 : std::max(1, static_cast<int>(start.threads()) / replicas_)),
        done_(start.start().plan().start_step()) {
    for (int r = 0; r < replicas_; ++r) {
      auto model = OpenModel(start, columns);
      Require(model.status());
      models_.push_back(*std::move(model));
    }
    const v1::JobPlan& plan = start.start().plan();
    auto ids = MatchVariables(*models_[0], plan);
    Require(ids.status());
    ids_ = *std::move(ids);
    variables_ = std::make_unique<LocalVariables>(
        *strategy_, plan, start.start().restore_from(), [&](std::uint32_t id) {
          const auto at = std::ranges::find(ids_.dense, id);
          return models_[0]->InitialValue(static_cast<std::size_t>(at - ids_.dense.begin()));
        });
    for (int r = 0; r < replicas_; ++r) {
      sources_.push_back(std::make_unique<ReplicaSource>(
          *variables_, ids_, *models_[static_cast<std::size_t>(r)], deterministic_));
    }
  }

  Result<v1::MetricSums> Train(std::uint64_t step, std::uint64_t attempt,
                               const data::Element& batch, engine::StepTimes& times) override;
  Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                  engine::StepTimes& times) override;

  v1::ModelValues Values(bool frozen) const override { return models_[0]->Values(frozen); }
  Status EvaluateWith(const v1::TensorSet& buffers) override {
    for (const auto& model : models_) MUSTER_TRY(model->EvaluateWith(buffers));
    return Ok();
  }

  Result<std::uint64_t> Done() const override {
    if (broken_) return FailedPrecondition("the update of step {} has failed", done_ + 1);
    return done_;
  }

  Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory) override {
    if (step != done_) {
      return FailedPrecondition("a checkpoint of step {} was asked for; {} steps are done here",
                                step, done_);
    }
    // A process that was stopped and wakes late must not write over what counts.
    MUSTER_TRY_ASSIGN(const bool committed, storage::IsCommitted(directory));
    if (committed) return Aborted("{} has been committed without this executor", directory);
    v1::SaveReport report;
    MUSTER_TRY(Guarded([&] { report = variables_->Save(directory); }));
    return report;
  }

 private:
  // A part's examples; no rows where the batch does not reach.
  struct Slice {
    int part = 0;
    std::int64_t rows = 0;
    data::Element batch;
  };
  // Calls body(replica, part's slice) for each part, on its replica's thread, and adds up what
  // comes back in the order of parts. Times are those of the first replica.
  using Body = std::function<Result<v1::MetricSums>(std::size_t replica, const Slice& slice,
                                                    engine::StepTimes& times)>;
  Result<v1::MetricSums> OnParts(const data::Element& batch, engine::StepTimes& times,
                                 const Body& body);

  const std::unique_ptr<Strategy> strategy_;
  const bool deterministic_;
  const int replicas_;
  const int parts_;
  const int threads_;
  ModelVariables ids_;
  std::vector<std::unique_ptr<engine::Model>> models_;
  std::unique_ptr<LocalVariables> variables_;
  std::vector<std::unique_ptr<ReplicaSource>> sources_;
  std::uint64_t done_;
  bool broken_ = false;
  std::deque<std::pair<std::uint64_t, v1::MetricSums>> results_;
};

Result<v1::MetricSums> LocalSteps::OnParts(const data::Element& batch, engine::StepTimes& times,
                                           const Body& body) {
  MUSTER_TRY_ASSIGN(const std::int64_t rows, data::Rows(batch));
  const std::int64_t most = (rows + parts_ - 1) / parts_;
  std::vector<v1::MetricSums> sums(static_cast<std::size_t>(parts_));
  MUSTER_TRY(Guarded([&] {
    strategy_->run([&] {
      const int replica = replica_context().replica_id_in_sync_group();
      if (torch::get_num_threads() != threads_) torch::set_num_threads(threads_);
      engine::StepTimes own;
      for (int part = replica * parts_ / replicas_; part < (replica + 1) * parts_ / replicas_;
           ++part) {
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

Result<v1::MetricSums> LocalSteps::Train(std::uint64_t step, std::uint64_t /*attempt*/,
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
  if (parts_ > 1) models_[0]->SeedStep(step);
  StepSeed seed;
  for (int r = 0; r < replicas_; ++r) {
    const int parts = (r + 1) * parts_ / replicas_ - r * parts_ / replicas_;
    sources_[static_cast<std::size_t>(r)]->Expect(static_cast<std::size_t>(parts));
  }
  auto sums = OnParts(
      batch, times,
      [&](std::size_t replica, const Slice& slice,
          engine::StepTimes& own) -> Result<v1::MetricSums> {
        if (slice.rows == 0) {
          sources_[replica]->GiveNothing(step);
          return v1::MetricSums();
        }
        const engine::Part part{static_cast<std::uint32_t>(slice.part),
                                static_cast<std::uint32_t>(parts_),
                                static_cast<double>(slice.rows) / static_cast<double>(rows)};
        std::optional<PartRandom> random;
        if (deterministic_) random.emplace(seed, slice.part);
        return engine::Train(*models_[replica], *sources_[replica], step, part, slice.batch, own);
      });
  if (!sums.ok()) {
    // Some copies may have been updated.
    broken_ = true;
    return sums;
  }
  done_ = step;
  results_.emplace_back(step, *sums);
  if (results_.size() > kResultsKept) results_.pop_front();
  return sums;
}

Result<v1::MetricSums> LocalSteps::Evaluate(const std::string& label, const data::Element& batch,
                                            engine::StepTimes& times) {
  return OnParts(batch, times,
                 [&](std::size_t replica, const Slice& slice,
                     engine::StepTimes& own) -> Result<v1::MetricSums> {
                   if (slice.rows == 0) return v1::MetricSums();
                   return engine::Evaluate(*models_[replica], *sources_[replica], label,
                                           slice.batch, own);
                 });
}

}  // namespace

Result<std::unique_ptr<Steps>> OpenLocalSteps(const v1::ExecutorStart& start,
                                              const std::vector<data::ColumnInfo>& columns) {
  std::unique_ptr<Steps> steps;
  MUSTER_TRY(Guarded([&] { steps = std::make_unique<LocalSteps>(start, columns); }));
  return steps;
}

}  // namespace muster::executor
