// This worker's values of the per-worker ones, by their id: the object, or why it could not be
// built, or not yet.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::dispatch {

class WorkerValues {
 public:
  struct Entry {
    Result<std::shared_ptr<void>> value = std::shared_ptr<void>();
    // The error is the cluster's trouble: the driver has it built again.
    bool again = false;
  };

  void Set(ClosureId id, Entry entry) {
    const MutexLock lock(mutex_);
    values_.insert_or_assign(id, std::move(entry));
  }
  //   kNotFound: not built here, or released.
  Entry Get(ClosureId id) {
    const MutexLock lock(mutex_);
    const auto found = values_.find(id);
    if (found == values_.end()) {
      return {.value = NotFound("per-worker value {} is not on this worker",
                                id.value() & ~(std::uint64_t{1} << 63))};
    }
    return found->second;
  }
  void Release(ClosureId id) {
    // Its destructor may be anything: not under the lock.
    Entry last;
    const MutexLock lock(mutex_);
    if (const auto found = values_.find(id); found != values_.end()) {
      last = std::move(found->second);
      values_.erase(found);
    }
  }
  std::size_t size() {
    const MutexLock lock(mutex_);
    return values_.size();
  }

 private:
  Mutex mutex_;
  std::map<ClosureId, Entry> values_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::dispatch
