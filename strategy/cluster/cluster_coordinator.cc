#include "strategy/cluster/cluster_coordinator.h"

#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "dispatch/wire.h"

#include "common/base/mutex.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/coordinator_core.h"
#include "strategy/cluster/internal/stderr_line.h"

namespace muster {
namespace internal {
namespace {

constexpr std::chrono::milliseconds kAskAgain{20};
// What a frame can say.
constexpr std::chrono::milliseconds kLongestDeadline{std::numeric_limits<std::uint32_t>::max()};

void require_time(const char* what, std::chrono::milliseconds time) {
  if (time.count() >= 1 && time <= kLongestDeadline) return;
  raise(InvalidArgument("{} of {} ms: it is from 1 ms to {} ms", what, time.count(),
                        kLongestDeadline.count()));
}

void require_deadline(std::chrono::milliseconds deadline) {
  require_time("a closure's deadline", deadline);
}

// What the process says, as far as the program does not.
dispatch::ErrorPolicy::Options errors_of(dispatch::ErrorPolicy::Options errors,
                                         const CoordinatorOptions& options) {
  errors.ps_failures = options.transient_ps_failures.value_or(errors.ps_failures);
  errors.window = options.transient_window;
  return errors;
}

// The coordinators there are, by their links.
struct Coordinators {
  Mutex mutex;
  std::map<const ClusterLink*, std::weak_ptr<CoordinatorCore>> by_link MUSTER_GUARDED_BY(mutex);
};

Coordinators& coordinators() {
  static Coordinators all;
  return all;
}

}  // namespace

CoordinatorCore::CoordinatorCore(std::shared_ptr<ClusterLink> link,
                                 const CoordinatorOptions& options,
                                 std::optional<std::chrono::milliseconds> silence)
    : link_(std::move(link)), options_(options) {
  link_->driver().SetErrors(errors_of(link_->driver().options().dispatch.errors, options));
  if (!silence) return;
  watchdog_.emplace(link_->driver(), *silence, &TellStderr);
}

Result<std::shared_ptr<CoordinatorCore>> CoordinatorCore::of(
    const std::shared_ptr<ClusterLink>& link, const std::optional<CoordinatorOptions>& options) {
  Coordinators& all = coordinators();
  const MutexLock lock(all.mutex);
  std::erase_if(all.by_link, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<CoordinatorCore>& place = all.by_link[link.get()];
  std::shared_ptr<CoordinatorCore> core = place.lock();
  if (core == nullptr) {
    const CoordinatorOptions chosen = options.value_or(CoordinatorOptions());
    MUSTER_TRY_ASSIGN(const auto silence, Watchdog::timeout(chosen.watchdog, ProcessEnvironment()));
    core = std::make_shared<CoordinatorCore>(link, chosen, silence);
    place = core;
  } else if (options && core->options() != *options) {
    return FailedPrecondition(
        "this cluster has a coordinator with other options: there is one for each program");
  }
  return core;
}

void raise_closure(const Status& status) {
  const auto error = dispatch::ErrorOf(status);
  if (!error) raise(status);
  const ClosureDetails details{.origin = static_cast<ErrorOrigin>(error->origin),
                               .phase = static_cast<ClosurePhase>(error->phase),
                               .task = error->task,
                               .incarnation = error->incarnation.value(),
                               .retries = error->retries};
  const auto code = static_cast<ErrorCode>(status.code());
  const std::string message = Message(status);
  switch (details.origin) {
    case ErrorOrigin::kInput:
      throw ClosureInputError(code, message, details);
    case ErrorOrigin::kWorker:
      if (details.phase == ClosurePhase::kBuild && code == ErrorCode::kAborted) {
        throw ClosureAbortedError(code, message, details);
      }
      break;
    case ErrorOrigin::kParameterServer:
      if (code == ErrorCode::kUnavailable || code == ErrorCode::kAborted) {
        throw PsUnavailable(code, message, details);
      }
      break;
    case ErrorOrigin::kUser:
    case ErrorOrigin::kCoordinator:
      break;
  }
  throw ClosureError(code, message, details);
}

void refuse_in_closure(const char* what) {
  if (!in_closure()) return;
  raise(
      FailedPrecondition("{} inside a closure: closures run on workers, the coordinator is the "
                         "driver's alone",
                         what));
}

namespace {

// Where all closures of steps have ended. Those of none say nothing: another thread may have
// scheduled one since this one has waited.
void end_step(CoordinatorCore& core) {
  core.link().steps().End([&core] { return core.driver().counts().steps_ended; });
}

// The same for a queue that has failed, whose error counts.
void end_failed_step(CoordinatorCore& core) {
  try {
    end_step(core);
  } catch (const Error&) {  // the queue has failed before: that error counts
  }
}

// What `schedule_one` returns. Where it throws the error of a queue that has failed, or another
// thread has thrown that, the step is over. Other errors (no room, arguments that are too long) are
// of this one closure: when they come is chance, and steps are not cut by chance.
template <class Schedule>
auto ending_failed_step(CoordinatorCore& core, const Schedule& schedule_one) {
  try {
    return schedule_one();
  } catch (const Error& error) {
    const bool of_queue = dynamic_cast<const ClosureError*>(&error) != nullptr ||
                          error.code() == ErrorCode::kCancelled;
    // To tell a server that is lost would only take its time; the next join() tells it.
    const bool of_server = dynamic_cast<const PsUnavailable*>(&error) != nullptr;
    if (of_queue && !of_server) end_failed_step(core);
    throw;
  }
}

std::shared_ptr<const Remote> schedule(CoordinatorCore& core, std::uint32_t function,
                                       Arguments arguments, std::uint64_t step,
                                       dispatch::ClosureTerms terms, TimePoint until) {
  raise_unless_ok(core.link().refused());
  std::vector<ClosureId> turns_of;
  for (const std::uint64_t id : arguments.turns_of) turns_of.emplace_back(id);
  if (terms.run_limit.count() == 0) {
    terms.run_limit = core.options().closure_deadline.value_or(terms.run_limit);
  }
  const KeptBytes bytes = arguments.bytes.size() < kLongBytes
                              ? KeptBytes(arguments.bytes)
                              : KeptBytes::Of(std::move(arguments.bytes));
  auto value = core.driver().Schedule(function, bytes, until, turns_of, step, terms);
  raise_closure_unless_ok(value.status());
  return std::make_shared<const Remote>(*std::move(value), core.options().timeout);
}

}  // namespace

std::shared_ptr<const Remote> schedule_closure(CoordinatorCore& core, std::uint32_t function,
                                               Arguments arguments,
                                               std::chrono::milliseconds run_limit) {
  refuse_in_closure("schedule()");
  return ending_failed_step(core, [&] {
    return schedule(core, function, std::move(arguments), 0, {.run_limit = run_limit},
                    core.until(std::nullopt));
  });
}

std::shared_ptr<const Remote> schedule_of_step(CoordinatorCore& core, std::uint32_t function,
                                               Arguments arguments,
                                               std::chrono::milliseconds run_limit) {
  refuse_in_closure("schedule_step()");
  // Who waits for another thread's turn waits within its own time.
  const TimePoint until = core.until(std::nullopt);
  const auto schedule_next = [&](std::uint64_t step, bool synchronous) {
    const std::uint64_t told = synchronous ? step : 0;
    std::memcpy(&arguments.bytes[2], &told, sizeof(told));
    // A second execution reads and writes the same, unless its worker has other data.
    const bool repeatable = synchronous && !arguments.of_worker;
    return schedule(core, function, std::move(arguments), step,
                    {.run_limit = run_limit, .repeatable = repeatable}, until);
  };
  return ending_failed_step(core, [&] { return core.link().steps().Next(schedule_next); });
}

std::uint8_t call_flags(const CoordinatorCore& core) {
  return core.options().end_of_data_is_a_result ? kEndOfDataIsAResult : 0;
}

FetchedBytes fetch_bytes(const Remote* remote, const Deadline& deadline) {
  if (remote == nullptr) {
    raise(FailedPrecondition("this RemoteValue is of no closure: ClusterCoordinator::schedule()"));
  }
  auto bytes = remote->value().Fetch(remote->until(deadline));
  raise_closure_unless_ok(bytes.status());
  return {.bytes = *bytes, .keeper = bytes->Hold()};
}

bool is_ready(const Remote* remote) {
  return remote != nullptr && remote->value().state() != dispatch::ResultSlab::State::kNotReady;
}

ByteReader open_result(std::span<const std::byte> bytes) {
  ByteReader from(bytes);
  if (from.value<std::byte>() == kEndOfData) {
    throw EndOfData("the data of the worker that ran the function has ended");
  }
  return from;
}

ByteReader open_built(std::span<const std::byte> bytes) {
  static_assert(kLongestValue == dispatch::kMostBytes);
  ByteReader from(bytes);
  if (from.value<std::byte>() == kTooLong) {
    raise(
        ResourceExhausted("a worker's part of this per-worker value has more than {} bytes: it "
                          "stays there, where closures can use it",
                          kLongestValue));
  }
  return from;
}

PerWorker::~PerWorker() {
  if (const auto link = link_.lock()) link->driver().ReleasePerWorker(id_);
}

std::shared_ptr<CoordinatorCore> PerWorker::core() const {
  auto core = core_.lock();
  if (core == nullptr) {
    raise(Cancelled("the coordinator of this per-worker value is gone"));
  }
  return core;
}

std::shared_ptr<const PerWorker> create_per_worker(CoordinatorCore& core, std::uint32_t function,
                                                   const Arguments& arguments, PerWorkerList uses) {
  refuse_in_closure("a new per-worker value");
  if (!arguments.turns_of.empty()) {
    raise(
        InvalidArgument("an iterator under exactly_once is for closures: each worker would take a "
                        "part of it to build a per-worker value"));
  }
  const ClosureId id = value_of(core.driver().CreatePerWorker(function, arguments.bytes));
  return std::make_shared<const PerWorker>(core.shared_from_this(), function, id, std::move(uses));
}

namespace {

// Where a pass over the dataset begins that all workers share, as the first says that has built it.
std::string await_shared_start(CoordinatorCore& core, const PerWorker& dataset) {
  const TimePoint until = core.until(std::nullopt);
  while (true) {
    Status lost;
    for (const std::string& task : core.link().workers()) {
      const auto bytes = core.driver().AwaitPerWorker(dataset.id(), task, until);
      if (!bytes.ok()) {
        const auto error = dispatch::ErrorOf(bytes.status());
        // It is lost, or never was there: another one may tell.
        const bool away = error ? error->origin == dispatch::Origin::kWorker &&
                                      error->status.code() == StatusCode::kAborted
                                : bytes.status().code() == StatusCode::kNotFound;
        if (!away) raise_closure(bytes.status());
        lost = bytes.status();
        continue;
      }
      ByteReader from(*bytes);
      (void)Codec<ElementSpec>::read(from);
      const auto position = Codec<std::string>::read(from);
      const auto why_not = Codec<std::string>::read(from);
      if (why_not.empty()) return position;
      raise(InvalidArgument("no input exactly_once for this dataset: {}", why_not));
    }
    if (std::chrono::steady_clock::now() >= until) raise_closure(lost);
    raise_unless_ok(core.link().await_workers(until));
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace

std::shared_ptr<const PerWorker> create_iterator(const std::shared_ptr<const PerWorker>& dataset,
                                                 const IteratorOptions& options) {
  refuse_in_closure("iterator() of a per-worker dataset");
  const auto core = dataset->core();
  const bool shared = options.input.value_or(core->options().input) == InputGuarantee::kExactlyOnce;
  const std::uint8_t flags = kBuildIterator | (shared ? kOneForAll : 0);
  Bytes arguments;
  append_value(arguments, flags);
  append_value(arguments, std::uint8_t{0});
  append_value(arguments, dataset->id().value());
  if (shared) {
    if (options.elements_per_closure < 1) {
      raise(InvalidArgument("elements_per_closure {}: a closure has 1 at least",
                            options.elements_per_closure));
    }
    append_value(arguments, options.elements_per_closure);
    Codec<std::string>::write(await_shared_start(*core, *dataset), arguments);
  }
  const ClosureId id = value_of(core->driver().CreatePerWorker(dataset->function(), arguments));
  return std::make_shared<const PerWorker>(core, dataset->function(), id, PerWorkerList{dataset},
                                           shared);
}

std::vector<Bytes> per_worker_bytes(const PerWorker& value, const Deadline& deadline) {
  refuse_in_closure("fetch() of a per-worker value");
  const auto core = value.core();
  const TimePoint until = core->until(deadline);
  std::vector<Bytes> all;
  for (const std::string& task : core->link().workers()) {
    auto bytes = core->driver().AwaitPerWorker(value.id(), task, until);
    // A worker that has never been connected has none yet.
    if (bytes.status().code() == StatusCode::kNotFound && !dispatch::ErrorOf(bytes.status())) {
      continue;
    }
    raise_closure_unless_ok(bytes.status());
    all.emplace_back(bytes->begin(), bytes->end());
  }
  return all;
}

std::vector<PerWorkerState> per_worker_states(const PerWorker& value) {
  const auto core = value.core();
  std::vector<PerWorkerState> states;
  for (const std::string& task : core->link().workers()) {
    const Status status =
        core->driver().AwaitPerWorker(value.id(), task, TimePoint::min()).status();
    PerWorkerState state{.task = task};
    if (status.ok()) {
      state.kind = PerWorkerState::Kind::kReady;
    } else if (const auto error = dispatch::ErrorOf(status)) {
      const bool lost = error->origin == dispatch::Origin::kWorker &&
                        error->status.code() == StatusCode::kAborted;
      state.kind = lost ? PerWorkerState::Kind::kAborted : PerWorkerState::Kind::kFailed;
      state.message = error->ToString();
    }
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace internal

ClusterCoordinator::ClusterCoordinator() { open(nullptr, std::nullopt); }

ClusterCoordinator::ClusterCoordinator(const CoordinatorOptions& options) {
  open(nullptr, options);
}

ClusterCoordinator::ClusterCoordinator(std::shared_ptr<internal::ClusterLink> link,
                                       const CoordinatorOptions& options) {
  open(std::move(link), options);
}

// Becomes a handle of the link's coordinator (of this process's where there is none) once it has a
// worker.
void ClusterCoordinator::open(std::shared_ptr<internal::ClusterLink> link,
                              const std::optional<CoordinatorOptions>& options) {
  internal::refuse_in_closure("a ClusterCoordinator");
  if (options) {
    if (options->closure_deadline) internal::require_deadline(*options->closure_deadline);
    internal::require_time("a transient_window", options->transient_window);
  }
  if (link == nullptr) link = value_of(internal::process_link());
  core_ = value_of(internal::CoordinatorCore::of(link, options));
  std::optional<TimePoint> deadline;
  if (core_->options().timeout) deadline = core_->until(std::nullopt);
  raise_unless_ok(link->await_workers(deadline));
}

ClusterCoordinator ClusterCoordinator::within(std::chrono::milliseconds deadline) const {
  internal::require_deadline(deadline);
  ClusterCoordinator limited = *this;
  limited.run_limit_ = deadline;
  return limited;
}

void ClusterCoordinator::join(const internal::Deadline& deadline) {
  internal::refuse_in_closure("join()");
  const Status joined = core_->driver().Join(core_->until(deadline));
  if (joined.ok()) raise_unless_ok(core_->link().refused());
  if (joined.ok()) return internal::end_step(*core_);
  // Else closures of the step go on.
  if (dispatch::ErrorOf(joined)) internal::end_failed_step(*core_);
  internal::raise_closure(joined);
}

bool ClusterCoordinator::done() {
  internal::refuse_in_closure("done()");
  return internal::ending_failed_step(*core_, [&] {
    const auto done = core_->driver().Done(core_->until(std::nullopt));
    internal::raise_closure_unless_ok(done.status());
    return *done;
  });
}

std::vector<std::string> ClusterCoordinator::workers() const { return core_->link().workers(); }

std::vector<TaskHealth> ClusterCoordinator::task_states() const {
  std::vector<TaskHealth> states;
  for (const auto& [task, up] : core_->link().tasks()) {
    TaskHealth& state = states.emplace_back(TaskHealth{.task = task});
    if (!up) state.error = Error(ErrorCode::kUnavailable, task + " is lost");
  }
  return states;
}

CoordinatorCounts ClusterCoordinator::counts() const {
  const dispatch::Driver::Counts counts = core_->driver().counts();
  return {.queued = counts.queued,
          .in_flight = counts.in_flight,
          .workers = counts.workers,
          .succeeded = counts.succeeded,
          .remote_values = counts.futures,
          .executions = counts.executions,
          .closure_time = counts.run,
          .fetches = counts.fetches,
          .fetch_time = counts.fetch,
          .worker_failures = counts.losses,
          .recoveries = counts.recoveries,
          .recovery_time = counts.recovery};
}

}  // namespace muster
