#include "strategy/tpu/preemption_watcher.h"

#include <cerrno>
#include <chrono>
#include <thread>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/telemetry/log.h"
#include "strategy/base/error.h"
#include "strategy/tpu/tpu_system.h"
#include "strategy/train/internal/termination_notice.h"

namespace muster {
namespace {

// Where the kernel gives no descriptor of a process.
constexpr std::chrono::milliseconds kLook{200};

bool CoresAreUp() {
  try {
    (void)internal::current_topology();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

struct PreemptionWatcher::Impl {
  // Readable when the process that has started this one has ended; -1: there is none.
  Impl()
      : parent(::getppid()), descriptor(static_cast<int>(::syscall(SYS_pidfd_open, parent, 0))) {}
  ~Impl() {
    if (descriptor >= 0) ::close(descriptor);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const internal::TerminationNotice notice;
  const pid_t parent;
  const int descriptor;
};

PreemptionWatcher::PreemptionWatcher() {
  if (!CoresAreUp()) {
    log::Info("PreemptionWatcher: no TPU cores are up, so nothing is watched");
    return;
  }
  impl_ = std::make_unique<Impl>();
}

PreemptionWatcher::~PreemptionWatcher() = default;

std::optional<std::string> PreemptionWatcher::preemption_message() const {
  if (impl_ == nullptr || !impl_->notice.came()) return std::nullopt;
  return "SIGTERM: this process is asked to end";
}

void PreemptionWatcher::block_until_worker_exit() const {
  if (impl_ == nullptr) return;
  while (::getppid() == impl_->parent) {
    pollfd one{.fd = impl_->descriptor, .events = POLLIN, .revents = 0};
    if (impl_->descriptor < 0) {
      std::this_thread::sleep_for(kLook);
    } else if (::poll(&one, 1, -1) < 0 && errno != EINTR) {
      return;
    }
  }
}

}  // namespace muster
