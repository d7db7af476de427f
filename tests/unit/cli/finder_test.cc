#include <filesystem>
#include <fstream>

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cluster_finder.h"
#include "cli/registry.h"
#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"

namespace muster::cli {
namespace {

struct FinderFixture {
  FinderFixture() {
    WriteToken("token", "0123456789abcdef\n", 0600);
    variables["XDG_RUNTIME_DIR"] = folder.path();
  }

  void WriteToken(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(folder / name) << text;
    REQUIRE(::chmod((folder / name).c_str(), mode) == 0);
  }
  Result<Cluster> Find() { return FindCluster(options, FixedEnvironment(variables)); }
  // An `up` of this process.
  void RegisterUp() {
    const auto runtime = RuntimeDirectory(FixedEnvironment(variables));
    REQUIRE(runtime.ok());
    REQUIRE(Register(*runtime, {.address = "127.0.0.1:7", .token_file = folder / "token"}).ok());
  }

  const muster::testing::TempFolder folder;
  std::map<std::string, std::string> variables;
  Options options;
};

TEST_CASE_METHOD(FinderFixture, "without a cluster the message says how to start one",
                 "[cli][unit]") {
  const auto cluster = Find();
  REQUIRE_FALSE(cluster.ok());
  CHECK(CodeOf(cluster.status()) == ExitCode::kUnreachable);
  CHECK(Message(cluster.status()).find("Start one with `muster up`") != std::string::npos);
}

TEST_CASE_METHOD(FinderFixture, "a flag counts more than a variable, that more than an `up`",
                 "[cli][unit]") {
  RegisterUp();
  CHECK(Find()->address == "127.0.0.1:7");
  CHECK(Find()->token == "0123456789abcdef");
  variables["MUSTER_COORDINATOR"] = "h:1";
  variables["MUSTER_TOKEN_FILE"] = folder / "token";
  CHECK(Find()->address == "h:1");
  options.coordinator = "h:2";
  CHECK(Find()->address == "h:2");
}

TEST_CASE_METHOD(FinderFixture, "the token of an `up` is not sent to another cluster",
                 "[cli][unit]") {
  RegisterUp();
  options.coordinator = "h:2";
  CHECK(CodeOf(Find().status()) == ExitCode::kForbidden);
  options.coordinator = "127.0.0.1:7";
  CHECK(Find().ok());
}

TEST_CASE_METHOD(FinderFixture, "a token file must be there and hold one line", "[cli][unit]") {
  options.coordinator = "h:1";
  options.token_file = folder / "none";
  CHECK(CodeOf(Find().status()) == ExitCode::kForbidden);
  WriteToken("empty", "\n", 0600);
  options.token_file = folder / "empty";
  CHECK(CodeOf(Find().status()) == ExitCode::kForbidden);
}

TEST_CASE_METHOD(FinderFixture, "a token of bytes that no header takes is refused", "[cli][unit]") {
  options.coordinator = "h:1";
  options.token_file = folder / "token";
  for (const char* bad :
       {"0123456789\001abcdef\n", "0123456789abcd\xc3\xa9\n", "01234567 89abcdef\n"}) {
    CAPTURE(bad);
    WriteToken("token", bad, 0600);
    CHECK(CodeOf(Find().status()) == ExitCode::kForbidden);
    CHECK(Message(Find().status()).find("not printable ASCII") != std::string::npos);
  }
}

TEST_CASE_METHOD(FinderFixture, "a token that others may read is not used", "[cli][unit]") {
  options.coordinator = "h:1";
  options.token_file = folder / "token";
  CHECK(Find().ok());
  WriteToken("token", "0123456789abcdef\n", 0644);
  CHECK(CodeOf(Find().status()) == ExitCode::kForbidden);
  CHECK(Message(Find().status()).find("0644") != std::string::npos);
}

TEST_CASE_METHOD(FinderFixture, "an `up` that has died is forgotten", "[cli][unit]") {
  RegisterUp();
  const std::string up = folder / "muster/up";
  // The same pid, started at another time: a stranger.
  std::ofstream(fmt::format("{}/{}.json", up, getpid())) << fmt::format(
      "{{\"pid\":{},\"start_ticks\":1,\"address\":\"a:1\",\"token_file\":\"t\","
      "\"state_directory\":\"s\",\"started_ms\":1}}",
      getpid());
  std::ofstream(up + "/junk.json") << "{";

  CHECK_FALSE(Find().ok());
  CHECK_FALSE(std::filesystem::exists(fmt::format("{}/{}.json", up, getpid())));
}

TEST_CASE_METHOD(FinderFixture, "an address that is none is a mistake of who named it",
                 "[cli][unit]") {
  variables["MUSTER_TOKEN_FILE"] = folder / "token";
  for (const char* bad : {"nonsense", "h:", ":1", "h:0", "h:65536", "h:1x", "http://h:1", "::1"}) {
    CAPTURE(bad);
    variables["MUSTER_COORDINATOR"] = bad;
    const Result<Cluster> found = Find();
    CHECK(CodeOf(found.status()) == ExitCode::kUsage);
    CHECK(Message(found.status()).starts_with("MUSTER_COORDINATOR: \"" + std::string(bad) + "\""));
  }
  options.coordinator = "x";
  CHECK(Message(Find().status()).starts_with("--coordinator: \"x\" is no HOST:PORT"));
  options.coordinator = "[::1]:4711";
  CHECK(Find().ok());
}
}  // namespace
}  // namespace muster::cli
