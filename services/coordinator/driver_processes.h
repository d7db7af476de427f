// The driver processes as children of this daemon, with which they die: muster-trainer for a
// model's job, the user's executable for a program's.
//
// A fork takes long on a machine that is short of memory, and the end of a child is waited for:
// each happens on a thread of its own, so Start() cannot say that a program does not start; that is
// an end like any other (`on_exit`, whose `how` begins with "no start: "). What a driver prints
// is bounded before it reaches the strand, and a program's pipe is read and written off it.
//
// Threading: everything on the strand; what the children do is posted there.
// Lifetime: `strand` outlives it, and what Close() has left on the strand runs before it goes. The
// callbacks run on the strand, never after Kill().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/lifeline.h"
#include "common/process/child.h"
#include "common/process/line_gate.h"
#include "coordinator/offload.h"
#include "coordinator/world.h"
#include "services/common/burials.h"
#include "services/common/piped_process.h"

namespace muster::coordinator {

class DriverProcesses : public Drivers {
 public:
  struct Options {
    // muster-trainer.
    std::string program;
    // The jobs' connections over TCP are behind TLS.
    bool tls = false;
    std::function<void(const std::string& job, std::int64_t time_us, std::string line)> on_line;
    std::function<void(const std::string& job, Incarnation number, bool success,
                       const std::string& how)>
        on_exit;
    // A user's uploaded program, as a file that can be run.
    std::function<Result<std::string>(const std::string& sha256)> executable = nullptr;
    // Where programs keep decoded copies and indexes of their data.
    std::string data_cache = {};
    // What proves the job's links; what its driver says.
    std::function<std::string(const std::string& job_id, Epoch epoch)> key = nullptr;
    std::function<void(const std::string& job, Incarnation number, const v1::FromProgram&)>
        on_message = nullptr;
  };

  DriverProcesses(Scheduler& strand, Options options)
      : strand_(strand), options_(std::move(options)), forks_(strand) {}

  // Where the drivers find this coordinator; known once it listens.
  void set_address(std::string address) { address_ = std::move(address); }

  Status StartModel(const v1::ProgramStart& start) override;
  Status StartProgram(const ProgramLaunch& launch) override;
  void Send(const std::string& job_id, const v1::ToProgram& message) override;
  // To that process alone: harmless when another one has its place.
  void SendTo(const std::string& job_id, Incarnation driver, const v1::ToProgram& message);
  int Pid(const std::string& job_id) const override;
  void Stop(const std::string& job_id, Millis grace) override;
  // SIGKILL to all of them; nobody is told of what they do from then on. Waits for none of them,
  // since one may not be able to die now.
  void Kill();
  // The same, and waits for their ends. On the strand, as all.
  void Close();

 private:
  // A driver that runs. Destruction kills it and waits for its end.
  using Running = services::ProgramProcess;
  using Launch = absl::AnyInvocable<Result<std::unique_ptr<Running>>(Running::Events)>;
  struct Driver {
    Incarnation number;
    // Null while it is being started.
    std::unique_ptr<Running> process;
    // Asked for meanwhile; 0: none.
    int signal = 0;
    // To be sent when it runs.
    std::vector<v1::ToProgram> waiting;
  };
  // In the place of whatever drove the job before, with `start`, completed, for its first message;
  // `launch` runs on the thread of forks.
  Status StartAs(v1::ProgramStart start, Epoch key_of, Launch launch);
  void OnStarted(const std::string& job_id, Incarnation number,
                 Result<std::unique_ptr<Running>> process);
  // What a child's callbacks do: lines through a gate, and its end after the last of them.
  using OnLine = std::function<void(std::chrono::system_clock::time_point, std::string)>;
  OnLine LinesOf(const std::string& job_id, const std::shared_ptr<process::LineGate>& lines);
  std::function<void(process::Exit)> ExitOf(const std::string& job_id, Incarnation number,
                                            const std::shared_ptr<process::LineGate>& lines);
  void PassLines(const std::string& job_id, const std::shared_ptr<process::LineGate>& lines);
  void Signal(Driver& driver, int signal);
  // Kills what is left of it.
  void Bury(std::unique_ptr<Running> process);
  void OnExit(const std::string& job_id, Incarnation number, const process::Exit& exit);
  // The job's own, for its driver.
  std::string TfConfig(const ProgramLaunch& launch) const;

  Scheduler& strand_;
  const Options options_;
  std::string address_;
  std::map<std::string, Driver> drivers_;
  bool closed_ = false;
  Lifeline lifeline_;
  ThreadOffload forks_;
  // Not behind the starts: one that cannot die now holds up none of them.
  services::Burials burials_;
};

}  // namespace muster::coordinator
