// Keeps the pages of very large transfers from piling up in this process: while one runs, the
// page-table entries of its part of the worker's arena are dropped again and again. The data stays
// in the arena; a page that is needed once more costs a fault.
//
// Threading: any thread. Lifetime: guards end before the Reclaimer.
#pragma once

#include <cstddef>
#include <list>
#include <span>
#include <thread>

#include "common/base/mutex.h"

namespace muster::ps {

class Reclaimer {
 public:
  class Guard {
   public:
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { owner_.Forget(at_); }

   private:
    friend class Reclaimer;
    using Place = std::list<std::span<std::byte>>::iterator;
    Guard(Reclaimer& owner, Place at) : owner_(owner), at_(at) {}
    Reclaimer& owner_;
    Place at_;
  };

  Reclaimer() : thread_([this] { Run(); }) {}
  ~Reclaimer();

  // Until the guard's end, `shared` (part of a shared mapping) is released every few milliseconds.
  Guard Watch(std::span<std::byte> shared);

 private:
  void Forget(Guard::Place at);
  void Run();

  Mutex mutex_;
  Condition changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::list<std::span<std::byte>> watched_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::ps
