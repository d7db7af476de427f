#include "strategy/train/internal/termination_notice.h"

#include <atomic>
#include <csignal>

#include "common/base/mutex.h"

namespace muster::internal {
namespace {

// What a signal's handler may touch is a global alone; it counts, so that each object knows what
// came since it was made.
std::atomic<std::uint64_t> notices{0};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

void OnTerminate(int) { notices.fetch_add(1); }

// What SIGTERM did before the first of the objects that live.
struct Living {
  Mutex mutex;
  int objects MUSTER_GUARDED_BY(mutex) = 0;
  struct sigaction before MUSTER_GUARDED_BY(mutex) = {};
};

Living& TheLiving() {
  static Living living;
  return living;
}

}  // namespace

TerminationNotice::TerminationNotice() : before_(notices.load()) {
  Living& living = TheLiving();
  const MutexLock lock(living.mutex);
  if (++living.objects > 1) return;
  struct sigaction wanted{};
  wanted.sa_handler = OnTerminate;
  wanted.sa_flags = SA_RESTART;
  ::sigemptyset(&wanted.sa_mask);
  ::sigaction(SIGTERM, &wanted, &living.before);
}

TerminationNotice::~TerminationNotice() {
  Living& living = TheLiving();
  const MutexLock lock(living.mutex);
  if (--living.objects == 0) ::sigaction(SIGTERM, &living.before, nullptr);
}

bool TerminationNotice::came() const { return notices.load() != before_; }

}  // namespace muster::internal
