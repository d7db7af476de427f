// Asks the cluster's workers whether a spec can run there. A model: one compiles it, and one on
// each host opens the data; a worker whose host is in trouble (a full disk) is passed over while
// another can. A program: one on each host starts it as a probe, and all must say the same. A
// launched command: one on each host looks for it.
//
// Threading: one strand. Lifetime: `members` and `commands` outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "coordinator/commands.h"
#include "coordinator/membership.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::coordinator {

struct CheckOutcome {
  // Everything found wrong, with the host that says so; empty: it can run.
  std::vector<std::string> problems;
  std::vector<v1::VariableLayout> parameters;
  std::uint64_t training_examples = 0;
  std::uint64_t evaluation_examples = 0;
  // The data files by host.
  std::map<std::string, v1::DataFiles> data;
  // What a program's probes said.
  v1::CheckReport program;
};

class SpecChecker {
 public:
  SpecChecker(const Membership& members, Commands& commands)
      : members_(members), commands_(commands) {}

  // kUnavailable: no worker is up, or one was lost while it looked; ask again. kUnknown,
  // kResourceExhausted: a worker's disk failed or is full.
  void Check(const v1::JobSpec& spec, std::function<void(Result<CheckOutcome>)> then);

 private:
  struct Gathering;
  static void OnChecked(Gathering& all, const std::string& who,
                        const Result<v1::CommandResult>& result);
  static void OnProbed(Gathering& all, const std::string& who, const std::string& host,
                       const Result<v1::CommandResult>& result);
  static void OnProgramProbed(Gathering& all, const std::string& who,
                              const Result<v1::CommandResult>& result);
  void SendCheck(const std::shared_ptr<Gathering>& all);

  const Membership& members_;
  Commands& commands_;
};

}  // namespace muster::coordinator
