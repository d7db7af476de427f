// The daemons of a program, played by the test: real processes of tests/programs/closures over real
// socket pairs.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "common/process/child.h"
#include "services/common/piped_process.h"
#include "services/common/program_child.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::program {

// One of tests/programs.
inline std::string ProgramOfTests(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "programs" / name)
      .string();
}
inline std::string ClosuresProgram() { return ProgramOfTests("closures"); }

// One process, and all that it has said. It ends with its object.
class RunningProgram {
 public:
  RunningProgram(const v1::ProgramStart& start, const std::vector<std::string>& arguments,
                 const std::string& program = ClosuresProgram()) {
    v1::ProgramSpec spec;
    spec.set_name("closures");
    spec.mutable_arguments()->Assign(arguments.begin(), arguments.end());
    auto started = services::ProgramProcess::Start(
        services::ProgramChild(program, spec, start),
        {.on_line = [this](auto,
                           const std::string& line) { Note([&] { lines_.push_back(line); }); },
         .on_message =
             [this](v1::FromProgram message) {
               Note([&] { messages_.push_back(std::move(message)); });
             },
         .on_exit = [this](process::Exit exit) { Note([&] { exit_ = exit; }); }});
    REQUIRE(started.ok());
    process_ = *std::move(started);
    v1::ToProgram first;
    *first.mutable_start() = start;
    process_->Send(first);
  }

  void Send(const v1::ToProgram& message) { process_->Send(message); }
  void Signal(int signal) { (void)process_->Signal(signal); }
  int pid() const { return process_->pid(); }

  // Waits until `met`, which is called with the lock held. False: it took too long.
  template <class Met>
  bool Await(Met met) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return met(); });
  }
  bool AwaitLine(const std::string& text) {
    return Await([&] {
      return std::ranges::any_of(
          lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; });
    });
  }
  // "exit code 0".
  std::string AwaitExit() {
    if (!Await([&] { return exit_.has_value(); })) return "it runs on";
    return exit_->ToString();
  }
  v1::ProgramReady AwaitReady() {
    REQUIRE(Await([&] { return Find(&v1::FromProgram::has_ready) != nullptr || exit_; }));
    const std::lock_guard lock(mutex_);
    const v1::FromProgram* found = Find(&v1::FromProgram::has_ready);
    return found == nullptr ? v1::ProgramReady() : found->ready();
  }
  // The last one of its kind.
  std::optional<v1::FromProgram> Last(bool (v1::FromProgram::*has)() const) {
    const std::lock_guard lock(mutex_);
    const v1::FromProgram* found = Find(has);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  std::ptrdiff_t Count(bool (v1::FromProgram::*has)() const) {
    const std::lock_guard lock(mutex_);
    return std::ranges::count_if(messages_,
                                 [&](const v1::FromProgram& message) { return (message.*has)(); });
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  bool has_exited() {
    const std::lock_guard lock(mutex_);
    return exit_.has_value();
  }
  bool has_messages() {
    const std::lock_guard lock(mutex_);
    return !messages_.empty();
  }

 private:
  template <class Change>
  void Note(Change change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  const v1::FromProgram* Find(bool (v1::FromProgram::*has)() const) {
    const auto found = std::find_if(messages_.rbegin(), messages_.rend(),
                                    [&](const auto& message) { return (message.*has)(); });
    return found == messages_.rend() ? nullptr : &*found;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::vector<v1::FromProgram> messages_;
  std::optional<process::Exit> exit_;
  // Last: its events use what is above.
  std::unique_ptr<services::ProgramProcess> process_;
};

// Starts the processes of one job and tells its driver who is there.
class PlayedCluster {
 public:
  explicit PlayedCluster(std::string how = "auto", std::string program = ClosuresProgram())
      : link(std::move(how)), program_(std::move(program)) {}

  v1::ProgramStart StartOf(v1::ProgramRole role, std::uint32_t index, std::uint64_t incarnation) {
    v1::ProgramStart start;
    start.set_role(role);
    start.set_job_id("job-1");
    start.set_job_name("closures");
    start.mutable_task()->set_type(role == v1::PROGRAM_ROLE_DRIVER ? "chief" : "worker");
    start.mutable_task()->set_index(index);
    start.set_epoch(1);
    start.set_incarnation(incarnation);
    start.set_key(net::JobKey("token", "job-1", Epoch(1)));
    start.set_closures_at_a_time(closures_at_a_time);
    start.set_threads(1);
    start.set_link(link);
    start.set_host_id(net::HostId().value());
    start.set_socket_directory(sockets_.path());
    start.set_wait_ms(wait_ms);
    return start;
  }

  // What processes have that are started from now on.
  std::string link;
  std::uint32_t closures_at_a_time = 1;
  std::uint32_t wait_ms = 0;

  // Before the driver.
  void AddServer(const v1::PsAddress& server) { servers_.push_back(server); }
  // Returns once it serves, and tells the driver that is there.
  RunningProgram& StartExecutor(std::uint32_t index) {
    const std::uint64_t incarnation = ++incarnations_;
    auto started =
        std::make_unique<RunningProgram>(StartOf(v1::PROGRAM_ROLE_EXECUTOR, index, incarnation),
                                         std::vector<std::string>(), program_);
    const v1::ProgramReady ready = started->AwaitReady();
    REQUIRE(ready.status().code() == 0);
    v1::ProgramWorker member;
    member.mutable_task()->set_type("worker");
    member.mutable_task()->set_index(index);
    member.set_incarnation(incarnation);
    *member.mutable_endpoint() = ready.endpoint();
    executors_.push_back({member, std::move(started)});
    TellMembers();
    return *executors_.back().second;
  }
  // Its daemon has seen its end.
  void TellEnd(const RunningProgram& executor, v1::ExecutorVerdict::Cause cause) {
    const auto found = std::ranges::find_if(
        executors_, [&](const auto& one) { return one.second.get() == &executor; });
    REQUIRE(found != executors_.end());
    v1::ToProgram message;
    v1::ExecutorVerdict& verdict = *message.mutable_verdict();
    *verdict.mutable_task() = found->first.task();
    verdict.set_incarnation(found->first.incarnation());
    verdict.set_cause(cause);
    verdict.set_how("signal SIGKILL");
    if (driver_ != nullptr) driver_->Send(message);
    executors_.erase(found);
    TellMembers();
  }
  RunningProgram& StartDriver(const std::vector<std::string>& arguments) {
    driver_ = std::make_unique<RunningProgram>(StartOf(v1::PROGRAM_ROLE_DRIVER, 0, ++drivers_),
                                               arguments, program_);
    TellMembers();
    return *driver_;
  }

 private:
  void TellMembers() {
    if (driver_ == nullptr) return;
    v1::ToProgram message;
    message.mutable_members()->set_version(++version_);
    for (const auto& [member, process] : executors_) {
      *message.mutable_members()->add_workers() = member;
    }
    message.mutable_members()->mutable_servers()->Assign(servers_.begin(), servers_.end());
    driver_->Send(message);
  }

  const std::string program_;
  const testing::TempFolder sockets_;
  std::vector<v1::PsAddress> servers_;
  std::uint64_t incarnations_ = 0;
  std::uint64_t drivers_ = 0;
  std::uint64_t version_ = 0;
  std::vector<std::pair<v1::ProgramWorker, std::unique_ptr<RunningProgram>>> executors_;
  std::unique_ptr<RunningProgram> driver_;
};

}  // namespace muster::program
