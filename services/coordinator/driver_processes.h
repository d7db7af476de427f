// The driver processes (muster-trainer) as children of this daemon: they die with it.
//
// A fork takes long on a machine that is short of memory, and the end of a child is waited for:
// both happen on a thread of their own, so Start() cannot say that a program does not start; that
// is an end like any other (`on_exit`).
//
// Threading: Start and Stop on the strand; what the children do is posted there.
// Lifetime: `strand` outlives it; the callbacks run on the strand, never after Close().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/process/child.h"
#include "coordinator/offload.h"
#include "coordinator/world.h"

namespace muster::coordinator {

class DriverProcesses : public Drivers {
 public:
  struct Options {
    std::string program;
    std::string token_file;
    std::function<void(const std::string& job, std::int64_t time_us, std::string line)> on_line;
    std::function<void(const std::string& job, std::uint64_t number, bool success,
                       const std::string& how)>
        on_exit;
  };

  DriverProcesses(Scheduler& strand, Options options)
      : strand_(strand), options_(std::move(options)), forks_(strand) {}

  // Where the drivers find this coordinator; known once it listens.
  void set_address(std::string address) { address_ = std::move(address); }

  Status Start(const std::string& job_id, std::uint64_t number) override;
  int Pid(const std::string& job_id) const override;
  void Stop(const std::string& job_id, Millis grace) override;
  // Ends all of them (SIGKILL); on the strand.
  void Close();

 private:
  struct Driver {
    std::uint64_t number = 0;
    // Null while it is being started.
    std::unique_ptr<process::Child> child;
    // Asked for meanwhile; 0: none.
    int signal = 0;
  };
  void OnStarted(const std::string& job_id, std::uint64_t number,
                 Result<std::unique_ptr<process::Child>> child);
  void Signal(Driver& driver, int signal);
  // Kills what is left of it.
  void Bury(std::unique_ptr<process::Child> child);
  void OnExit(const std::string& job_id, std::uint64_t number, const process::Exit& exit);

  Scheduler& strand_;
  const Options options_;
  std::string address_;
  std::map<std::string, Driver> drivers_;
  bool closed_ = false;
  ThreadOffload forks_;
};

}  // namespace muster::coordinator
