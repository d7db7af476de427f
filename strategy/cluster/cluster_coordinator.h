// Schedules functions onto the workers of a program's cluster and fetches what they return.
//
//   int main(int argc, char** argv) {
//     muster::init(argc, argv);
//     muster::ClusterCoordinator coordinator;
//     auto data = coordinator.create_per_worker_dataset<MakeData>(64).iterator();
//     for (int step = 0; step < 1000; ++step) coordinator.schedule<Step>(data);
//     coordinator.join();
//   }
//
// Functions run in the order of scheduling as workers become free, each at least once: one whose
// worker is lost runs again, on another worker or when one is back. The first function that throws
// fails the queue: nothing more begins, what runs is cancelled, and when nothing runs any more the
// error is thrown once, by whichever of schedule(), join() and done() comes first. What was queued
// is then cancelled (fetch() throws CANCELLED), and the coordinator is as new.
//
// Threading: any thread. Lifetime: a handle; copies are the same coordinator, which ends with the
// last one, and its threads with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "strategy/cluster/function.h"
#include "strategy/cluster/per_worker_values.h"
#include "strategy/cluster/remote_value.h"

namespace muster {

struct CoordinatorOptions {
  // Longest wait of one call: of schedule() for room, of join() for all, of fetch() for a value, of
  // the constructor for the first worker. The error (DEADLINE_EXCEEDED) says for whom. Nothing:
  // without an end; the constructor as long as the job says (60 s).
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  // EndOfData that leaves a function is the closure's result, which fetch() throws, and no error of
  // the queue: workers run out of data one by one.
  bool end_of_data_is_a_result = false;
  // When closures are there and none has ended for so long, stderr says what is waited for, again
  // after each such time. Nothing: what TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT (seconds) says, or
  // never.
  std::optional<std::chrono::milliseconds> watchdog = std::nullopt;
  // How long a closure may run, unless within() says something else. One that runs longer is given
  // up: its error is DEADLINE_EXCEEDED, and its executor is ended, and another takes its place.
  // Nothing: as long as it likes.
  std::optional<std::chrono::milliseconds> closure_deadline = std::nullopt;
  // At how many failures within `transient_window` a parameter server is lost (PsUnavailable);
  // before that the closures that failed with it run again. All that fails with a server at once is
  // one failure. Nothing: what TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES says, or 3. 1, as 0: at
  // the first.
  //
  // What else sends a closure round is no option: a worker that is lost is no failure of the
  // closure's, a full server is waited for, and that one which comes back 100 times in at least 10
  // minutes is given up is there lest it goes round for ever.
  std::optional<std::uint32_t> transient_ps_failures = std::nullopt;
  // From 1 ms to 49 days. Longer: failures further apart add up.
  std::chrono::milliseconds transient_window = std::chrono::minutes(10);
  // What passes over per-worker datasets give closures, unless iterator() says something else.
  InputGuarantee input = InputGuarantee::kPerWorker;

  bool operator==(const CoordinatorOptions&) const = default;
};

struct CoordinatorCounts {
  std::size_t queued = 0;
  std::size_t in_flight = 0;
  std::size_t workers = 0;      // that are there now
  std::uint64_t succeeded = 0;  // closures, since the beginning
  std::size_t remote_values = 0;
  // Results of closures that came, and how long their functions ran on workers, all in all;
  // without those that made per-worker values.
  std::uint64_t executions = 0;
  std::chrono::nanoseconds closure_time{0};
  std::uint64_t fetches = 0;
  std::chrono::nanoseconds fetch_time{0};
  // Executors that were lost; workers that had a new one afterwards, and how long that took.
  std::uint64_t worker_failures = 0;
  std::uint64_t recoveries = 0;
  std::chrono::nanoseconds recovery_time{0};
};

struct TaskHealth {
  std::string task;  // "worker:0", "ps:1"
  // Nothing: it is there. UNAVAILABLE, which names it: it was there, and is not now.
  std::optional<Error> error = std::nullopt;
};

namespace internal {
class ClusterLink;
class CoordinatorCore;

// `run_limit`: how long it may run; 0: what the coordinator's options say.
std::shared_ptr<const Remote> schedule_closure(CoordinatorCore& core, std::uint32_t function,
                                               Arguments arguments,
                                               std::chrono::milliseconds run_limit);
// The same for a closure of a step; arguments written with kOfStep.
std::shared_ptr<const Remote> schedule_of_step(CoordinatorCore& core, std::uint32_t function,
                                               Arguments arguments,
                                               std::chrono::milliseconds run_limit);
// `uses`: those of the arguments.
std::shared_ptr<const PerWorker> create_per_worker(CoordinatorCore& core, std::uint32_t function,
                                                   const Arguments& arguments, PerWorkerList uses);
std::uint8_t call_flags(const CoordinatorCore& core);
}  // namespace internal

class ClusterCoordinator {
 public:
  // The coordinator of this program; a second one is the first, and its options must be the first
  // one's. Waits for the first worker.
  //   FAILED_PRECONDITION: other options than the first; in a closure; not started by `muster
  //   submit`.  DEADLINE_EXCEEDED: no worker has come; says for whom it has waited.
  //   INVALID_ARGUMENT: an option beyond its limits; a variable of the environment that is to hold
  //   a number and does not, by name.
  ClusterCoordinator();
  explicit ClusterCoordinator(const CoordinatorOptions& options);
  // For another cluster than this process's.
  explicit ClusterCoordinator(std::shared_ptr<internal::ClusterLink> link,
                              const CoordinatorOptions& options = {});

  // Calls `function` on a worker, and does not wait for it; only for room in the queue (262,144
  // closures, 256 MiB of arguments) and for remote values among the arguments.
  //   An earlier closure's error, as ClosureError: this one is cancelled.  PsUnavailable.
  //   INVALID_ARGUMENT: arguments of more than 128 MiB, a per-worker value of another coordinator.
  //   FAILED_PRECONDITION: in a closure.  DEADLINE_EXCEEDED: no room; says who is waited for.
  template <auto function, class... Given>
    requires Schedulable<function, Given...>
  RemoteValue<internal::ValueOf<function>> schedule(const Given&... given) {
    return RemoteValue<internal::ValueOf<function>>(internal::schedule_closure(
        *core_, internal::Registration<function>::kNumber,
        internal::write_arguments<function>(*core_, internal::call_flags(*core_), given...),
        run_limit_));
  }
  // The same for a function that computes gradients: closures that are scheduled by this are
  // counted into steps, as ParameterServerOptions::consistency says, and may not run further ahead
  // of each other than that. Without such a strategy it is schedule().
  template <auto function, class... Given>
    requires Schedulable<function, Given...>
  RemoteValue<internal::ValueOf<function>> schedule_step(const Given&... given) {
    const std::uint8_t flags = internal::call_flags(*core_) | internal::kOfStep;
    return RemoteValue<internal::ValueOf<function>>(internal::schedule_of_step(
        *core_, internal::Registration<function>::kNumber,
        internal::write_arguments<function>(*core_, flags, given...), run_limit_));
  }
  // The same coordinator, whose closures that this handle schedules may run for so long each:
  // coordinator.within(std::chrono::seconds(5)).schedule<step>(batch). See
  // CoordinatorOptions::closure_deadline.
  //   INVALID_ARGUMENT: less than 1 ms, or more than 49 days.
  ClusterCoordinator within(std::chrono::milliseconds deadline) const;
  // Waits until all have ended, and ends the step that the last of them are of. Errors are those of
  // schedule().  PsUnavailable: or a server could not be told that the step is over; the next
  // join() tells it.
  void join(const internal::Deadline& deadline = std::nullopt);
  // Whether they have. The error of one that has failed.
  bool done();

  // The values of a nest of remote values (tuples, pairs, vectors, maps): the same nest. Other
  // leaves stay as they are; a RemoteValue<void> becomes std::monostate. Waits for one after
  // another: the error is that of the first that has one.
  template <class T>
  auto fetch(const T& nest) {
    if constexpr (IsRemoteValue<T>::value) {
      if constexpr (std::is_void_v<typename T::value_type>) {
        nest.fetch();
        return std::monostate();
      } else {
        return nest.fetch();
      }
    } else if constexpr (nest::IsTuple<T>::value) {
      // Braces: in this order, so that the error is that of the first.
      return std::apply(
          [&](const auto&... each) {
            if constexpr (requires { nest.first; }) {
              return std::pair<decltype(fetch(each))...>{fetch(each)...};
            } else {
              return std::tuple<decltype(fetch(each))...>{fetch(each)...};
            }
          },
          nest);
    } else if constexpr (nest::IsVector<T>::value) {
      std::vector<decltype(fetch(nest[0]))> values;
      for (const auto& one : nest) values.push_back(fetch(one));
      return values;
    } else if constexpr (nest::IsMap<T>::value) {
      std::map<typename T::key_type, decltype(fetch(nest.begin()->second))> values;
      for (const auto& [key, one] : nest) values.emplace(key, fetch(one));
      return values;
    } else {
      return nest;
    }
  }

  // A value on every worker, made there by `function`; see per_worker_values.h. Does not wait.
  //   FAILED_PRECONDITION: in a closure.
  template <auto function, class... Given>
    requires Buildable<function, Given...>
  PerWorkerValues<internal::ValueOf<function>> create_per_worker_resource(const Given&... given) {
    return PerWorkerValues<internal::ValueOf<function>>(create<function>(given...));
  }
  // The same for a function that makes a dataset. It may not create variables: INVALID_ARGUMENT,
  // where it is used.
  template <auto function, class... Given>
    requires(Buildable<function, Given...> && Iterable<internal::ValueOf<function>>)
  PerWorkerDataset<internal::ValueOf<function>> create_per_worker_dataset(const Given&... given) {
    return PerWorkerDataset<internal::ValueOf<function>>(create<function>(given...));
  }

  // Tasks of the workers that are there, or have been: "worker:0".
  std::vector<std::string> workers() const;
  CoordinatorCounts counts() const;
  // All tasks that the job has or has had, workers first, then parameter servers.
  std::vector<TaskHealth> task_states() const;
  // Handles of the same coordinator.
  bool operator==(const ClusterCoordinator& other) const { return core_ == other.core_; }

 private:
  void open(std::shared_ptr<internal::ClusterLink> link,
            const std::optional<CoordinatorOptions>& options);
  template <auto function, class... Given>
  std::shared_ptr<const internal::PerWorker> create(const Given&... given) {
    internal::PerWorkerList uses;
    [[maybe_unused]] const auto add = [&uses](const auto& one) {
      if constexpr (internal::PerWorkerArgument<decltype(one)>) uses.push_back(one.handle());
    };
    (add(given), ...);
    return internal::create_per_worker(*core_, internal::Registration<function>::kNumber,
                                       internal::write_arguments<function>(*core_, 0, given...),
                                       std::move(uses));
  }

  std::shared_ptr<internal::CoordinatorCore> core_;
  std::chrono::milliseconds run_limit_{0};
};

}  // namespace muster
