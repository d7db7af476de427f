// How a daemon starts a process of a user's program: with the cluster's secrets left out, and as
// the first that the kernel ends when memory runs out.
//
// Threading: any thread.
#pragma once

#include <map>
#include <string>

#include "common/process/child.h"
#include "muster/v1/program.pb.h"

namespace muster::services {

// The daemon's own is 0 or lower: it must outlive the programs that it watches over.
inline constexpr int kProgramOomScore = 500;

// Changes to this daemon's environment that leave out where its token and its certificate are.
std::map<std::string, std::string> WithoutSecrets();
// The same, and all of its settings (MUSTER_*).
std::map<std::string, std::string> WithoutMuster();

// What runs `path` in the role and as the task that `start` says, WithoutMuster(); TF_CONFIG names
// its task in the job, and none of the cluster's ports, which daemons have bound; decoded copies
// and indexes of its data are below `data_cache`, if any.
process::Child::Options ProgramChild(const std::string& path, const v1::ProgramSpec& program,
                                     const v1::ProgramStart& start,
                                     const std::string& data_cache = {});

// Why a program's file could not be started, as its user or who keeps this host can mend it.
//   kInvalidArgument: no executable of this machine.  kFailedPrecondition: this host may not run
//   files there, or lacks the program's loader.
Status ExplainStart(const Status& why, const std::string& path);

}  // namespace muster::services
