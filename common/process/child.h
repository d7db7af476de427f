// Starting, watching and ending a child process.
//
// The child gets its own process group, dies with its parent (PR_SET_PDEATHSIG), and inherits only
// the descriptors it is given. Its stdout and stderr arrive line by line with the time of arrival.
//
// stdin is /dev/null. When it ends by itself, what is left of its group is killed. Lines beyond
// 64 KiB arrive in pieces.
//
// Threading: callbacks run on a thread of the child's own and may not call Wait() or End();
// Signal() from any thread; the destructor kills the child (SIGKILL to the group) and waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace muster::process {

// How a process ended: exactly one of exit code and signal.
struct Exit {
  int code = 0;
  int signal = 0;
  // With SIGKILL that was not ours: the kernel has ended processes of our control group for want of
  // memory since the child began, more than the children that are told so. MiB: the group's limit.
  bool out_of_memory = false;
  std::optional<std::uint64_t> memory_limit_mib = {};
  bool ok() const { return code == 0 && signal == 0; }
  // Asked for by somebody else, as far as one can see: SIGKILL (also the kernel's, when memory runs
  // out), SIGTERM and the like, or an orderly end.
  bool from_outside() const;
  // "exit code 3", "signal SIGKILL", "signal SIGKILL (out of memory: the limit is 512 MiB)".
  std::string ToString() const;
};

class Child {
 public:
  struct Options {
    std::vector<std::string> argv;
    // The file to run where argv[0] is a name for people alone; empty: argv[0], looked for in PATH.
    std::string program = {};
    // Added to this process's environment; an empty value removes the name.
    std::map<std::string, std::string> environment = {};
    // These are set, and empty, whatever `environment` says of them.
    std::set<std::string> empty_variables = {};
    // Descriptor numbers here -> numbers in the child (from 3).
    std::map<int, int> descriptors = {};
    // 0 to 1000: how much sooner than others the kernel ends it when memory runs out.
    int oom_score = 0;
    // Receives each line without its newline, stdout and stderr merged. Null: the child inherits
    // both.
    std::function<void(std::chrono::system_clock::time_point, std::string line)> on_line = {};
    // Receives stderr's lines apart from those of stdout, whose order with them is then that of
    // their arrival. Null: on_line receives them.
    std::function<void(std::chrono::system_clock::time_point, std::string line)> on_error_line = {};
    // Runs once, after the last line. May not destroy the Child.
    std::function<void(Exit)> on_exit = {};
  };

  // kNotFound: no such program, or the kernel finds no interpreter for it.  kPermissionDenied: not
  // executable, or on a file system mounted noexec.  kInvalidArgument: no format that it runs.
  // kResourceExhausted: no further process or thread, or no descriptors.
  static Result<std::unique_ptr<Child>> Start(Options options);
  virtual ~Child() = default;

  virtual int pid() const = 0;
  // To the whole process group; kNotFound once it has ended.
  virtual Status Signal(int signal) = 0;
  // Waits until it has ended, or `limit` has passed (kDeadlineExceeded).
  virtual Result<Exit> Wait(std::chrono::milliseconds limit) = 0;
  // SIGTERM, then SIGKILL after `grace`.
  virtual Exit End(std::chrono::milliseconds grace) = 0;
};

// The path of a program of ours: beside this executable (build/bin or <prefix>/bin), for tests also
// in ../bin.
std::string SiblingProgram(const std::string& name);

}  // namespace muster::process
