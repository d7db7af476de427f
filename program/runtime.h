// A program of the cluster: the first call of its main, and what its driver has then.
//
// The same executable runs in three roles (docs/decisions/0006): the driver, whose main() goes on
// behind Init(); executors, which serve its registered functions; the probe, which says what the
// program is. Its daemon speaks with it over a socket pair (proto/muster/v1/program.proto).
//
// Threading: Init() from main's thread, before others begin; the rest from any.
// Lifetime: what Init() makes lives as long as the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "dispatch/driver.h"

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::v1 {
class ProgramMembers;
class ProgramStart;
}  // namespace muster::v1

namespace muster::program {

struct Options {
  // The Muster that the program was built with, whose library may be another one now; empty: this
  // one. Workers take programs of their own release alone.
  std::string version = {};
  // The libtorch that the program was built with; empty: none. Hosts must agree in it.
  std::string torch_version = {};
  // In an executor, before anything else: so many threads are its for computing.
  std::function<void(unsigned)> use_threads = {};
};

// In the driver and in the evaluator it returns. An executor serves closures in it and ends with
// its daemon; a probe says its functions and ends. Without a cluster it prints the line of `muster
// submit` that would run the program and exits with 2.
void Init(int argc, char** argv, const Options& options = {});

// Whether Init() has found a daemon.
bool Started();
// What this process was told of its job, in every role. Aborts before Init().
const v1::ProgramStart& Start();

// A worker that the job has.
struct Worker {
  // The 3 of "worker:3".
  std::uint32_t index = 0;
  // Its executor's: another number is another process, whose memory is empty.
  Incarnation incarnation{};
  bool connected = false;
};

// A worker or a parameter server that the job has, or has had.
struct Task {
  std::string name;  // "ps:0"
  // A worker: its executor is connected. A server: its daemon is registered.
  bool up = false;
};

// The driver's.
class Runtime {
 public:
  virtual ~Runtime() = default;

  // Links to executors come and go by themselves: members are connected, again after a break, and
  // the verdicts of daemons are passed on.
  virtual dispatch::Driver& dispatch() = 0;

  // Waits until so many executors are connected at once.
  //   kDeadlineExceeded, kUnavailable: says for whom, and why.  kInvalidArgument: they run another
  //   program.  kCancelled: the job is to stop.
  virtual Status AwaitWorkers(std::size_t n, TimePoint deadline) = 0;
  // Members in the order of their index.
  virtual std::vector<Worker> workers() const = 0;
  // All that were ever there, workers first, by index.
  virtual std::vector<Task> tasks() const = 0;
  // Called with the members that are known, if any are, and after each change; one call at a time.
  // Be quick.
  virtual void OnMembers(std::function<void(const v1::ProgramMembers&)> tell) = 0;

  // A user has asked the job to stop; the process is killed when the grace is over.
  virtual std::stop_token stop_requested() const = 0;
  // What the program is at, for people: "epoch 3". Sent every half second at most.
  virtual void Report(std::string phase) = 0;
  // An error has left main(). Without it the end is OK, whatever the exit code.
  virtual void End(const Status& status) = 0;
};

// The evaluator's.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // main() of the driver has ended, or the job is to stop: the process is killed when the grace is
  // over.
  virtual std::stop_token stop_requested() const = 0;
  virtual void Evaluated(const std::string& checkpoint,
                         const std::map<std::string, double>& values) = 0;
};

// Null in other roles and before Init().
Runtime* Driver();
Evaluator* OwnEvaluator();

}  // namespace muster::program
