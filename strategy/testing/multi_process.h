// Runs a program in several processes on this machine, as the tasks of a cluster: for tests of what
// trains on several workers, with nothing of a cluster but TF_CONFIG.
//
//   muster::MultiProcessRun run({.command = {"build/train", "--steps", "10"},
//                                .cluster = {{"worker", 2}}});
//   run.kill("worker:1");
//   const muster::MultiProcessResult result = run.join();  // throws: worker:1 ended by SIGKILL
//
// Every process has a TF_CONFIG with an address of its own, where nothing listens yet, and its
// output is kept, and shown behind "[worker-0]: ". Nothing outlives the run: children of a process
// that stay in its process group end with it.
//
// A process may be a function of this same program, too:
//
//   std::string train() { ...; return "loss 0.25"; }
//   MUSTER_PROCESS_FUNCTION(train);
//   int main() {
//     if (const auto code = muster::process_function_main()) return *code;
//     muster::MultiProcessRun run({.function = "train", .cluster = {{"worker", 2}}});
//     run.join().values.at("worker:0");  // {"loss 0.25"}
//   }
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategy/base/error.h"

namespace muster {

struct MultiProcessOptions {
  // What each task runs, looked for in PATH; "/proc/self/exe" is this same program (with a hidden
  // test case as its argument, for one). Exactly one of command and function.
  std::vector<std::string> command = {};
  std::string function = {};
  // How many tasks of each type: {{"chief", 1}, {"worker", 2}}.
  std::map<std::string, int> cluster = {{"worker", 2}};
  // Beside this process's own and TF_CONFIG; an empty value removes the name.
  std::map<std::string, std::string> environment = {};
  // From the start on; then what still runs is killed, and nothing is started any more.
  std::chrono::milliseconds limit{120'000};
  // A task that fails, or is killed, begins anew.
  bool restart = false;
  // When the chief (chief:0, else worker:0; the cluster has one of them) has ended the others are
  // asked to end, and killed 5 s later.
  bool end_with_chief = false;
  // Lines go to stdout as they come.
  bool print = true;
};

// How a process ended.
struct ProcessExit {
  int code = 0;
  // Not 0: the signal that ended it.
  int signal = 0;
  bool ok() const { return code == 0 && signal == 0; }
};
// "exit code 3", "signal SIGKILL".
std::string to_string(const ProcessExit& exit);

struct MultiProcessResult {
  // By "worker:0".
  std::map<std::string, ProcessExit> exits;
  // What its processes have handed over (process_result(), or what its function returned), oldest
  // first.
  std::map<std::string, std::vector<std::string>> values;
  // All that they have written, line by line.
  std::map<std::string, std::string> output;
};

// Threading: any thread. Every call throws kInvalidArgument for a task that the cluster does not
// have.
class MultiProcessRun {
 public:
  // Starts all tasks.
  //   kInvalidArgument: options that cannot be.  kNotFound: no such command.
  explicit MultiProcessRun(MultiProcessOptions options);
  // Kills what still runs.
  ~MultiProcessRun();
  MultiProcessRun(const MultiProcessRun&) = delete;
  MultiProcessRun& operator=(const MultiProcessRun&) = delete;

  // Begins it anew, under the same address. kFailedPrecondition: it runs, or the time limit of the
  // run (or one that join() was given) has ended tasks.
  void start(const std::string& task);
  // To its whole process group. One that ends by it counts as a failure: say so by `expected`.
  // kFailedPrecondition: it does not run.
  void kill(const std::string& task, int signal = 9, bool expected = false);
  // 0: it does not run.
  int pid(const std::string& task) const;
  // Where it is to listen, as TF_CONFIG says.
  std::string address(const std::string& task) const;
  std::string output(const std::string& task) const;
  // Until it has written a line that contains `text`; false: it has not within `limit`.
  bool wait_for_output(const std::string& task, const std::string& text,
                       std::chrono::milliseconds limit) const;
  // How it ended. kDeadlineExceeded: it runs still.
  ProcessExit wait(const std::string& task, std::chrono::milliseconds limit) const;
  // Until all have ended, and what came of it; what runs after `limit`, or the run's, is killed. A
  // failure counts more than the time limit, the first one most, also of a task that was started
  // again after it.
  //   kInternal: which task ended how, with the last line that it wrote.
  //   kDeadlineExceeded: which tasks had not ended in time.
  MultiProcessResult join(std::optional<std::chrono::milliseconds> limit = std::nullopt);
  // The same without errors.
  MultiProcessResult result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// --- In a process of a run.

// Hands a value to the run; any thread. kFailedPrecondition: this is no process of one.
void process_result(const std::string& value);
// Until all tasks of the run have come here as often; one thread of a process at a time.
//   kUnavailable: one of them has ended meanwhile, others may still be on their way; names it.
//   kFailedPrecondition: as above.
void process_barrier();
// Runs the function that this process is to run, if it is to run one: the exit code to leave main()
// with. An exception is printed, and is exit code 1.
std::optional<int> process_function_main();

namespace internal {
struct ProcessFunction {
  ProcessFunction(const char* name, std::string (*function)());
};
}  // namespace internal

}  // namespace muster

// Registers a function `std::string f()`, at namespace scope.
#define MUSTER_PROCESS_FUNCTION(function) \
  static const ::muster::internal::ProcessFunction muster_process_##function(#function, function)
