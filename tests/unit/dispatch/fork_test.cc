// Closures that fork, and whose child comes back from the function beside its parent.
#include <cerrno>
#include <stdexcept>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

// A process that this one's test ran into would go on with its sockets: it ends by itself.
void LetEnd() { (void)::alarm(60); }

int StatusOf(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

TEST_CASE("a child that a closure has forked neither answers nor throws in its parent's place",
          "[dispatch][unit]") {
  Program program;
  const std::uint32_t forks = program.functions.Add("forks", [](ClosureContext& context) {
    const pid_t child = ::fork();
    std::int64_t value = NumberIn(context.arguments());
    if (child == 0) {
      LetEnd();
      if (value == 1) throw std::runtime_error("the child's");
      value = -1;
    } else {
      const int status = StatusOf(child);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) value = -2;
    }
    const auto bytes = BytesOfValue(value);
    context.value().assign(bytes.begin(), bytes.end());
    return Ok();
  });
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  for (const std::int64_t number : {1, 2}) {
    const auto value = driver.Schedule(forks, BytesOfValue(number), Soon());
    REQUIRE(value.ok());
    const auto fetched = value->Fetch(Soon());
    REQUIRE(ToString(fetched.status()) == "OK");
    CHECK(NumberIn(*fetched) == number);
  }
  CHECK(driver.Join(Soon()).ok());
}

TEST_CASE("a child that a closure has forked sends nothing of what the closure writes",
          "[dispatch][unit]") {
  Program program;
  const std::uint32_t forks = program.functions.Add("forks", [](ClosureContext& context) {
    const pid_t child = ::fork();
    if (child == 0) LetEnd();
    const int status = child == 0 ? 0 : StatusOf(child);
    // As variables on servers ask before they send.
    if (!context.EndsInTime()) return Cancelled("too late");
    if (child == 0) ::_exit(7);
    const std::int64_t code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const auto bytes = BytesOfValue(code);
    context.value().assign(bytes.begin(), bytes.end());
    return Ok();
  });
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  const auto value = driver.Schedule(forks, {}, Soon());
  REQUIRE(value.ok());
  const auto fetched = value->Fetch(Soon());
  REQUIRE(ToString(fetched.status()) == "OK");
  CHECK(NumberIn(*fetched) == 1);
}

}  // namespace
}  // namespace muster::dispatch
