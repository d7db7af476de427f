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

void AliveMark::Renew(Scheduler& scheduler) {
  scheduler_ = &scheduler;
  if (fd_ < 0) {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const std::string pid = std::to_string(getpid());
    if (fd_ >= 0) (void)!write(fd_, pid.data(), pid.size());
  }
  if (fd_ < 0) return;
  (void)futimens(fd_, nullptr);
  timer_ = scheduler.RunAfter(kPeriod, [this] { Renew(*scheduler_); });
}

}  // namespace muster::coordinator
