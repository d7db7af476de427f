// An executor whose driver stands still.
#include <bit>
#include <future>
#include <mutex>
#include <vector>

#include "dispatch/wire.h"
#include <poll.h>

#include "common/net/channel.h"
#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

// Proves itself, sends so many closures that give back a mebibyte each, and then reads nothing.
// With a limit one goes before them that does not hear anything, and may run for so long.
std::unique_ptr<net::DuplexLink> StoppedDriver(const RunningExecutor& executor,
                                               const Program& program, std::uint64_t closures,
                                               std::uint32_t limit_ms = 0) {
  auto fd = net::ConnectUnix(executor.address(), Soon());
  REQUIRE(fd.ok());
  auto stream = std::make_shared<net::Stream>(*std::move(fd));
  {
    net::Channel channel(stream, net::LinkKind::kUnix, executor.address(),
                         {.meta_bytes = 16'384, .payload_bytes = 0});
    const WireSubject subject{.functions = program.functions.hash()};
    REQUIRE(net::GreetServer(channel, {.token = "key", .host_id = "host"}, "driver",
                             std::bit_cast<net::Subject>(subject), Soon())
                .ok());
  }
  auto link = std::make_unique<net::DuplexLink>(std::move(stream), net::LinkKind::kUnix, "executor",
                                                net::DuplexLink::Options());
  Batch credit(Verb::kCredit);
  (void)credit.Add({});
  REQUIRE(credit.QueueOn(*link).ok());
  Batch batch(Verb::kClosures);
  if (limit_ms > 0) {
    (void)batch.Add({.closure = ClosureId(closures + 1),
                     .attempt = Attempt(1),
                     .function = program.deaf,
                     .run_time = limit_ms});
  }
  const std::vector<std::byte> argument(std::size_t{1} << 20);
  for (std::uint64_t id = 1; id <= closures; ++id) {
    (void)batch.Add({.closure = ClosureId(id), .attempt = Attempt(1), .function = program.echo},
                    argument);
  }
  REQUIRE(batch.QueueOn(*link).ok());
  while (!link->Flush().value()) {
    pollfd room{.fd = link->fd(), .events = POLLOUT, .revents = 0};
    REQUIRE(::poll(&room, 1, 20'000) == 1);
  }
  return link;
}

TEST_CASE("a driver that stands still is given up while a result waits for room",
          "[dispatch][unit]") {
  Program program;
  Executor::Options options;
  options.link.most_unsent = std::size_t{1} << 20;
  options.link.ping_every = 50ms;
  options.link.silence = 200ms;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix, 1, "key", std::move(options));

  const auto link = StoppedDriver(executor, program, 16);

  pollfd end{.fd = link->fd(), .events = POLLRDHUP, .revents = 0};
  CHECK(::poll(&end, 1, 20'000) == 1);
}

TEST_CASE("a closure beyond its deadline is given up though its driver takes no results",
          "[dispatch][unit]") {
  Program program;
  std::promise<std::string> told;
  std::once_flag first;
  Executor::Options options;
  options.link.most_unsent = std::size_t{1} << 20;
  options.on_stuck = [&](const std::string& what) {
    std::call_once(first, [&] { told.set_value(what); });
    program.gate.Open();
  };
  auto said = told.get_future();
  RunningExecutor executor(program.functions, net::LinkKind::kUnix, 2, "key", std::move(options));

  const auto link = StoppedDriver(executor, program, 16, 50);

  REQUIRE(said.wait_until(Soon()) == std::future_status::ready);
  CHECK(said.get() == "closure 17: deaf has run for 50 ms, its deadline");
}

}  // namespace
}  // namespace muster::dispatch
