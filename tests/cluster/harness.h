// A real cluster for a test: `muster up` in a temporary folder, driven by the command line.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/process/child.h"
#include "muster/v1/jobs.pb.h"
#include "tests/support/lateness.h"
#include "tests/support/temp_folder.h"

namespace muster::testing {

struct RunResult {
  int code = -1;  // 128 + n: signal n; -1: still running at the limit, then killed
  std::string out;
  std::string err;
};

// Runs a program of ours to its end.
RunResult RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                     const std::map<std::string, std::string>& environment = {},
                     std::chrono::seconds limit = std::chrono::seconds(120));

// The same for any command.
RunResult RunCommand(const std::vector<std::string>& argv,
                     const std::map<std::string, std::string>& environment = {},
                     std::chrono::seconds limit = std::chrono::seconds(120));

// The id that `submit` has printed; throws what it said when it printed none.
std::string IdIn(const RunResult& submitted);

// The job that `describe -o json` has printed; throws when it did not.
v1::Job DescribeFrom(const RunResult& described);
// The same of `status -o json`.
v1::ClusterStatus StatusFrom(const RunResult& status);

// Asks until it is true, every 20 ms at first and every 100 ms in the end; false after `limit`.
bool Eventually(std::chrono::milliseconds limit, const std::function<bool()>& condition);

class Cluster {
 public:
  struct Options {
    int ps = 2;
    int workers = 3;
    std::vector<std::string> more = {};
    // Used again by a later cluster; empty: one of its own.
    std::string state = {};
    // Settings of the daemons: {"MUSTER_LINK", "tcp"}.
    std::map<std::string, std::string> environment = {};
  };

  // Fails the test (by an exception) when it is not ready in a minute.
  explicit Cluster(Options options);
  Cluster();
  // Drains; what is left is killed.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // `muster` with this cluster's environment.
  RunResult Muster(const std::vector<std::string>& arguments,
                   std::chrono::seconds limit = std::chrono::seconds(120)) const;
  // Submits a job file; its id. Fails the test when refused.
  std::string Submit(const std::string& file, const std::string& name = "") const;
  v1::Job Describe(const std::string& job) const;
  v1::ClusterStatus Status() const;
  // Waits until the job has made that many steps, or has ended.
  bool WaitForStep(const std::string& job, std::uint64_t step, std::chrono::seconds limit) const;
  // What a task of the job has printed; main() of a program is the chief.
  std::string Output(const std::string& job, const std::string& task = "chief:0") const;
  // Waits a minute for a text in it.
  bool HasPrinted(const std::string& job, const std::string& text,
                  const std::string& task = "chief:0") const;
  // Ends with the job; the code of `muster wait`.
  int Wait(const std::string& job, std::chrono::seconds limit) const;

  // The pid of the daemon that is registered as `task` ("worker:1"), or the "coordinator", or the
  // "trainer" (one of them); 0: none.
  int PidOf(const std::string& task) const;
  // kill(2); false: no such process.
  bool Kill(const std::string& task, int signal) const;

  // A signal to `up`, its end; the exit code.
  int Drain(int signal = SIGTERM);
  // kill -9 to `up`.
  void KillUp();
  int up_pid() const { return up_->pid(); }
  std::string state() const { return state_; }
  std::string up_log() const;
  const std::map<std::string, std::string>& environment() const { return environment_; }

 private:
  TempFolder folder_;
  std::string state_;
  std::map<std::string, std::string> environment_;
  mutable std::mutex mutex_;
  std::string up_log_;  // guarded by mutex_
  std::unique_ptr<process::Child> up_;
};

// Milliseconds since 1970, the clock of events.
std::int64_t NowMs();
// A file's bytes; none when it is not there.
std::string ReadAll(const std::string& path);

// "pid: command line" of each process that names `folder` in its command line or environment.
std::vector<std::string> ProcessesOf(const std::string& folder);

// The first event of the job with that reason; nullptr: none.
const v1::Event* FindEvent(const v1::Job& job, const std::string& reason);
int CountEvents(const v1::Job& job, const std::string& reason);
// Runs the job on worker:`index`; 0: none does.
int ExecutorPid(const v1::Job& job, std::uint32_t index);
// A number among its fields; -1: not there.
std::int64_t Field(const v1::Event& event, const std::string& name);

// All reasons of the job's events, for a message.
std::string Story(const v1::Job& job);

}  // namespace muster::testing
