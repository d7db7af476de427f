#include "strategy/testing/multi_process.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/base/number_in.h"
#include "common/base/words.h"
#include "common/cluster/cluster_spec.h"
#include "common/process/child.h"
#include "common/process/ports.h"
#include "strategy/base/internal/raise.h"
#include "strategy/testing/internal/protocol.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kEndGrace{5'000};
constexpr std::string_view kHost = "127.0.0.1";

// When so much time has passed. milliseconds::max(), as "without a limit" is written, is more than
// the clock counts.
Clock::time_point After(milliseconds limit) {
  constexpr milliseconds kLongest = std::chrono::hours(24 * 365);
  return Clock::now() + std::min(limit, kLongest);
}

// How a task failed, which outlives the process: the task may begin anew and end well.
struct Failure {
  int place = 0;  // among the failures, from 1
  ProcessExit exit;
  std::string last_line;
};

// One task of the run; its present process, if there is one.
struct Task {
  std::string type;
  int index = 0;
  std::string address;
  std::unique_ptr<process::Child> child;
  int pid = 0;
  // Our end of the pair; -1: it is closed.
  int socket = -1;
  bool running = false;
  std::optional<ProcessExit> exit;
  // Its end is not its own failure.
  bool expected = false;
  // Its first one.
  std::optional<Failure> failure;
  bool at_barrier = false;
  std::string received;
  std::string output;
  std::string last_line;
  std::vector<std::string> values;

  std::string name() const { return fmt::format("{}:{}", type, index); }
};

// "result 5" -> 5.
std::optional<std::size_t> SizeOfResult(std::string_view line) {
  if (!line.starts_with(internal::kResult)) return std::nullopt;
  line.remove_prefix(std::string_view(internal::kResult).size());
  if (!line.starts_with(' ')) return std::nullopt;
  return NumberIn<std::size_t>(line.substr(1));
}

// Wakes the run's thread.
struct EventDescriptor {
  EventDescriptor() : fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~EventDescriptor() { ::close(fd); }
  EventDescriptor(const EventDescriptor&) = delete;
  EventDescriptor& operator=(const EventDescriptor&) = delete;
  const int fd;
};

}  // namespace

std::string to_string(const ProcessExit& exit) {
  return process::Exit{.code = exit.code, .signal = exit.signal}.ToString();
}

// A thread serves the processes' sockets and ends; output comes on the children's threads.
struct MultiProcessRun::State {
  explicit State(MultiProcessOptions given);
  ~State();

  void Start(Task& task) MUSTER_REQUIRES(mutex);
  // A pair of sockets for it: ours is kept, the other one answered.
  int Connect(Task& task) MUSTER_REQUIRES(mutex);
  void Serve();
  void Wake();
  void TakeEnds() MUSTER_REQUIRES(mutex);
  void OnEnd(Task& task, process::Exit exit) MUSTER_REQUIRES(mutex);
  void KillAll(int signal) MUSTER_REQUIRES(mutex);
  void CheckTimes() MUSTER_REQUIRES(mutex);
  void Read(Task& task) MUSTER_REQUIRES(mutex);
  void Understand(Task& task) MUSTER_REQUIRES(mutex);
  void CheckBarrier() MUSTER_REQUIRES(mutex);
  void OnLine(const std::string& name, const std::string& line);
  bool AnyRuns() const MUSTER_REQUIRES(mutex);
  // When what still runs is killed.
  Clock::time_point Limit() const MUSTER_REQUIRES(mutex);
  // How long the thread may sleep.
  int Pause() const MUSTER_REQUIRES(mutex);
  Task& Find(const std::string& name) MUSTER_REQUIRES(mutex);
  MultiProcessResult Collect() MUSTER_REQUIRES(mutex);

  const MultiProcessOptions options;
  const Clock::time_point begun = Clock::now();
  const Clock::time_point deadline;
  process::PortAllotter ports;
  std::vector<process::PortClaim> claims;
  std::string chief;
  const EventDescriptor wake;

  Mutex mutex;
  Condition changed;
  std::map<std::string, Task> tasks MUSTER_GUARDED_BY(mutex);
  std::vector<std::pair<std::string, process::Exit>> ends MUSTER_GUARDED_BY(mutex);
  // Processes that have ended: they are waited for outside the lock.
  std::vector<std::unique_ptr<process::Child>> graves MUSTER_GUARDED_BY(mutex);
  std::optional<Clock::time_point> join_until MUSTER_GUARDED_BY(mutex);
  std::optional<Clock::time_point> ask_until MUSTER_GUARDED_BY(mutex);
  int failures MUSTER_GUARDED_BY(mutex) = 0;
  bool late MUSTER_GUARDED_BY(mutex) = false;
  milliseconds late_ms MUSTER_GUARDED_BY(mutex){};
  std::vector<std::string> late_names MUSTER_GUARDED_BY(mutex);
  bool closing MUSTER_GUARDED_BY(mutex) = false;
  std::thread thread;
};

// Checks the options, and gives each task an address that nobody else is given. Starts nothing.
MultiProcessRun::State::State(MultiProcessOptions given)
    : options(std::move(given)), deadline(After(options.limit)) {
  if (options.command.empty() == options.function.empty()) {
    raise(ErrorCode::kInvalidArgument, "MultiProcessRun: give either a command or a function");
  }
  std::size_t count = 0;
  for (const auto& [type, number] : options.cluster) {
    if (type.empty() || number < 0 || number > 1'000) {
      raise(ErrorCode::kInvalidArgument,
            fmt::format("MultiProcessRun: {} tasks of \"{}\": from 0 to 1000, of a named type",
                        number, type));
    }
    count += static_cast<std::size_t>(number);
  }
  if (count == 0) raise(ErrorCode::kInvalidArgument, "MultiProcessRun: the cluster has no task");
  Result<std::vector<process::PortClaim>> claimed = ports.Claim(std::string(kHost), count);
  if (!claimed.ok()) raise(claimed.status());
  claims = *std::move(claimed);
  const MutexLock lock(mutex);
  std::size_t next = 0;
  for (const auto& [type, number] : options.cluster) {
    for (int index = 0; index < number; ++index) {
      claims[next].Open();
      Task& task = tasks[fmt::format("{}:{}", type, index)];
      task.type = type;
      task.index = index;
      task.address = fmt::format("{}:{}", kHost, claims[next++].port());
    }
  }
  chief = tasks.contains("chief:0") ? "chief:0" : "worker:0";
  if (options.end_with_chief && !tasks.contains(chief)) {
    raise(ErrorCode::kInvalidArgument,
          "MultiProcessRun: end_with_chief, but the cluster has neither chief:0 nor worker:0");
  }
}

// The children's threads call in here until they have ended.
MultiProcessRun::State::~State() {
  {
    const MutexLock lock(mutex);
    closing = true;
    KillAll(SIGKILL);
  }
  Wake();
  if (thread.joinable()) thread.join();
  std::vector<std::unique_ptr<process::Child>> children;
  {
    const MutexLock lock(mutex);
    children.swap(graves);
    for (auto& [name, task] : tasks) {
      if (task.child != nullptr) children.push_back(std::move(task.child));
      if (task.socket >= 0) ::close(std::exchange(task.socket, -1));
    }
  }
  children.clear();
}

void MultiProcessRun::State::Wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake.fd, &one, sizeof one);
}

int MultiProcessRun::State::Connect(Task& task) {
  int ends_of_pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_of_pair) != 0) {
    raise(FromErrno(errno, "a socket for " + task.name()));
  }
  if (task.socket >= 0) ::close(task.socket);
  task.socket = ends_of_pair[0];
  (void)::fcntl(task.socket, F_SETFL, O_NONBLOCK);
  task.received.clear();
  task.at_barrier = false;
  return ends_of_pair[1];
}

// Begins a process of the task, under the address that it has.
void MultiProcessRun::State::Start(Task& task) {
  cluster::ClusterSpec::Jobs jobs;
  for (const auto& [name, one] : tasks) jobs[one.type][one.index] = one.address;
  nlohmann::json config{{"task", {{"type", task.type}, {"index", task.index}}}};
  config["cluster"] = cluster::ClusterSpec::Create(std::move(jobs))->ToJson();
  process::Child::Options child;
  child.argv = options.command;
  if (!options.function.empty()) child.argv = {"/proc/self/exe"};
  child.environment = options.environment;
  child.environment["TF_CONFIG"] = config.dump();
  child.environment[internal::kProcessDescriptor] = "3";
  child.environment[internal::kProcessFunction] = options.function;
  const int theirs = Connect(task);
  child.descriptors = {{theirs, 3}};
  const std::string name = task.name();
  child.on_line = [this, name](auto, const std::string& line) { OnLine(name, line); };
  child.on_exit = [this, name](process::Exit exit) {
    {
      const MutexLock lock(mutex);
      ends.emplace_back(name, exit);
    }
    Wake();
  };
  Result<std::unique_ptr<process::Child>> started = process::Child::Start(std::move(child));
  ::close(theirs);
  if (!started.ok()) raise(started.status());
  if (task.child != nullptr) graves.push_back(std::move(task.child));
  task.child = *std::move(started);
  task.pid = task.child->pid();
  task.running = true;
  task.expected = false;
  task.exit.reset();
  task.last_line.clear();
  Wake();  // there is another socket to serve
}

void MultiProcessRun::State::OnLine(const std::string& name, const std::string& line) {
  const MutexLock lock(mutex);
  Task& task = tasks.at(name);
  task.output += line + "\n";
  task.last_line = line;
  if (options.print) {
    fmt::print("[{}-{}]: {}\n", task.type, task.index, line);
    (void)std::fflush(stdout);
  }
  changed.notify_all();
}

bool MultiProcessRun::State::AnyRuns() const {
  return std::any_of(tasks.begin(), tasks.end(),
                     [](const auto& one) { return one.second.running; });
}

void MultiProcessRun::State::KillAll(int signal) {
  for (auto& [name, task] : tasks) {
    if (!task.running) continue;
    task.expected = true;
    (void)task.child->Signal(signal);
  }
}

// Until the run is over: ends, barriers, results, limits.
void MultiProcessRun::State::Serve() {
  while (true) {
    std::vector<std::unique_ptr<process::Child>> ended;
    std::vector<pollfd> polled{{wake.fd, POLLIN, 0}};
    std::vector<std::string> names{""};
    int pause = -1;
    {
      const MutexLock lock(mutex);
      TakeEnds();
      CheckTimes();
      CheckBarrier();
      if (closing) return;
      ended.swap(graves);
      pause = Pause();
      for (const auto& [name, task] : tasks) {
        if (task.socket < 0) continue;
        polled.push_back({task.socket, POLLIN, 0});
        names.push_back(name);
      }
    }
    ended.clear();
    if (::poll(polled.data(), polled.size(), pause) < 0) continue;
    std::uint64_t count = 0;
    (void)!::read(wake.fd, &count, sizeof count);
    const MutexLock lock(mutex);
    for (std::size_t i = 1; i < polled.size(); ++i) {
      Task& task = tasks.at(names[i]);
      if (polled[i].revents != 0 && task.socket == polled[i].fd) Read(task);
    }
  }
}

Clock::time_point MultiProcessRun::State::Limit() const {
  return join_until ? std::min(*join_until, deadline) : deadline;
}

int MultiProcessRun::State::Pause() const {
  if (late || !AnyRuns()) return -1;  // late: they are killed, and wake it when they have ended
  const Clock::time_point until = ask_until ? std::min(*ask_until, Limit()) : Limit();
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Kills what runs when it may no longer.
void MultiProcessRun::State::CheckTimes() {
  const Clock::time_point now = Clock::now();
  if (ask_until && now >= *ask_until) {
    ask_until.reset();
    KillAll(SIGKILL);
  }
  if (late || now < Limit() || !AnyRuns()) return;
  late = true;
  late_ms = std::chrono::duration_cast<milliseconds>(now - begun);
  for (const auto& [name, task] : tasks) {
    if (task.running) late_names.push_back(name);
  }
  KillAll(SIGKILL);
}

void MultiProcessRun::State::TakeEnds() {
  for (const auto& [name, exit] : std::exchange(ends, {})) OnEnd(tasks.at(name), exit);
}

void MultiProcessRun::State::OnEnd(Task& task, process::Exit exit) {
  Read(task);  // what it said last
  task.running = false;
  task.pid = 0;
  task.at_barrier = false;
  task.exit = ProcessExit{.code = exit.code, .signal = exit.signal};
  if (task.socket >= 0) ::close(std::exchange(task.socket, -1));
  const bool failed = !exit.ok() && !task.expected;
  const bool over = closing || late || ask_until;
  bool anew = failed && options.restart && !over;
  try {
    if (anew) Start(task);
  } catch (const Error& error) {
    task.last_line = error.message();
    anew = false;
  }
  if (failed && !anew && !task.failure) {
    task.failure = Failure{.place = ++failures, .exit = *task.exit, .last_line = task.last_line};
  }
  if (options.end_with_chief && task.name() == chief && !task.running && !over && AnyRuns()) {
    KillAll(SIGTERM);
    ask_until = Clock::now() + kEndGrace;
  }
  if (!AnyRuns()) ask_until.reset();  // what is started again was not asked
  changed.notify_all();
}

void MultiProcessRun::State::Read(Task& task) {
  char buffer[4096];
  while (task.socket >= 0) {
    const ssize_t got = ::read(task.socket, buffer, sizeof buffer);
    if (got > 0) {
      task.received.append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got == 0 || errno != EAGAIN) ::close(std::exchange(task.socket, -1));
    break;
  }
  Understand(task);
}

// Takes the whole messages from what has come.
void MultiProcessRun::State::Understand(Task& task) {
  std::string& text = task.received;
  while (true) {
    const std::size_t end = text.find('\n');
    if (end == std::string::npos) return;
    const std::string line = text.substr(0, end);
    // What is neither a value nor a barrier is passed over: a program may use the descriptor as one
    // of its own.
    if (const std::optional<std::size_t> size = SizeOfResult(line)) {
      if (text.size() - (end + 1) < *size) return;
      task.values.push_back(text.substr(end + 1, *size));
      text.erase(0, end + 1 + *size);
    } else {
      task.at_barrier = task.at_barrier || line == internal::kBarrier;
      text.erase(0, end + 1);
    }
    changed.notify_all();
  }
}

// Lets them go when all are there, or as soon as one has ended and cannot come: those that still
// run may wait for the very ones that stand here.
void MultiProcessRun::State::CheckBarrier() {
  const auto waits = [](const auto& one) { return one.second.at_barrier; };
  if (std::none_of(tasks.begin(), tasks.end(), waits)) return;
  const std::string* gone = nullptr;
  bool all = true;
  for (const auto& [name, task] : tasks) {
    if (task.at_barrier) continue;
    all = false;
    if (!task.running) gone = &name;
  }
  if (!all && gone == nullptr) return;
  const std::string answer =
      all ? fmt::format("{}\n", internal::kGo) : fmt::format("{} {}\n", internal::kGone, *gone);
  for (auto& [name, task] : tasks) {
    if (!std::exchange(task.at_barrier, false)) continue;
    (void)::send(task.socket, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
}

Task& MultiProcessRun::State::Find(const std::string& name) {
  const auto found = tasks.find(name);
  if (found != tasks.end()) return found->second;
  raise(InvalidArgument("the run has no task \"{}\"; its tasks are {}", name,
                        Joined(tasks, kMostNamed, &decltype(tasks)::value_type::first)));
}

MultiProcessResult MultiProcessRun::State::Collect() {
  MultiProcessResult result;
  for (const auto& [name, task] : tasks) {
    if (task.exit) result.exits[name] = *task.exit;
    result.values[name] = task.values;
    result.output[name] = task.output;
  }
  return result;
}

// --- The run.

MultiProcessRun::MultiProcessRun(MultiProcessOptions options)
    : state_(std::make_unique<State>(std::move(options))) {
  {
    const MutexLock lock(state_->mutex);
    for (auto& [name, task] : state_->tasks) state_->Start(task);
  }
  state_->thread = std::thread([state = state_.get()] { state->Serve(); });
}

MultiProcessRun::~MultiProcessRun() = default;

void MultiProcessRun::start(const std::string& name) {
  const MutexLock lock(state_->mutex);
  state_->TakeEnds();
  Task& task = state_->Find(name);
  if (task.running) raise(ErrorCode::kFailedPrecondition, name + " runs: it cannot be started");
  if (state_->late || Clock::now() >= state_->deadline) {
    raise(ErrorCode::kFailedPrecondition,
          name + " cannot be started: the time limit of the run is over; give it a longer one");
  }
  state_->Start(task);
}

void MultiProcessRun::kill(const std::string& name, int signal, bool expected) {
  const MutexLock lock(state_->mutex);
  Task& task = state_->Find(name);
  if (!task.running || !task.child->Signal(signal).ok()) {
    raise(ErrorCode::kFailedPrecondition, name + " does not run: there is nothing to signal");
  }
  task.expected = task.expected || expected;
}

int MultiProcessRun::pid(const std::string& name) const {
  const MutexLock lock(state_->mutex);
  return state_->Find(name).pid;
}

std::string MultiProcessRun::address(const std::string& name) const {
  const MutexLock lock(state_->mutex);
  return state_->Find(name).address;
}

std::string MultiProcessRun::output(const std::string& name) const {
  const MutexLock lock(state_->mutex);
  return state_->Find(name).output;
}

bool MultiProcessRun::wait_for_output(const std::string& name, const std::string& text,
                                      milliseconds limit) const {
  const Clock::time_point until = After(limit);
  MutexLock lock(state_->mutex);
  const Task& task = state_->Find(name);
  while (task.output.find(text) == std::string::npos) {
    if (Clock::now() >= until) return false;
    (void)state_->changed.wait_until(state_->mutex, until);
  }
  return true;
}

ProcessExit MultiProcessRun::wait(const std::string& name, milliseconds limit) const {
  const Clock::time_point until = After(limit);
  MutexLock lock(state_->mutex);
  const Task& task = state_->Find(name);
  while (!task.exit) {
    if (Clock::now() >= until) {
      raise(ErrorCode::kDeadlineExceeded,
            fmt::format("{} has not ended within {} ms", name, limit.count()));
    }
    (void)state_->changed.wait_until(state_->mutex, until);
  }
  return *task.exit;
}

MultiProcessResult MultiProcessRun::result() const {
  const MutexLock lock(state_->mutex);
  return state_->Collect();
}

MultiProcessResult MultiProcessRun::join(std::optional<milliseconds> limit) {
  MutexLock lock(state_->mutex);
  if (limit) {
    const Clock::time_point until = After(*limit);
    state_->join_until = std::min(state_->join_until.value_or(until), until);
    state_->Wake();
  }
  while (state_->AnyRuns()) state_->changed.wait(state_->mutex);
  state_->join_until.reset();  // what is started after this has the run's time again
  const Task* first = nullptr;
  for (const auto& [name, task] : state_->tasks) {
    if (!task.failure) continue;
    if (first == nullptr || task.failure->place < first->failure->place) first = &task;
  }
  if (first != nullptr) {
    const Failure& failure = *first->failure;
    raise(ErrorCode::kInternal,
          fmt::format("{} ended by {}{}{}", first->name(), to_string(failure.exit),
                      failure.last_line.empty() ? "" : ": ", failure.last_line));
  }
  if (state_->late) {
    raise(DeadlineExceeded("{} had not ended after {} ms", Joined(state_->late_names),
                           state_->late_ms.count()));
  }
  return state_->Collect();
}

}  // namespace muster
