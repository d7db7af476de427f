#include "services/common/daemon_config.h"

#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"

namespace muster::services {
namespace {

Result<DaemonConfig> Make(const std::string& type, std::vector<const char*> arguments,
                          const std::map<std::string, std::string>& environment = {}) {
  const Role role{.program = "muster-test", .about = "Test.", .task_type = type};
  const auto settings = DaemonSettings(role);
  arguments.insert(arguments.begin(), "muster-test");
  const auto flags =
      config::ParseFlags(static_cast<int>(arguments.size()), arguments.data(), settings);
  if (!flags.ok()) return flags.status();
  auto values = config::Resolve(settings, *flags, FixedEnvironment(environment));
  if (!values.ok()) return values.status();
  return MakeDaemonConfig(role, *std::move(values), FixedEnvironment(environment));
}

constexpr const char* kCluster =
    R"({"cluster": {"chief": ["127.0.0.1:7000"], "ps": ["127.0.0.1:7001", "127.0.0.1:7002"]},
        "task": {"type": "ps", "index": 1}})";

TEST_CASE("TF_CONFIG names the task, its address and the coordinator", "[services][unit]") {
  const auto config = Make("ps", {"--token-file", "/t"}, {{"TF_CONFIG", kCluster}});

  REQUIRE(config.ok());
  CHECK(config->task.ToString() == "ps:1");
  CHECK(config->listen.ToString() == "127.0.0.1:7002");
  CHECK(config->coordinator == "127.0.0.1:7000");
  CHECK(config->cluster.has_value());
}

TEST_CASE("flags and variables win over TF_CONFIG", "[services][unit]") {
  const auto config = Make("ps", {"--task", "ps:0", "--token-file", "/t"},
                           {{"TF_CONFIG", kCluster}, {"MUSTER_COORDINATOR", "127.0.0.1:9"}});

  REQUIRE(config.ok());
  CHECK(config->task.ToString() == "ps:0");
  CHECK(config->listen.ToString() == "127.0.0.1:7001");
  CHECK(config->coordinator == "127.0.0.1:9");
}

TEST_CASE("one TF_CONFIG without a task may be every daemon's, each told its task by flag",
          "[services][unit]") {
  constexpr const char* kEverybodys =
      R"({"cluster": {"chief": ["127.0.0.1:7000"], "ps": ["127.0.0.1:7001", "127.0.0.1:7002"]}})";
  const auto ps =
      Make("ps", {"--task", "ps:1", "--token-file", "/t"}, {{"TF_CONFIG", kEverybodys}});
  REQUIRE(ps.ok());
  CHECK(ps->task.ToString() == "ps:1");
  CHECK(ps->listen.ToString() == "127.0.0.1:7002");
  CHECK(ps->coordinator == "127.0.0.1:7000");

  const auto chief = Make("chief", {"--token-file", "/t"}, {{"TF_CONFIG", kEverybodys}});
  REQUIRE(chief.ok());
  CHECK(chief->listen.ToString() == "127.0.0.1:7000");

  const auto untold = Make("ps", {"--token-file", "/t"}, {{"TF_CONFIG", kEverybodys}});
  CHECK(Message(untold.status()).find("no task.type") != std::string::npos);
  const auto none =
      Make("ps", {"--task", "ps:2", "--token-file", "/t"}, {{"TF_CONFIG", kEverybodys}});
  CHECK(none.status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the coordinator is chief:0 without being told", "[services][unit]") {
  const auto config = Make("chief", {"--listen", "127.0.0.1:0", "--token-file", "/t"});

  REQUIRE(config.ok());
  CHECK(config->task.ToString() == "chief:0");
  CHECK(config->coordinator.empty());
}

TEST_CASE("port 0 is for the flag only", "[services][unit]") {
  CHECK(Make("chief", {"--token-file", "/t"}, {{"MUSTER_LISTEN", "127.0.0.1:0"}}).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("each missing piece is named with its remedy", "[services][unit]") {
  const std::vector<std::pair<std::vector<const char*>, std::string>> cases = {
      {{}, "--task ps:0"},
      {{"--task", "ps:0"}, "--listen"},
      {{"--task", "ps:0", "--listen", "127.0.0.1:0"}, "--coordinator"},
      {{"--task", "ps:0", "--listen", "127.0.0.1:0", "--coordinator", "127.0.0.1:1"},
       "--token-file"},
      {{"--task", "worker:0"}, "runs tasks of type \"ps\""},
      {{"--task", "ps"}, "type:index"},
      {{"--task", "ps:-1"}, "type:index"},
      {{"--task", "ps:0", "--listen", "127.0.0.1"}, "host:port"},
      {{"--task", "ps:0", "--listen", "127.0.0.1:65536"}, "0 to 65535"},
      {{"--task", "ps:0", "--listen", "127.0.0.1:0", "--coordinator", "127.0.0.1:0"}, "port 0"},
  };
  for (const auto& [arguments, expected] : cases) {
    const auto config = Make("ps", arguments);
    REQUIRE_FALSE(config.ok());
    CHECK(Message(config.status()).find(expected) != std::string::npos);
  }
}

TEST_CASE("a TF_CONFIG without a chief asks for the coordinator", "[services][unit]") {
  const auto config = Make("ps", {}, {{"TF_CONFIG", R"({"cluster": {"ps": ["127.0.0.1:7001"]},
                                        "task": {"type": "ps", "index": 0}})"}});

  REQUIRE_FALSE(config.ok());
  CHECK(Message(config.status()).find("TF_CONFIG has no chief") != std::string::npos);
  CHECK(Message(config.status()).find("MUSTER_COORDINATOR") != std::string::npos);
}

TEST_CASE("addresses beyond loopback need --allow-insecure-network", "[services][unit]") {
  const std::vector<const char*> listen = {"--listen", "0.0.0.0:1", "--token-file", "/t"};
  const auto refused = Make("chief", listen);
  REQUIRE_FALSE(refused.ok());
  CHECK(Message(refused.status()).find("--allow-insecure-network") != std::string::npos);

  auto allowed = listen;
  allowed.push_back("--allow-insecure-network");
  const auto config = Make("chief", allowed);
  REQUIRE(config.ok());
  CHECK(config->insecure_network);

  CHECK_FALSE(Make("ps", {"--task", "ps:0", "--listen", "127.0.0.1:0", "--coordinator",
                          "192.0.2.1:5", "--token-file", "/t"})
                  .ok());
}

TEST_CASE(
    "with a certificate a daemon may bind any address, and says no to the insecure way as well",
    "[services][tls][unit]") {
  std::vector<const char*> flags = {"--listen",  "0.0.0.0:1", "--token-file", "/t",
                                    "--tls-ca",  "/ca",       "--tls-cert",   "/c",
                                    "--tls-key", "/k"};
  const auto config = Make("chief", flags);
  REQUIRE(config.ok());
  CHECK(config->tls.certificate == "/c");

  flags.push_back("--allow-insecure-network");
  CHECK(Message(Make("chief", flags).status()).find("leave one of the two out") !=
        std::string::npos);
}

TEST_CASE("the admin port goes beyond loopback by HTTPS, or when somebody says so",
          "[services][tls][unit]") {
  const auto with = [](std::vector<const char*> more) {
    std::vector<const char*> flags = {"--listen",     "127.0.0.1:1", "--token-file",    "/t",
                                      "--admin-port", "9400",        "--admin-address", "0.0.0.0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return Make("chief", flags);
  };
  const std::vector<const char*> tls = {"--tls-ca", "/ca", "--tls-cert", "/c", "--tls-key", "/k"};

  const auto refused = with({});
  REQUIRE_FALSE(refused.ok());
  CHECK(Message(refused.status()).find("--tls-cert") != std::string::npos);
  CHECK(Message(refused.status()).find("--allow-insecure-admin") != std::string::npos);
  const auto clear = with({"--allow-insecure-admin"});
  REQUIRE(clear.ok());
  CHECK_FALSE(clear->admin_tls);

  const auto behind = with(tls);
  REQUIRE(behind.ok());
  CHECK(behind->admin_tls);
  auto both = tls;
  both.push_back("--allow-insecure-admin");
  const auto beside = with(both);
  REQUIRE(beside.ok());
  CHECK_FALSE(beside->admin_tls);
}

TEST_CASE("IPv6 addresses are written in brackets", "[services][unit]") {
  CHECK(ParseEndpoint("[::1]:80")->ToString() == "[::1]:80");
  CHECK_FALSE(ParseEndpoint("::1:80").ok());
  CHECK(*IsLoopback("::1"));
  CHECK(*IsLoopback("127.3.2.1"));
  CHECK_FALSE(*IsLoopback("0.0.0.0"));
}

}  // namespace
}  // namespace muster::services
