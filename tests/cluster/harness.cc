#include "tests/cluster/harness.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/core.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

namespace muster::testing {

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

template <class Message>
Message FromJson(const std::string& what, const RunResult& result) {
  Message message;
  if (result.code != 0) {
    throw std::runtime_error(fmt::format("{} ended with {}: {}", what, result.code, result.err));
  }
  google::protobuf::util::JsonParseOptions options;
  if (!google::protobuf::util::JsonStringToMessage(result.out, &message, options).ok()) {
    throw std::runtime_error(fmt::format("{} printed no JSON of ours: {}", what, result.out));
  }
  return message;
}

}  // namespace

RunResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment, seconds limit) {
  std::vector<std::string> argv{
      program.starts_with('/') ? program : fmt::format("{}/{}", MUSTER_BIN, program)};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunCommand(argv, environment, limit);
}

RunResult RunCommand(const std::vector<std::string>& argv,
                     const std::map<std::string, std::string>& environment, seconds limit) {
  const TempFolder folder;
  process::Child::Options options;
  // The shell only parts the two outputs.
  options.argv = {"/bin/sh", "-c",
                  fmt::format("exec \"$0\" \"$@\" >{0}/out 2>{0}/err", folder.path())};
  options.argv.insert(options.argv.end(), argv.begin(), argv.end());
  options.environment = environment;
  auto child = process::Child::Start(std::move(options));
  if (!child.ok()) throw std::runtime_error(ToString(child.status()));
  RunResult result;
  if (const auto exit = (*child)->Wait(limit); exit.ok()) {
    result.code = exit->signal != 0 ? 128 + exit->signal : exit->code;
  } else {
    (void)(*child)->End(milliseconds(0));
  }
  result.out = ReadAll(folder / "out");
  result.err = ReadAll(folder / "err");
  return result;
}

bool Eventually(milliseconds limit, const std::function<bool()>& condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    const auto waited =
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    if (waited > limit) return false;
    // Most conditions start a program of ours, which would take a third of a processor for itself.
    std::this_thread::sleep_for(std::clamp(waited / 10, milliseconds(20), milliseconds(100)));
  }
  return true;
}

Cluster::Cluster() : Cluster(Options{}) {}

Cluster::Cluster(Options options)
    : state_(options.state.empty() ? folder_ / "state" : options.state) {
  // A home of its own, so that this cluster and others of this user do not meet.
  environment_ = {{"XDG_RUNTIME_DIR", folder_.path()},
                  {"MUSTER_COORDINATOR", ""},
                  {"MUSTER_TOKEN_FILE", ""},
                  {"TF_CONFIG", ""}};
  environment_.insert(options.environment.begin(), options.environment.end());
  process::Child::Options child;
  child.argv = {fmt::format("{}/muster", MUSTER_BIN),
                "up",
                "--ps",
                std::to_string(options.ps),
                "--workers",
                std::to_string(options.workers),
                "--state-dir",
                state_};
  child.argv.insert(child.argv.end(), options.more.begin(), options.more.end());
  child.environment = environment_;
  // All that it starts can be found by it (ProcessesOf), whatever of Muster's they are not told.
  child.environment["STATE_OF_THE_CLUSTER"] = state_;
  child.on_line = [this](std::chrono::system_clock::time_point, const std::string& line) {
    const std::scoped_lock lock(mutex_);
    up_log_ += line + "\n";
  };
  auto started = process::Child::Start(std::move(child));
  if (!started.ok()) throw std::runtime_error(ToString(started.status()));
  up_ = *std::move(started);
  const bool ready = Eventually(seconds(60), [this] {
    return up_log().find("ready at ") != std::string::npos || up_->Wait(milliseconds(0)).ok();
  });
  if (!ready || up_log().find("ready at ") == std::string::npos) {
    throw std::runtime_error("the cluster did not start:\n" + up_log());
  }
}

Cluster::~Cluster() {
  if (up_) (void)up_->End(seconds(60));
}

std::string Cluster::up_log() const {
  const std::scoped_lock lock(mutex_);
  return up_log_;
}

RunResult Cluster::Muster(const std::vector<std::string>& arguments, seconds limit) const {
  return RunProgram("muster", arguments, environment_, limit);
}

std::string Cluster::Submit(const std::string& file, const std::string& name) const {
  std::vector<std::string> arguments{"submit", "-f", file};
  if (!name.empty()) arguments.insert(arguments.end(), {"--name", name});
  return IdIn(Muster(arguments));
}

std::string Cluster::Output(const std::string& job, const std::string& task) const {
  return Muster({"logs", job, task}).out;
}

bool Cluster::HasPrinted(const std::string& job, const std::string& text,
                         const std::string& task) const {
  return Eventually(seconds(60), [&] { return Output(job, task).find(text) != std::string::npos; });
}

std::string IdIn(const RunResult& submitted) {
  if (submitted.out.empty()) {
    throw std::runtime_error(
        fmt::format("submit ended with {}: {}", submitted.code, submitted.err));
  }
  return submitted.out.substr(0, submitted.out.find('\n'));
}

v1::Job DescribeFrom(const RunResult& described) {
  return FromJson<v1::Job>("describe", described);
}

v1::ClusterStatus StatusFrom(const RunResult& status) {
  return FromJson<v1::ClusterStatus>("status", status);
}

v1::Job Cluster::Describe(const std::string& job) const {
  return DescribeFrom(Muster({"describe", job, "-o", "json"}));
}

v1::ClusterStatus Cluster::Status() const { return StatusFrom(Muster({"status", "-o", "json"})); }

bool Cluster::WaitForStep(const std::string& job, std::uint64_t step, seconds limit) const {
  return Eventually(limit, [&] {
    const v1::Job now = Describe(job);
    return now.progress().step() >= step || now.ended_ms() != 0;
  });
}

int Cluster::Wait(const std::string& job, seconds limit) const {
  return Muster({"wait", job, "--timeout", fmt::format("{}s", limit.count())}, limit + seconds(60))
      .code;
}

int Cluster::PidOf(const std::string& task) const {
  if (task == "trainer") {
    for (const std::string& process : ProcessesOf(state_)) {
      if (process.find("muster-trainer ") != std::string::npos) return std::stoi(process);
    }
    return 0;
  }
  const v1::ClusterStatus status = Status();
  if (task == "coordinator") return static_cast<int>(status.pid());
  for (const v1::TaskState& state : status.tasks()) {
    if (fmt::format("{}:{}", state.task().type(), state.task().index()) == task &&
        state.state() == "up") {
      return static_cast<int>(state.pid());
    }
  }
  return 0;
}

bool Cluster::Kill(const std::string& task, int signal) const {
  const int pid = PidOf(task);
  return pid > 1 && ::kill(pid, signal) == 0;
}

int Cluster::Drain(int signal) {
  (void)::kill(up_->pid(), signal);
  const auto ended = up_->Wait(seconds(60));
  const process::Exit exit = ended.ok() ? *ended : up_->End(milliseconds(0));
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

void Cluster::KillUp() {
  (void)::kill(up_->pid(), SIGKILL);
  (void)up_->Wait(seconds(10));
}

std::int64_t NowMs() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::vector<std::string> ProcessesOf(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (std::atoi(name.c_str()) == ::getpid()) continue;
    std::string command = ReadAll(entry.path() / "cmdline");
    if (command.empty()) continue;  // a kernel thread or a zombie
    const std::string all = command + ReadAll(entry.path() / "environ");
    if (all.find(folder) == std::string::npos) continue;
    std::replace(command.begin(), command.end(), '\0', ' ');
    found.push_back(name + ": " + command);
  }
  return found;
}

const v1::Event* FindEvent(const v1::Job& job, const std::string& reason) {
  for (const v1::Event& event : job.events()) {
    if (event.reason() == reason) return &event;
  }
  return nullptr;
}

int CountEvents(const v1::Job& job, const std::string& reason) {
  return static_cast<int>(
      std::count_if(job.events().begin(), job.events().end(),
                    [&](const v1::Event& event) { return event.reason() == reason; }));
}

int ExecutorPid(const v1::Job& job, std::uint32_t index) {
  for (const v1::TaskState& task : job.tasks()) {
    if (task.task().type() == "worker" && task.task().index() == index) {
      return static_cast<int>(task.executor_pid());
    }
  }
  return 0;
}

std::int64_t Field(const v1::Event& event, const std::string& name) {
  const auto found = event.fields().find(name);
  return found == event.fields().end() ? -1 : std::stoll(found->second);
}

std::string Story(const v1::Job& job) {
  std::string story = v1::JobState_Name(job.state()) + " " + job.error().message();
  for (const v1::Event& event : job.events()) {
    story += fmt::format(
        "\n{} {} {}: {}", event.time_ms(), event.reason(),
        event.has_task() ? fmt::format("{}:{}", event.task().type(), event.task().index()) : "",
        event.message());
  }
  return story;
}

}  // namespace muster::testing
