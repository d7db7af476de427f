// What a program on TPU cores hears when its process is asked to end, and how long it may wait.
#include "strategy/tpu/preemption_watcher.h"

#include <csignal>
#include <string>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "strategy/tpu/tpu_system.h"
#include "tests/support/catch.h"

namespace muster {
namespace {

struct Pipe {
  Pipe() { REQUIRE(::pipe(ends) == 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void Say(char one) const { (void)!::write(ends[1], &one, 1); }
  // 0: nothing within `limit_ms`.
  char Hear(int limit_ms) const {
    pollfd one{.fd = ends[0], .events = POLLIN, .revents = 0};
    char heard = 0;
    if (::poll(&one, 1, limit_ms) > 0) (void)!::read(ends[0], &heard, 1);
    return heard;
  }
  int ends[2];
};

auto OnTerminate() {
  struct sigaction now{};
  REQUIRE(::sigaction(SIGTERM, nullptr, &now) == 0);
  return now.sa_handler;
}

TEST_CASE("off TPU a watcher watches nothing, and waits for nobody", "[spec][PRE-07]") {
  const auto before = OnTerminate();
  const PreemptionWatcher watcher;
  CHECK(OnTerminate() == before);
  CHECK_FALSE(watcher.preemption_message().has_value());
  watcher.block_until_worker_exit();
}

TEST_CASE("on TPU a watcher has no message until the process is asked to end", "[spec][PRE-07]") {
  (void)initialize_tpu_system({.topology = "1x1x1x2"});
  const auto before = OnTerminate();
  {
    const PreemptionWatcher watcher;
    CHECK_FALSE(watcher.preemption_message().has_value());
    REQUIRE(::raise(SIGTERM) == 0);
    const PreemptionWatcher late;
    CHECK(watcher.preemption_message() == "SIGTERM: this process is asked to end");
    CHECK_FALSE(late.preemption_message().has_value());
  }
  CHECK(OnTerminate() == before);
  shutdown_tpu_system();
}

TEST_CASE("block_until_worker_exit returns when the process that started this one is gone",
          "[spec][PRE-07]") {
  (void)initialize_tpu_system({.topology = "1x1x1x2"});
  const Pipe told;
  const Pipe asked;
  const pid_t service = ::fork();
  REQUIRE(service >= 0);
  if (service == 0) {
    if (::fork() == 0) {
      const PreemptionWatcher watcher;
      told.Say('w');
      watcher.block_until_worker_exit();
      told.Say('g');
      ::_exit(0);
    }
    (void)asked.Hear(60'000);
    ::_exit(0);
  }
  CHECK(told.Hear(60'000) == 'w');
  CHECK(told.Hear(50) == 0);
  asked.Say('e');
  CHECK(told.Hear(60'000) == 'g');
  CHECK(::waitpid(service, nullptr, 0) == service);
  shutdown_tpu_system();
}

}  // namespace
}  // namespace muster
