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
    std::swap(values_[id], entry);  // what was there ends with the caller's
  }
  //   kNotFound: not built here, or released.
  Entry Get(ClosureId id) {
    const MutexLock lock(mutex_);
    const auto found = values_.find(id);
    if (found == values_.end()) {
      return {.value = NotFound("per-worker value {} is not on this worker: it was "
                                "released, or given up here (states() has why)",
                                id.value() & ~(std::uint64_t{1} << 63))};
    }
    return found->second;
  }
  // No closure finds it any more. The caller ends it, which may take as long as its destructor
  // likes; null: there was none.
  std::shared_ptr<void> Take(ClosureId id) {
    const MutexLock lock(mutex_);
    const auto found = values_.find(id);
    if (found == values_.end()) return nullptr;
    std::shared_ptr<void> last = std::move(found->second.value).value_or(nullptr);
    values_.erase(found);
    return last;
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
