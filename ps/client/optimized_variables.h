// Which variables have an optimizer on all their shards, as far as a client knows. One that is
// attached stays as long as its variable lives.
//
// Threading: any thread.
#pragma once

#include <set>

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace muster::ps {

// By VariableInfo::id.
class OptimizedVariables {
 public:
  void Add(VariableId variable) {
    const MutexLock lock(mutex_);
    known_.insert(variable);
  }
  void Remove(VariableId variable) {
    const MutexLock lock(mutex_);
    known_.erase(variable);
  }
  bool Contains(VariableId variable) const {
    const MutexLock lock(mutex_);
    return known_.contains(variable);
  }

 private:
  mutable Mutex mutex_;
  std::set<VariableId> known_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
