// The real binary with bad input: exit code and message.
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>

#include "common/process/child.h"
#include "services/common/grpc_server.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/common/notify_socket.h"

namespace muster::services {
namespace {

using std::chrono::seconds;

struct Outcome {
  process::Exit exit;
  std::string output;
};

struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  std::string output;
  std::unique_ptr<process::Child> child;

  Running(const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment,
          const std::vector<std::string>& before = {}) {
    process::Child::Options options;
    options.argv = before;
    options.argv.push_back(process::SiblingProgram("muster-ps"));
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.environment = {
        {"TF_CONFIG", ""}, {"MUSTER_TOKEN_FILE", ""}, {"MUSTER_COORDINATOR", ""}};
    for (const auto& [name, value] : environment) options.environment[name] = value;
    options.on_line = [this](auto, const std::string& line) {
      const std::scoped_lock lock(mutex);
      output += line + "\n";
      changed.notify_all();
    };
    auto started = process::Child::Start(std::move(options));
    REQUIRE(started.ok());
    child = *std::move(started);
  }
  bool Says(const std::string& text) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(20),
                            [&] { return output.find(text) != std::string::npos; });
  }
  Outcome Wait() {
    const auto exit = child->Wait(seconds(20));
    REQUIRE(exit.ok());
    return {.exit = *exit, .output = output};
  }
};

Outcome RunPs(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment = {}) {
  return Running(arguments, environment).Wait();
}

std::string TokenFile(const testing::TempFolder& dir, mode_t mode = 0600) {
  const std::string path = dir / "token";
  std::ofstream(path) << "0123456789abcdef\n";
  ::chmod(path.c_str(), mode);
  return path;
}

std::vector<std::string> Arguments(const std::string& token, const std::string& listen) {
  return {"--task",       "ps:0", "--coordinator", "127.0.0.1:1",
          "--token-file", token,  "--listen",      listen};
}

TEST_CASE("a bad TF_CONFIG ends a daemon with 78 and says what is wrong", "[services][unit]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"cluster": )", "not JSON"},
      {R"({"cluster": {"ps": ["127.0.0.1:99999"]}, "task": {"type": "ps", "index": 0}})", "99999"},
      {R"({"cluster": {"chief": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]},
           "task": {"type": "ps", "index": 0}})",
       "chief"},
      {R"({"cluster": {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:3"]},
           "task": {"type": "ps", "index": 1}})",
       "task_id 1"},
      {R"({"cluster": {"ps": ["127.0.0.1:3"]}, "task": {"type": "ps", "index": 0}})",
       "MUSTER_COORDINATOR"},
  };
  for (const auto& [text, expected] : cases) {
    const Outcome outcome = RunPs({}, {{"TF_CONFIG", text}});
    INFO(outcome.output);
    CHECK(outcome.exit.code == 78);
    CHECK(outcome.output.find(expected) != std::string::npos);
    CHECK(outcome.output.find("TF_CONFIG") != std::string::npos);
  }
}

TEST_CASE("a bad flag ends a daemon with 2", "[services][unit]") {
  const Outcome outcome = RunPs({"--lisen", "127.0.0.1:0"});

  CHECK(outcome.exit.code == 2);
  CHECK(outcome.output.find("--listen") != std::string::npos);
}

TEST_CASE("a token file that others may read ends a daemon with 78", "[services][unit]") {
  const testing::TempFolder dir;

  const Outcome outcome = RunPs(Arguments(TokenFile(dir, 0644), "127.0.0.1:0"));

  CHECK(outcome.exit.code == 78);
  CHECK(outcome.output.find("chmod 600") != std::string::npos);
}

TEST_CASE("a port in use ends a daemon with 1", "[services][unit]") {
  const testing::TempFolder dir;
  const auto holder = GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}});
  REQUIRE(holder.ok());

  const Outcome outcome = RunPs(Arguments(TokenFile(dir), (*holder)->endpoint().ToString()));

  CHECK(outcome.exit.code == 1);
  CHECK(outcome.output.find("in use") != std::string::npos);
}

TEST_CASE(
    "what may get better without other settings ends a daemon with 1, so that it is started anew",
    "[services][unit]") {
  using std::chrono::minutes;
  using testing::Certificates;
  const testing::TempFolder dir;
  Certificates certificates;
  const tls::Holder ps{.role = tls::Role::kNode, .names = {"ps:0"}};
  const tls::Files good = certificates.Issue("good", ps);
  std::vector<std::string> arguments = Arguments(TokenFile(dir), "127.0.0.1:0");
  const auto with = [&](const tls::Files& files) {
    return RunPs(arguments, {{"MUSTER_TLS_CA", files.ca},
                             {"MUSTER_TLS_CERT", files.certificate},
                             {"MUSTER_TLS_KEY", files.key}});
  };

  SECTION("a key that is in place before its certificate is") {
    const tls::Files next = certificates.Issue("next", ps);
    const Outcome outcome = with({.ca = good.ca, .certificate = good.certificate, .key = next.key});
    INFO(outcome.output);
    CHECK(outcome.exit.code == 1);
    CHECK(outcome.output.find("is not the key of the certificate") != std::string::npos);
  }
  SECTION("a certificate that is not valid yet, by a clock that is not set") {
    const Outcome outcome =
        with(certificates.Issue("early", ps, {}, Certificates::FromTo(minutes(10), minutes(60))));
    INFO(outcome.output);
    CHECK(outcome.exit.code == 1);
    CHECK(outcome.output.find("look at the clocks") != std::string::npos);
  }
  SECTION("a coordinator whose name does not resolve") {
    arguments[3] = "no-such-host.invalid:1";
    const Outcome outcome = RunPs(arguments);
    INFO(outcome.output);
    CHECK(outcome.exit.code == 1);
    CHECK(outcome.output.find("coordinator no-such-host.invalid:1") != std::string::npos);
  }
  SECTION("but not a setting that is missing") {
    const Outcome outcome = with({.ca = good.ca, .certificate = good.certificate});
    INFO(outcome.output);
    CHECK(outcome.exit.code == 78);
    CHECK(outcome.output.find("tls-key is missing") != std::string::npos);
  }
}

TEST_CASE("SIGTERM drains a daemon that still waits for its coordinator", "[services][unit]") {
  const testing::TempFolder dir;
  Running daemon(Arguments(TokenFile(dir), "127.0.0.1:0"), {});
  REQUIRE(daemon.Says("waiting for the coordinator at 127.0.0.1:1"));

  REQUIRE(daemon.child->Signal(SIGTERM).ok());

  CHECK(daemon.Wait().exit.ToString() == "exit code 0");
}

TEST_CASE("the end of the terminal it was started from drains a daemon, unless under nohup",
          "[services][unit]") {
  const testing::TempFolder dir;
  const auto arguments = Arguments(TokenFile(dir), "127.0.0.1:0");
  const std::string waits = "waiting for the coordinator at 127.0.0.1:1";
  SECTION("drains, whatever else the session's end sends") {
    Running daemon(arguments, {});
    REQUIRE(daemon.Says(waits));
    REQUIRE(daemon.child->Signal(SIGHUP).ok());
    CHECK(daemon.Says("SIGHUP: draining"));
    (void)daemon.child->Signal(SIGHUP);
    (void)daemon.child->Signal(SIGTERM);

    const Outcome outcome = daemon.Wait();
    INFO(outcome.output);
    CHECK(outcome.exit.ToString() == "exit code 0");
  }
  SECTION("goes on under nohup") {
    Running daemon(arguments, {}, {"/usr/bin/nohup"});
    REQUIRE(daemon.Says(waits));
    REQUIRE(daemon.child->Signal(SIGHUP).ok());
    REQUIRE(daemon.child->Signal(SIGTERM).ok());

    const Outcome outcome = daemon.Wait();
    INFO(outcome.output);
    CHECK(outcome.exit.ToString() == "exit code 0");
    CHECK(outcome.output.find("SIGTERM: draining") != std::string::npos);
    CHECK(outcome.output.find("SIGHUP") == std::string::npos);
  }
}

TEST_CASE("a daemon tells systemd that it serves, lives, and how long its draining may take",
          "[services][unit]") {
  const testing::TempFolder dir;
  NotifySocket systemd;
  std::vector<std::string> arguments = Arguments(TokenFile(dir), "127.0.0.1:0");
  arguments.insert(arguments.end(), {"--drain-timeout", "20s"});
  Running daemon(arguments, {{"NOTIFY_SOCKET", systemd.path()}, {"WATCHDOG_USEC", "200000"}});

  CHECK(systemd.NextLike("READY=1\nSTATUS=listening on 127.0.0.1:").size() > 0);
  for (int i = 0; i < 3; ++i) CHECK(systemd.NextLike("WATCHDOG=1").size() > 0);
  REQUIRE(daemon.child->Signal(SIGTERM).ok());

  CHECK(systemd.NextLike("STOPPING=1") ==
        "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=35000000");
  CHECK(daemon.Wait().exit.ToString() == "exit code 0");
}

// What it logs would else go to whichever file or peer is opened first.
TEST_CASE("a daemon that was started without streams logs into nothing that it opens",
          "[services][unit]") {
  const testing::TempFolder dir;
  NotifySocket systemd;
  Running daemon(Arguments(TokenFile(dir), "127.0.0.1:0"), {{"NOTIFY_SOCKET", systemd.path()}},
                 {"/bin/sh", "-c", R"(exec "$@" <&- >&- 2>&-)", "sh"});

  REQUIRE(systemd.NextLike("READY=1").size() > 0);

  // A library has an eventfd at 0 before main(): nothing is read or written there.
  for (const int stream : {1, 2}) {
    CAPTURE(stream);
    const auto open = fmt::format("/proc/{}/fd/{}", daemon.child->pid(), stream);
    CHECK(std::filesystem::read_symlink(open) == "/dev/null");
  }
  REQUIRE(daemon.child->Signal(SIGTERM).ok());
  CHECK(daemon.Wait().exit.ToString() == "exit code 0");
}

TEST_CASE("help and version answer and end with 0", "[services][unit]") {
  CHECK(RunPs({"--help"}).output.find("--coordinator") != std::string::npos);
  const Outcome version = RunPs({"--version"});
  CHECK(version.exit.ok());
  CHECK(version.output.find("muster-ps 0.") == 0);
}

}  // namespace
}  // namespace muster::services
