// fork and exec with everything that may fail or allocate done before the fork.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "common/base/status.h"

namespace muster::process::internal {

struct SpawnOptions {
  // The file; empty: argv[0].
  std::string program;
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;
  std::set<std::string> empty_variables;
  std::map<int, int> descriptors;
  int oom_score = 0;
  // Becomes stdout and stderr of the child; -1: it inherits ours.
  int output = -1;
  // Becomes stderr alone; -1: `output`.
  int errors = -1;
};

// Returns the pid once the program runs (its exec has succeeded). The child leads a process group
// of its own and is killed when the calling *thread* ends: call from one that outlives the child.
// Where this process ignores SIGCHLD it does no more: how a child ends could not be known.
// Threading: any thread.
//   kNotFound: no such program.   kInvalidArgument: a descriptor below 3 asked for, or the file is
//   no executable of this machine.
Result<pid_t> Spawn(const SpawnOptions& options);

}  // namespace muster::process::internal
