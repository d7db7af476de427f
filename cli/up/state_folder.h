// The folder where `muster up` keeps all that is its cluster's.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::cli {

// Makes `asked`, mode 0700, with the folders around it, or takes it up when it is there and is this
// user's alone; its absolute path, without a slash at the end. Where none is asked for it is a new
// one in `runtime`, "state-<pid>" or like it: one that an earlier cluster has left is not taken up,
// since in containers every process has the same pid.
//   kInvalidArgument: its path is not UTF-8.  Errors of MakePrivateDirectory().
Result<std::string> MakeStateFolder(const std::string& asked, const std::string& runtime);

}  // namespace muster::cli
