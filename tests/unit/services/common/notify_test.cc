// What a daemon tells systemd.
#include "services/common/notify.h"

#include <future>

#include "services/common/daemon.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/common/notify_socket.h"

namespace muster::services {
namespace {

using std::chrono::milliseconds;

Daemon DaemonWith(const testing::TempFolder& folder,
                  const std::map<std::string, std::string>& variables) {
  const std::string path = folder / "token";
  std::ofstream(path) << "0123456789abcdef\n";
  ::chmod(path.c_str(), 0600);
  DaemonConfig config;
  config.values = *config::Resolve(
      DaemonSettings({.program = "muster-test", .about = "Test.", .task_type = "ps"}), {},
      FixedEnvironment({}));
  return Daemon(std::move(config), *Token::Read(path), nullptr, FixedEnvironment(variables), 256,
                nullptr);
}

TEST_CASE("systemd's socket is told, and its absence is no error", "[services][unit]") {
  NotifySocket socket;

  CHECK(Notify(socket.path(), "READY=1"));
  CHECK_FALSE(Notify("", "READY=1"));
  CHECK_FALSE(Notify(socket.path() + "-not", "READY=1"));

  CHECK(socket.Next() == "READY=1");
}

TEST_CASE("what is said once waits until systemd has room for it", "[services][unit]") {
  NotifySocket socket;
  while (Notify(socket.path(), "STATUS=busy")) {
  }

  auto said = std::async(std::launch::async, [&socket] {
    return Notify(socket.path(), "READY=1", milliseconds(20'000));
  });
  const std::string heard = socket.NextLike("READY=1");

  CHECK(heard == "READY=1");
  CHECK(said.get());
}

TEST_CASE("the strand that does the work feeds the watchdog, and not while it stands still",
          "[services][unit]") {
  const testing::TempFolder folder;
  NotifySocket socket;
  Daemon daemon =
      DaemonWith(folder, {{"NOTIFY_SOCKET", socket.path()}, {"WATCHDOG_USEC", "20000"}});
  ThreadScheduler strand;
  daemon.FeedWatchdog(strand);
  for (int i = 0; i < 3; ++i) CHECK(socket.Next() == "WATCHDOG=1");

  std::promise<void> begun, goes_on;
  strand.Post([&] {
    begun.set_value();
    goes_on.get_future().wait();
  });
  begun.get_future().wait();
  while (!socket.Next(milliseconds(0)).empty()) {
  }
  CHECK(socket.Next(milliseconds(100)).empty());

  goes_on.set_value();
  CHECK(socket.Next() == "WATCHDOG=1");
  strand.Stop();
}

TEST_CASE("systemd hears what a daemon does, once, and what it did before it was ready stands",
          "[services][unit]") {
  const testing::TempFolder folder;
  NotifySocket socket;
  Daemon daemon = DaemonWith(folder, {{"NOTIFY_SOCKET", socket.path()}});

  SECTION("it has registered before it says that it listens") {
    daemon.SetStatus("attached, session 7");
    CHECK(socket.Next() == "STATUS=attached, session 7");
    daemon.Ready("listening on 127.0.0.1:1");
    CHECK(socket.Next() == "READY=1\nSTATUS=attached, session 7");
  }
  SECTION("nothing was said before") {
    daemon.Ready("listening on 127.0.0.1:1");
    CHECK(socket.Next() == "READY=1\nSTATUS=listening on 127.0.0.1:1");
    daemon.SetStatus("attached, session 7");
    daemon.SetStatus("attached, session 7");
    daemon.SetStatus("attached, session 8");
    CHECK(socket.Next() == "STATUS=attached, session 7");
    CHECK(socket.Next() == "STATUS=attached, session 8");
  }
  SECTION("while it drains that is all it says") {
    daemon.Drain("SIGTERM");
    CHECK(socket.Next().starts_with("STOPPING=1\nSTATUS=draining\n"));
    daemon.SetStatus("attached, session 7");
    CHECK(socket.Next(milliseconds(100)).empty());
  }
}

TEST_CASE("a watchdog that nobody asked for, or another process's, is not fed",
          "[services][unit]") {
  const testing::TempFolder folder;
  NotifySocket socket;
  for (const std::map<std::string, std::string>& more :
       {std::map<std::string, std::string>{},
        {{"WATCHDOG_USEC", "20000"}, {"WATCHDOG_PID", "1"}}}) {
    std::map<std::string, std::string> variables = more;
    variables["NOTIFY_SOCKET"] = socket.path();
    Daemon daemon = DaemonWith(folder, variables);
    ThreadScheduler strand;
    daemon.FeedWatchdog(strand);
    daemon.SetStatus("still here");
    CHECK(socket.Next() == "STATUS=still here");
    strand.Stop();
  }
}

}  // namespace
}  // namespace muster::services
