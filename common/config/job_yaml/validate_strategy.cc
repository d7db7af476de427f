#include "common/config/job_yaml/validate_strategy.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/core.h>

#include "common/base/job_limits.h"
#include "common/base/tpu_mesh.h"
#include "common/base/words.h"

namespace muster::config {
namespace {

constexpr std::uint32_t kMostShards = 100'000;

// The one that says how many at most.
const char* WorkersField(const v1::StrategySpec& strategy) {
  return strategy.max_workers() != 0 ? "strategy.max_workers" : "strategy.workers";
}

class StrategyCheck {
 public:
  StrategyCheck(const v1::JobSpec& spec, Problems& problems)
      : strategy_(spec.strategy()), batch_size_(spec.batch_size()), problems_(problems) {}

  void Run();

 private:
  template <class... Args>
  void Report(std::string path, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({std::move(path), fmt::format(text, std::forward<Args>(args)...)});
  }
  bool Is(v1::StrategyKind kind) const { return strategy_.kind() == kind; }

  void ParameterServer();
  void Consistency();
  void Partitioner();
  // The kinds that keep every variable whole.
  void WholeVariables();
  void Devices();
  void Workers();
  void Cores();
  // So many replicas at most: each needs an example, and with `deterministic` a logical shard.
  void Replicas(const std::string& path, std::uint64_t replicas, const std::string& what);

  const v1::StrategySpec& strategy_;
  const std::uint32_t batch_size_;
  Problems& problems_;
};

void StrategyCheck::Run() {
  const bool several = strategy_.kind() <= v1::STRATEGY_KIND_PARAMETER_SERVER ||
                       Is(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  if (!several && (strategy_.workers() != 0 || strategy_.max_workers() != 0)) {
    Report(strategy_.workers() != 0 ? "strategy.workers" : "strategy.max_workers",
           "belongs to parameter_server and multi_worker_mirrored; {} runs on one worker: remove "
           "it",
           NameOf(strategy_.kind()));
  }
  if (!Is(v1::STRATEGY_KIND_TPU) && !strategy_.topology().empty()) {
    Report("strategy.topology", "is for kind tpu; remove it");
  }
  if (strategy_.kind() <= v1::STRATEGY_KIND_PARAMETER_SERVER) return ParameterServer();
  WholeVariables();
  if (Is(v1::STRATEGY_KIND_TPU)) return Cores();
  Devices();
  if (Is(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED)) Workers();
}

void StrategyCheck::ParameterServer() {
  if (strategy_.has_devices()) {
    Report("strategy.devices", "has no meaning with parameter_server; remove it");
  }
  if (strategy_.deterministic()) {
    Report("strategy.deterministic",
           "has no meaning with parameter_server, whose workers update in any order; remove it, "
           "or use kind one_device, mirrored, central_storage, multi_worker_mirrored or tpu");
  }
  if (strategy_.has_partitioner()) Partitioner();
  (void)ValidateWorkers(strategy_, job_limits::kMostWorkers, problems_);
  Consistency();
}

void StrategyCheck::WholeVariables() {
  const std::pair<const char*, bool> servers_alone[] = {
      {"consistency", strategy_.has_consistency()},
      {"gradients_per_step", strategy_.gradients_per_step() != 0},
      {"speculative", strategy_.speculative() != 0},
      {"placement", strategy_.placement() != v1::PLACEMENT_KIND_UNSPECIFIED}};
  for (const auto& [field, given] : servers_alone) {
    if (!given) continue;
    Report(std::string("strategy.") + field,
           "is for parameter_server; the other kinds have all variables in each worker and make "
           "one step after the other: remove it");
  }
  if (!strategy_.has_partitioner()) return;
  const bool one_copy = Is(v1::STRATEGY_KIND_ONE_DEVICE) || Is(v1::STRATEGY_KIND_CENTRAL_STORAGE);
  Report("strategy.partitioner",
         "{} keeps every variable whole on {}; remove it, or use kind parameter_server",
         NameOf(strategy_.kind()),
         one_copy                    ? "its device"
         : Is(v1::STRATEGY_KIND_TPU) ? "each core"
                                     : "each device");
}

void StrategyCheck::Devices() {
  const bool one_device = Is(v1::STRATEGY_KIND_ONE_DEVICE);
  const std::uint32_t most = one_device                  ? 1
                             : strategy_.deterministic() ? job_limits::kLogicalShards
                                                         : job_limits::kMostDevices;
  if (strategy_.devices() > most || (strategy_.has_devices() && strategy_.devices() == 0)) {
    Report("strategy.devices", "from 1 to {}{}; given {}{}", most,
           strategy_.deterministic() && !one_device
               ? " with deterministic, the number of its logical shards"
               : "",
           strategy_.devices(),
           one_device && strategy_.devices() > 1 ? "; for more than one use kind mirrored" : "");
  } else if (batch_size_ != 0 && strategy_.devices() > batch_size_) {
    Report("strategy.devices",
           "{} devices have nothing to do with a batch_size of {}; use at most as "
           "many devices as the batch has examples",
           strategy_.devices(), batch_size_);
  }
}

void StrategyCheck::Replicas(const std::string& path, std::uint64_t replicas,
                             const std::string& what) {
  if (strategy_.deterministic() && replicas > job_limits::kLogicalShards) {
    Report(path, "{}: with deterministic at most {}, the number of its logical shards", what,
           job_limits::kLogicalShards);
  } else if (batch_size_ != 0 && replicas > batch_size_) {
    Report(path, "{}, and a batch_size of {}: each needs an example", what, batch_size_);
  }
}

void StrategyCheck::Workers() {
  const std::uint32_t most = std::max(strategy_.workers(), strategy_.max_workers());
  if (strategy_.workers() == 0) {
    return Report("strategy.workers",
                  "required with multi_worker_mirrored: how many workers make the steps together; "
                  "with max_workers, how many at least");
  }
  if (!ValidateWorkers(strategy_, job_limits::kMostStepWorkers, problems_)) return;
  const std::uint64_t devices = std::max(1u, strategy_.devices());
  Replicas(WorkersField(strategy_), most * devices,
           devices == 1 ? fmt::format("{} workers", most)
                        : fmt::format("{} workers with {} devices each", most, devices));
}

void StrategyCheck::Cores() {
  if (strategy_.has_devices()) {
    Report("strategy.devices", "has no meaning with tpu, whose topology says the cores: remove it");
  }
  if (strategy_.topology().empty()) {
    return Report("strategy.topology",
                  "required with tpu: chips along x, y and z and cores of a chip, such as 2x2x1x2");
  }
  const std::optional<std::uint32_t> cores = CoresOf(strategy_.topology());
  if (!cores) {
    return Report("strategy.topology",
                  "chips along x, y and z and cores of a chip, such as 2x2x1x2, each at least 1 "
                  "and at most {} cores in all; given '{}'",
                  kMostTpuCores, strategy_.topology());
  }
  Replicas("strategy.topology", *cores,
           fmt::format("{} in {}", Counted(*cores, "core"), strategy_.topology()));
}

// How far batches may run ahead of each other.
void StrategyCheck::Consistency() {
  const v1::ConsistencySpec& consistency = strategy_.consistency();
  const std::string path = "strategy.consistency";
  if (consistency.has_staleness()) {
    if (consistency.kind() != v1::CONSISTENCY_KIND_UNSPECIFIED) {
      Report(path + ".staleness", "goes without a kind: write {{staleness: k}}");
    } else if (consistency.staleness() == 0) {
      Report(path + ".staleness", "from 1; given 0, which is called synchronous");
    } else if (consistency.staleness() > job_limits::kMostStaleness) {
      Report(path + ".staleness", "at most {}; given {}", job_limits::kMostStaleness,
             consistency.staleness());
    }
  } else if (strategy_.has_consistency() &&
             consistency.kind() == v1::CONSISTENCY_KIND_UNSPECIFIED) {
    Report(path, "expected async, synchronous or {{staleness: k}}");
  }
  if (strategy_.speculative() > job_limits::kMostSpeculative) {
    Report("strategy.speculative", "at most {}; given {}", job_limits::kMostSpeculative,
           strategy_.speculative());
  } else if (strategy_.speculative() != 0 &&
             consistency.kind() != v1::CONSISTENCY_KIND_SYNCHRONOUS) {
    Report("strategy.speculative",
           "needs consistency: synchronous: a batch that is computed twice would be computed from "
           "different parameters");
  }
  if (strategy_.gradients_per_step() == 0) return;
  if (!consistency.has_staleness() && consistency.kind() != v1::CONSISTENCY_KIND_SYNCHRONOUS) {
    Report("strategy.gradients_per_step",
           "has no meaning with consistency async, where every batch is applied by itself; remove "
           "it, or say consistency: synchronous");
  } else if (strategy_.gradients_per_step() > job_limits::kMostGradients) {
    Report("strategy.gradients_per_step", "at most {}; given {}", job_limits::kMostGradients,
           strategy_.gradients_per_step());
  }
}

void StrategyCheck::Partitioner() {
  const v1::PartitionerSpec& partitioner = strategy_.partitioner();
  const std::string path = "strategy.partitioner";
  const v1::PartitionerKind kind = partitioner.kind();
  const bool min_size =
      kind == v1::PARTITIONER_KIND_MIN_SIZE || kind == v1::PARTITIONER_KIND_UNSPECIFIED;
  const bool max_size = kind == v1::PARTITIONER_KIND_MAX_SIZE;
  const bool fixed = kind == v1::PARTITIONER_KIND_FIXED;
  if (partitioner.min_shard_bytes() != 0 && !min_size) {
    Report(path + ".min_shard_bytes", "is for kind min_size only");
  }
  if (max_size == (partitioner.max_shard_bytes() == 0)) {
    Report(path + ".max_shard_bytes", "{}",
           max_size ? "required with kind max_size, above 0" : "is for kind max_size only");
  }
  if (fixed == (partitioner.num_shards() == 0)) {
    Report(path + ".num_shards", "{}",
           fixed ? "required with kind fixed, above 0" : "is for kind fixed only");
  }
  if (partitioner.max_shards() != 0 && !min_size && !max_size) {
    Report(path + ".max_shards", "is for kinds min_size and max_size only");
  }
  for (const auto& [name, value] : {std::pair("max_shards", partitioner.max_shards()),
                                    std::pair("num_shards", partitioner.num_shards())}) {
    if (value > kMostShards) Report(path + "." + name, "at most {}; given {}", kMostShards, value);
  }
}

}  // namespace

bool ValidateWorkers(const v1::StrategySpec& strategy, std::uint32_t most, Problems& problems) {
  const std::uint32_t wanted = std::max(strategy.workers(), strategy.max_workers());
  std::string problem;
  if (strategy.max_workers() != 0 && strategy.max_workers() < strategy.workers()) {
    problem = fmt::format("must not be below workers, {}; given {}", strategy.workers(),
                          strategy.max_workers());
  } else if (wanted > most) {
    problem = fmt::format("at most {}; given {}", most, wanted);
  }
  if (problem.empty()) return true;
  problems.push_back({WorkersField(strategy), std::move(problem)});
  return false;
}

void ValidateStrategy(const v1::JobSpec& spec, Problems& problems) {
  StrategyCheck(spec, problems).Run();
}

std::string NameOf(v1::StrategyKind kind) {
  if (kind == v1::STRATEGY_KIND_UNSPECIFIED) kind = v1::STRATEGY_KIND_PARAMETER_SERVER;
  // A journal that this version has read may be of a newer one.
  if (!v1::StrategyKind_IsValid(kind)) return fmt::format("number {}", static_cast<int>(kind));
  std::string name = v1::StrategyKind_Name(kind).substr(sizeof("STRATEGY_KIND_") - 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

std::optional<std::uint32_t> CoresOf(std::string_view topology) {
  const Result<TpuMesh> mesh = ParseTpuMesh(topology);
  if (!mesh.ok()) return std::nullopt;
  const auto& [x, y, z, cores] = *mesh;
  return static_cast<std::uint32_t>(x * y * z * cores);
}

}  // namespace muster::config
