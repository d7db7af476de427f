#include "common/telemetry/log.h"

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include "common/telemetry/log_format.h"
#include "tests/support/catch.h"

namespace muster::log {
namespace {

using std::chrono::system_clock;

constexpr system_clock::time_point kTime{std::chrono::microseconds(1'767'340'800'123'456)};

std::string Json(std::string_view message, const Fields& fields = {}) {
  return FormatJson(
      {.time = kTime, .level = Level::kWarning, .message = message, .fields = fields});
}
std::string Text(std::string_view message, const Fields& fields = {}) {
  return FormatText(
      {.time = kTime, .level = Level::kWarning, .message = message, .fields = fields});
}

// Sends log lines into a pipe for the life of the object.
class Captured {
 public:
  explicit Captured(Options options) {
    REQUIRE(::pipe(ends_) == 0);
    options.descriptor = ends_[1];
    Configure(std::move(options));
  }
  std::string Take() {
    Configure({});
    ::close(ends_[1]);
    std::string all;
    char buffer[4096];
    for (ssize_t got; (got = ::read(ends_[0], buffer, sizeof buffer)) > 0;) all.append(buffer, got);
    ::close(ends_[0]);
    return all;
  }

 private:
  int ends_[2];
};

TEST_CASE("a JSON line survives quotes, newlines, control characters and bad UTF-8",
          "[telemetry][unit]") {
  const std::string message = "a \"b\"\\\n\t\x01\x7F \xC3\xA9 \xFF \xE2\x82";

  const std::string line = Json(message);

  CHECK(line.find('\n') == line.size() - 1);
  const auto parsed = nlohmann::json::parse(line);
  CHECK(parsed["msg"] == "a \"b\"\\\n\t\x01\x7F \xC3\xA9 \\xff \\xe2\\x82");
  CHECK(parsed["level"] == "warning");
  CHECK(parsed["ts"] == "2026-01-02T08:00:00.123456Z");
}

TEST_CASE("overlong forms and surrogates are no UTF-8", "[telemetry][unit]") {
  for (const std::string bad : {"\xC0\xAF", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE0\x80\x80"}) {
    const auto parsed = nlohmann::json::parse(Json(bad));
    CHECK(parsed["msg"].get<std::string>().starts_with("\\x"));
  }
}

TEST_CASE("fields stand beside the message and cannot take its name", "[telemetry][unit]") {
  const auto parsed = nlohmann::json::parse(Json("m", {{"job", "j-1"}, {"msg", "forged"}}));

  CHECK(parsed["msg"] == "m");
  CHECK(parsed["job"] == "j-1");
  CHECK(parsed["field_msg"] == "forged");
}

TEST_CASE("text shows task and fields and lets nothing drive the terminal", "[telemetry][unit]") {
  const std::string line = Text("a\x1B[2J\nb", {{"task", "ps:0"}, {"job", "j-1"}});

  CHECK(line.substr(8) == ".123 W ps:0: a\\x1b[2J\n    b (job=j-1)\n");
}

TEST_CASE("the control characters beyond ASCII are escaped like the others", "[telemetry][unit]") {
  // What begins as ESC [ does, the last of them, and the first character behind them.
  const std::string message =
      "a\xC2\x9B"
      "2J\xC2\x9F\xC2\xA0z";

  CHECK(Text(message).ends_with(" W a\\u009b2J\\u009f\xC2\xA0z\n"));
  const std::string line = Json(message);
  CHECK(line.find('\xC2') == line.rfind('\xC2'));
  CHECK(nlohmann::json::parse(line)["msg"] == message);
}

TEST_CASE("lines below the level are not written", "[telemetry][unit]") {
  Captured captured({.level = Level::kWarning, .format = Format::kJson});
  Info("quiet");
  Warning("loud {}", 1);

  const std::string out = captured.Take();

  CHECK(out.find("quiet") == std::string::npos);
  CHECK(out.find("loud 1") != std::string::npos);
}

TEST_CASE("a line carries the fields of the process and its own", "[telemetry][unit]") {
  Captured captured({.format = Format::kAuto, .fields = {{"task", "ps:0"}}});
  With({{"job", "j-1"}}).Error("broken");

  const auto parsed = nlohmann::json::parse(captured.Take());

  CHECK(parsed["task"] == "ps:0");
  CHECK(parsed["job"] == "j-1");
  CHECK(parsed["level"] == "error");
}

TEST_CASE("a message without bound is cut and says so", "[telemetry][unit]") {
  Captured captured({.format = Format::kJson});
  Info("{}", std::string(20'000, 'x'));

  const auto parsed = nlohmann::json::parse(captured.Take());

  CHECK(parsed["msg"].get<std::string>().size() < 17'000);
  CHECK(parsed["msg"].get<std::string>().find("20000 bytes in all") != std::string::npos);
}

TEST_CASE("lines of several threads stay whole", "[telemetry][unit]") {
  Captured captured({.format = Format::kJson});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) Info("line {}", i);
    });
  }
  for (std::thread& thread : threads) thread.join();

  std::istringstream lines(captured.Take());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    CHECK(nlohmann::json::accept(line));
  }
  CHECK(count == 200);
}

TEST_CASE("a line is written whole into a pipe that does not block", "[telemetry][unit]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_NONBLOCK) == 0);
  // Less than a line takes.
  REQUIRE(::fcntl(ends[1], F_SETPIPE_SZ, 4'096) > 0);
  Configure({.format = Format::kJson, .descriptor = ends[1]});
  std::string all;
  std::thread reader([&all, from = ends[0]] {
    pollfd wanted{.fd = from, .events = POLLIN, .revents = 0};
    char buffer[1'000];
    while (!all.ends_with('\n') && ::poll(&wanted, 1, 10'000) > 0) {
      const ssize_t got = ::read(from, buffer, sizeof buffer);
      if (got == 0) return;
      if (got > 0) all.append(buffer, static_cast<std::size_t>(got));
    }
  });

  Info("{}", std::string(15'000, 'x'));
  Configure({});
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);

  REQUIRE(nlohmann::json::accept(all));
  CHECK(nlohmann::json::parse(all)["msg"] == std::string(15'000, 'x'));
}

TEST_CASE("levels are read by name", "[telemetry][unit]") {
  CHECK(ParseLevel("warning") == Level::kWarning);
  CHECK_FALSE(ParseLevel("loud").has_value());
}

}  // namespace
}  // namespace muster::log
