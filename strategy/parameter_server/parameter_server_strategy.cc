#include "strategy/parameter_server/parameter_server_strategy.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <mutex>
#include <utility>

#include "program/executor_endpoint.h"
#include "program/runtime.h"
#include <fmt/format.h>

#include "common/base/job_limits.h"
#include "muster/v1/program.pb.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/stderr_line.h"
#include "strategy/cluster/worker_context.h"
#include "strategy/core/internal/strategy_ref.h"
#include "strategy/kinds/internal/places.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/parameter_server/internal/connection.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/parameter_server/internal/remote_module.h"
#include "strategy/parameter_server/internal/strategies.h"
#include "strategy/variables/variable.h"

namespace muster {
namespace {

using internal::PsConnection;

// The first members come with the start of the driver.
constexpr std::chrono::seconds kFirstMembers{10};

// What the driver was told of the cluster, once it has been told.
v1::ProgramMembers FirstMembers(program::Runtime& runtime) {
  struct Told {
    Mutex mutex;
    Condition changed;
    v1::ProgramMembers members MUSTER_GUARDED_BY(mutex);
  };
  const auto told = std::make_shared<Told>();
  runtime.OnMembers([told](const v1::ProgramMembers& members) {
    const MutexLock lock(told->mutex);
    told->members = members;
    told->changed.notify_all();
  });
  const TimePoint deadline = std::chrono::steady_clock::now() + kFirstMembers;
  const MutexLock lock(told->mutex);
  while (told->members.version() == 0 && told->changed.wait_until(told->mutex, deadline)) {
  }
  return told->members;
}

internal::PsAccess AccessOf(program::Runtime& runtime) {
  const v1::ProgramStart& start = program::Start();
  internal::PsAccess access{.job_id = start.job_id(),
                            .key = start.key(),
                            .epoch = Epoch(start.epoch()),
                            .incarnation = Incarnation(start.incarnation()),
                            .host_id = start.host_id(),
                            .link = value_of(ps::LinkModeOf(start.link())),
                            .tls = program::TlsOf(start)};
  const v1::ProgramMembers members = FirstMembers(runtime);
  if (members.version() == 0) {
    raise(
        DeadlineExceeded("the coordinator has not said within {} s which parameter servers job {} "
                         "has: see that it runs and answers (`muster status`)",
                         kFirstMembers.count(), start.job_id()));
  }
  for (const v1::PsAddress& address : members.servers()) {
    access.servers.push_back({.target = ps::TargetOf(address)});
  }
  return access;
}

// The driver's connection, made by its first strategy; null in other processes of a program.
std::shared_ptr<PsConnection> DriverConnection() {
  static Mutex one_at_a_time;
  const MutexLock lock(one_at_a_time);
  if (auto current = PsConnection::Current()) return current->driver() ? current : nullptr;
  program::Runtime* const runtime = program::Driver();
  if (runtime != nullptr) {
    return PsConnection::OpenAsDriver(AccessOf(*runtime), value_of(internal::process_link()));
  }
  if (program::Started()) return nullptr;
  raise(
      FailedPrecondition("a ParameterServerStrategy needs a program on a cluster: "
                         "muster::init(argc, argv) is the first line of main()"));
}

StepRule RuleOf(const ParameterServerOptions& options) {
  if (options.gradients_per_step < 1 || options.gradients_per_step > job_limits::kMostGradients) {
    raise(InvalidArgument("gradients_per_step is from 1 to {}; given {}",
                          job_limits::kMostGradients, options.gradients_per_step));
  }
  if (options.speculative > job_limits::kMostSpeculative) {
    raise(InvalidArgument("speculative is at most {}; given {}", job_limits::kMostSpeculative,
                          options.speculative));
  }
  if (options.speculative > 0 && options.consistency.staleness != 0) {
    raise(InvalidArgument(
        "speculative {} without synchronous steps: two executions of a closure would "
        "read at different times, and write different things",
        options.speculative));
  }
  if (!options.consistency.staleness) {
    if (options.gradients_per_step == 1) return {};
    raise(
        InvalidArgument("gradients_per_step {} has no meaning with consistency async, where what a "
                        "closure writes counts by itself",
                        options.gradients_per_step));
  }
  if (options.writes == Writes::kImmediate && *options.consistency.staleness == 0) {
    raise(InvalidArgument(
        "immediate writes in synchronous steps: what closures of a step write counts "
        "when all of them have ended"));
  }
  if (*options.consistency.staleness > job_limits::kMostStaleness) {
    raise(InvalidArgument("a staleness of at most {}; given {}", job_limits::kMostStaleness,
                          *options.consistency.staleness));
  }
  return {.gradients = options.gradients_per_step, .staleness = *options.consistency.staleness};
}

// The servers of the shards of another variable, by their devices' names.
std::vector<std::uint32_t> ServersOf(const std::vector<std::string>& devices) {
  constexpr std::string_view kBefore = "/job:ps/replica:0/task:";
  std::vector<std::uint32_t> servers;
  for (const std::string& device : devices) {
    std::uint32_t task = 0;
    if (!device.starts_with(kBefore)) continue;
    (void)std::from_chars(device.data() + kBefore.size(), device.data() + device.size(), task);
    servers.push_back(task);
  }
  return servers;
}

void WarnOnce(std::string_view call, std::string_view name) {
  static std::once_flag once;
  std::call_once(once, [&] {
    internal::TellStderr(
        fmt::format("{} of a {} outside a scheduled function computes in this process; "
                    "ClusterCoordinator::schedule() sends functions to workers",
                    call, name));
  });
}

// Those of this process, in the order in which they were made.
struct Strategies {
  Mutex mutex;
  std::vector<internal::StrategyRef> all MUSTER_GUARDED_BY(mutex);
};
Strategies& StrategiesHere() {
  static auto* const strategies = new Strategies;  // closures may outlive main()
  return *strategies;
}

}  // namespace

std::uint64_t internal::NumberOf(const Strategy& strategy) {
  Strategies& strategies = StrategiesHere();
  const MutexLock lock(strategies.mutex);
  const auto found = std::ranges::find(strategies.all, &strategy,
                                       [](const StrategyRef& one) { return one.get(); });
  if (found == strategies.all.end()) return 0;
  return static_cast<std::uint64_t>(found - strategies.all.begin()) + 1;
}

std::vector<std::int32_t> internal::ReplicasOfStrategies() {
  Strategies& strategies = StrategiesHere();
  const MutexLock lock(strategies.mutex);
  std::vector<std::int32_t> replicas;
  for (const StrategyRef& one : strategies.all) {
    const Strategy* const strategy = one.get();
    replicas.push_back(strategy == nullptr ? 0 : strategy->num_replicas_in_sync());
  }
  return replicas;
}

Strategy& internal::StrategyOfNumber(std::uint64_t number) {
  Strategies& strategies = StrategiesHere();
  const MutexLock lock(strategies.mutex);
  if (number > 0 && number <= strategies.all.size()) {
    if (Strategy* const one = strategies.all[number - 1].get()) return *one;
  }
  for (auto one = strategies.all.rbegin(); one != strategies.all.rend(); ++one) {
    if (Strategy* const last = one->get()) return *last;
  }
  raise(
      FailedPrecondition("a variable as an argument: this process has no ParameterServerStrategy; "
                         "MUSTER_PROGRAM makes one in each"));
}

class ParameterServerStrategy::Maker final : public internal::ComponentMaker {
 public:
  Maker(std::shared_ptr<PsConnection> driver, VariablePartitioner partitioner)
      : driver_(std::move(driver)), partitioner_(std::move(partitioner)) {}

  std::unique_ptr<internal::Component> Make(std::string name, device::Place place,
                                            const VariableSpec& spec) override {
    std::vector<std::uint32_t> colocated = ServersOf(spec.colocated_devices);
    colocated.resize(std::min<std::size_t>(colocated.size(), 1));
    return std::make_unique<internal::RemoteComponent>(
        std::move(name), place, driver_, partitioner_, std::move(colocated), writes_, placement_);
  }
  std::unique_ptr<internal::ModuleHost> HostModule(internal::ModuleState& module) override {
    return std::make_unique<internal::RemoteModule>(module);
  }
  // For the variables that are made from now on.
  void set_writes(Writes writes) { writes_ = writes; }
  void set_placement(Placement placement) { placement_ = placement; }

 private:
  const std::shared_ptr<PsConnection> driver_;
  const VariablePartitioner partitioner_;
  Writes writes_ = Writes::kTogether;
  Placement placement_ = Placement::kRoundRobin;
};

ParameterServerStrategy::ParameterServerStrategy(VariablePartitioner partitioner,
                                                 const std::vector<std::string>& devices)
    : Strategy(internal::PlacesOf(devices), {device::Place{}}),
      maker_(std::make_unique<Maker>(DriverConnection(), std::move(partitioner))) {
  Strategies& strategies = StrategiesHere();
  const MutexLock lock(strategies.mutex);
  strategies.all.push_back(ref());
}

ParameterServerStrategy::ParameterServerStrategy(const ParameterServerOptions& options)
    : ParameterServerStrategy(options.partitioner, options.devices) {
  const StepRule rule = RuleOf(options);
  maker_->set_writes(options.writes);
  maker_->set_placement(options.placement);
  const std::shared_ptr<PsConnection> driver = DriverConnection();
  if (driver != nullptr) driver->SetSteps(rule, options.speculative);
}

ParameterServerStrategy::~ParameterServerStrategy() = default;

internal::ComponentMaker* ParameterServerStrategy::component_maker() const { return maker_.get(); }

void ParameterServerStrategy::flush() {
  if (auto* const session = internal::ClosureSession::Current()) session->Flush();
}

void ParameterServerStrategy::require_iteration() const {
  if (in_closure()) return;
  raise(
      InvalidArgument("under {} workers iterate distributed datasets: pass this dataset to "
                      "ClusterCoordinator::create_per_worker_dataset, whose function makes it",
                      name()));
}

void ParameterServerStrategy::note_here(std::string_view call) const {
  if (!in_closure()) WarnOnce(call, name());
}

void ParameterServerStrategy::run_replicas(const std::function<void(int)>& replica) {
  note_here("run()");
  if (num_local_replicas() > 1) {
    if (auto* const session = internal::ClosureSession::Current()) session->BeginReplicas();
  }
  Strategy::run_replicas(replica);
}

}  // namespace muster
