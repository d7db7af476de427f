#include "services/coordinator/alive_mark.h"

#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace muster::coordinator {
namespace {

constexpr Millis kPeriod{250};

}  // namespace

AliveMark::~AliveMark() {
  if (scheduler_ != nullptr) (void)scheduler_->Cancel(timer_);
  if (fd_ >= 0) close(fd_);
}

std::optional<std::chrono::system_clock::time_point> AliveMark::Last() const {
  struct stat info{};
  if (stat(path_.c_str(), &info) != 0) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::seconds(info.st_mtim.tv_sec) +
                                               std::chrono::nanoseconds(info.st_mtim.tv_nsec));
}

std::uint32_t AliveMark::LastPid() const {
  std::uint32_t pid = 0;
  std::ifstream(path_) >> pid;
  return pid;
}

void AliveMark::Renew(Scheduler& scheduler, Offload& offload) {
  scheduler_ = &scheduler;
  offload_ = &offload;
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd_ < 0) return;
  const std::string pid = std::to_string(getpid());
  (void)!write(fd_, pid.data(), pid.size());
  RenewLater();
}

// The next one only when this one is done: on a disk that hangs there is one, not a queue.
void AliveMark::RenewLater() {
  offload_->Run([fd = fd_] { (void)futimens(fd, nullptr); },
                [this, here = lifeline_.Watch()] {
                  if (!here()) return;
                  timer_ = scheduler_->RunAfter(kPeriod, [this] { RenewLater(); });
                });
}

}  // namespace muster::coordinator
