// A process that cannot be reaped, as one that hangs in a system call for ever.
#pragma once

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::testing {

// While it lives `pid`, a child of this process, may be killed, but its end is not told: another
// process traces it, and would have to hear of it first.
class Undying {
 public:
  explicit Undying(int pid) {
    int told[2];
    REQUIRE(::pipe2(told, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(hold_, O_CLOEXEC) == 0);
    tracer_ = ::fork();
    REQUIRE(tracer_ >= 0);
    if (tracer_ == 0) {
      ::close(hold_[1]);
      const char traces = ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0 ? 'y' : 'n';
      (void)!::write(told[1], &traces, 1);
      char end = 0;
      (void)!::read(hold_[0], &end, 1);  // until the test closes its end, or ends
      ::_exit(0);
    }
    char traces = 0;
    REQUIRE(::read(told[0], &traces, 1) == 1);
    for (const int fd : {told[0], told[1], hold_[0]}) ::close(fd);
    allowed_ = traces == 'y';
    if (!allowed_) WARN("left out: this user may not trace processes here");
  }
  ~Undying() { Release(); }
  Undying(const Undying&) = delete;
  Undying& operator=(const Undying&) = delete;

  // This user may trace here.
  bool allowed() const { return allowed_; }
  void Release() {
    if (tracer_ <= 0) return;
    ::close(hold_[1]);
    ::waitpid(tracer_, nullptr, 0);
    tracer_ = 0;
  }

 private:
  int hold_[2] = {-1, -1};
  pid_t tracer_ = 0;
  bool allowed_ = false;
};

}  // namespace muster::testing
