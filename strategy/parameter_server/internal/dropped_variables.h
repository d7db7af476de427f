// Variables that the driver has dropped and that their servers may still have.
//
// Threading: any thread.
#pragma once

#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/mutex.h"
#include "ps/client/program_variable.h"

namespace muster::internal {

class DroppedVariables {
 public:
  void Add(ps::VariableHandle variable) {
    const MutexLock lock(mutex_);
    all_.push_back(std::move(variable));
  }

  // Has those that are due deleted, one after another; `deleted` asks the servers, and says whether
  // they have answered. A variable is here until then: who wants its name finds it while another
  // thread's request is under way, and sends one of his own, which servers take as done twice.
  void Delete(absl::FunctionRef<bool(const ps::VariableInfo&)> due,
              absl::FunctionRef<bool(const ps::VariableHandle&)> deleted) {
    std::vector<ps::VariableHandle> all;
    {
      const MutexLock lock(mutex_);
      all = all_;
    }
    for (const ps::VariableHandle& variable : all) {
      if (!due(*variable) || !deleted(variable)) continue;
      const MutexLock lock(mutex_);
      std::erase(all_, variable);
    }
  }

 private:
  Mutex mutex_;
  std::vector<ps::VariableHandle> all_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::internal
