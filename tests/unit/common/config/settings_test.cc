#include "common/config/settings.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"

namespace muster::config {
namespace {

using namespace std::chrono_literals;
using Layer = Origin::Layer;

const std::vector<Setting> kSettings = {
    {.name = "coordinator", .doc = "Address of the coordinator."},
    {.name = "port",
     .kind = Kind::kInt,
     .fallback = "0",
     .doc = "Port.",
     .least = 0,
     .most = 65535},
    {.name = "lease",
     .kind = Kind::kDuration,
     .fallback = "3s",
     .doc = "Silence that loses a task.",
     .least = 0.2,
     .most = 600},
    {.name = "patience", .kind = Kind::kDuration, .doc = "Patience.", .least = 1},
    {.name = "stage-budget", .kind = Kind::kSize, .fallback = "64MiB", .doc = "Bytes staged."},
    {.name = "allow-insecure-network", .kind = Kind::kBool, .fallback = "false", .doc = "Danger."},
    {.name = "link", .fallback = "auto", .doc = "Link.", .choices = {"tcp", "local", "auto"}},
    {.name = "rate", .kind = Kind::kInt, .fallback = "5", .doc = "Rate.", .least = 0},
    {.name = "hosts", .kind = Kind::kList, .doc = "Hosts."},
};

Result<Flags> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "muster-test");
  return ParseFlags(static_cast<int>(arguments.size()), arguments.data(), kSettings);
}

// A file in a folder of its own.
class TempFile {
 public:
  explicit TempFile(const std::string& text) : path_(folder_.Write("settings.yaml", text)) {}
  const std::string& path() const { return path_; }

 private:
  const muster::testing::TempFolder folder_;
  const std::string path_;
};

Result<Values> FromFile(const TempFile& file) {
  Flags flags;
  flags.config_file = file.path();
  return Resolve(kSettings, flags, FixedEnvironment({}));
}

TEST_CASE("a flag wins over the environment, that over the file, that over the default",
          "[config][unit]") {
  const TempFile file("lease: 7s\nport: 7\nrate: 8\n");
  const Flags flags = Parse({"--port=9", "--config", file.path().c_str()}).value();

  const Values values =
      Resolve(kSettings, flags, FixedEnvironment({{"MUSTER_PORT", "8"}, {"MUSTER_LEASE", "8s"}}))
          .value();

  CHECK(values.Int("port") == 9);
  CHECK(values.OriginOf("port").layer == Layer::kFlag);
  CHECK(values.OriginOf("port").where == "--port");
  CHECK(values.Duration("lease") == 8s);
  CHECK(values.OriginOf("lease").where == "MUSTER_LEASE");
  CHECK(values.Int("rate") == 8);
  CHECK(values.OriginOf("rate").where == file.path() + ":3:7");
  CHECK(values.Size("stage-budget") == 64u << 20);
  CHECK(values.OriginOf("stage-budget").layer == Layer::kDefault);
  CHECK_FALSE(values.Given("stage-budget"));
  CHECK(values.Given("rate"));
}

TEST_CASE("every kind of value is read from flags", "[config][unit]") {
  const Flags flags = Parse({"--coordinator", "host:1", "--lease=1m30s", "--stage_budget=1GiB",
                             "--allow-insecure-network", "--link", "tcp", "--hosts", "a, b,c"})
                          .value();

  const Values values = Resolve(kSettings, flags, FixedEnvironment({})).value();

  CHECK(values.String("coordinator") == "host:1");
  CHECK(values.Duration<std::chrono::seconds>("lease") == 90s);
  CHECK(values.Size("stage-budget") == 1u << 30);
  CHECK(values.Bool("allow-insecure-network"));
  CHECK(values.String("link") == "tcp");
  CHECK(values.List("hosts") == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("a duration below the unit that it is asked for in is not taken for none",
          "[config][unit]") {
  const Flags flags = Parse({"--lease=200001us"}).value();

  const Values values = Resolve(kSettings, flags, FixedEnvironment({})).value();

  CHECK(values.Duration("lease") == 201ms);
  CHECK(values.Duration<std::chrono::hours>("lease") == 1h);
}

TEST_CASE("a switch can be turned off", "[config][unit]") {
  const Environment on = FixedEnvironment({{"MUSTER_ALLOW_INSECURE_NETWORK", "yes"}});
  const auto with = [&](std::vector<const char*> arguments) {
    const Flags flags = Parse(std::move(arguments)).value();
    return Resolve(kSettings, flags, on).value().Bool("allow-insecure-network");
  };

  CHECK(with({}));
  CHECK_FALSE(with({"--no-allow-insecure-network"}));
  CHECK_FALSE(with({"--allow-insecure-network=off"}));
}

TEST_CASE("a size below the least is refused with the least", "[config][unit]") {
  const std::vector<Setting> settings{{.name = "room", .kind = Kind::kSize, .least = 1 << 20}};
  const auto parse = [&](const char* flag) {
    const std::vector<const char*> arguments{"muster-ps", flag};
    return ToString(ParseFlags(2, arguments.data(), settings).status());
  };
  CHECK(parse("--room=1023KiB") ==
        "INVALID_ARGUMENT: --room: 1023KiB is too small; at least 1.0 MiB is allowed");
  CHECK(parse("--room=1MiB") == "OK");
}

TEST_CASE("a bad flag is refused with what was given and what is allowed", "[config][unit]") {
  const auto error = [](std::vector<const char*> arguments) {
    return ToString(Parse(std::move(arguments)).status());
  };

  CHECK(error({"--leese=3s"}) ==
        "INVALID_ARGUMENT: unknown flag --leese; did you mean \"--lease\"?");
  CHECK(error({"--quux"}) == "INVALID_ARGUMENT: unknown flag --quux; --help lists the flags");
  CHECK(error({"--port"}) == "INVALID_ARGUMENT: --port needs a value: --port=VALUE");
  CHECK(error({"--port", "--lease=3s"}) == "INVALID_ARGUMENT: --port needs a value: --port=VALUE");
  CHECK(error({"--port=65536"}) ==
        "INVALID_ARGUMENT: --port: 65536 is out of range; 0 to 65535 is allowed");
  CHECK(error({"--port=x"}) == "INVALID_ARGUMENT: --port: \"x\" is not a whole number");
  CHECK(error({"--rate=-1"}) == "INVALID_ARGUMENT: --rate: -1 is too small; at least 0 is allowed");
  CHECK(error({"--rate=nan"}) == "INVALID_ARGUMENT: --rate: \"nan\" is not a whole number");
  CHECK(error({"--link=tpc"}) ==
        "INVALID_ARGUMENT: --link: \"tpc\" is not one of tcp, local, auto; did you mean \"tcp\"?");
  CHECK(error({"--lease=100ms"}) ==
        "INVALID_ARGUMENT: --lease: 100ms is out of range; 200ms to 10m is allowed");
  CHECK(error({"--lease=11m"}) ==
        "INVALID_ARGUMENT: --lease: 11m is out of range; 200ms to 10m is allowed");
  CHECK(error({"--patience=0"}) ==
        "INVALID_ARGUMENT: --patience: 0 is too small; at least 1s is allowed");
  CHECK(error({"--lease=3"}).find("--lease: \"3\" is not a duration") != std::string::npos);
  CHECK(error({"start"}) ==
        "INVALID_ARGUMENT: unexpected argument \"start\"; --help lists the flags");
  CHECK(error({"--allow-insecure-network", "false"}).find("--allow-insecure-network=false") !=
        std::string::npos);
  CHECK(error({"--help=1"}) == "INVALID_ARGUMENT: --help takes no value, \"1\" was given");
}

TEST_CASE("a bad environment variable is named", "[config][unit]") {
  const Environment environment = FixedEnvironment({{"MUSTER_STAGE_BUDGET", "64Mb"}});

  const Status status = Resolve(kSettings, {}, environment).status();

  CHECK(Message(status).find("MUSTER_STAGE_BUDGET: stage-budget: \"64Mb\" is not a size") == 0);
}

TEST_CASE("an empty environment variable counts as not set", "[config][unit]") {
  const Environment environment = FixedEnvironment({{"MUSTER_LEASE", ""}, {"MUSTER_CONFIG", ""}});

  CHECK(Resolve(kSettings, {}, environment).value().Duration("lease") == 3s);
}

TEST_CASE("MUSTER_CONFIG names the file where no flag does", "[config][unit]") {
  const TempFile file("stage_budget: 1KiB\nhosts: [x, y]\nallow-insecure-network: true\n");

  const Values values =
      Resolve(kSettings, {}, FixedEnvironment({{"MUSTER_CONFIG", file.path()}})).value();

  CHECK(values.Size("stage-budget") == 1024);
  CHECK(values.List("hosts") == std::vector<std::string>{"x", "y"});
  CHECK(values.Bool("allow-insecure-network"));
}

TEST_CASE("errors in the file say file, line and column", "[config][unit]") {
  const auto error = [](const std::string& text) {
    const TempFile file(text);
    std::string message = Message(FromFile(file).status());
    const std::size_t at = message.find(file.path());
    REQUIRE(at == 0);
    return message.substr(file.path().size());
  };

  CHECK(error("port: 1\nleese: 3s\n") == ":2:1: unknown key \"leese\"; did you mean \"lease\"?");
  CHECK(error("quux: 1\n").find(":1:1: unknown key \"quux\"; known are coordinator, port,") == 0);
  CHECK(error("port: many\n") == ":1:7: port: \"many\" is not a whole number");
  CHECK(error("port: [1]\n") == ":1:7: port is one value, not a list");
  CHECK(error("port: {a: 1}\n") == ":1:7: port is one value, not a mapping");
  CHECK(error("lease:\nport: 1\n") == ":1:1: lease is one value, not a blank");
  CHECK(error("port: 1\ncoordinator: m\xFCnchen:1\n") ==
        ":2: byte \\xfc is not UTF-8: save the file as UTF-8");
  CHECK(error("port: 1\nport: 2\n").find(":2:1: port is given twice, first at ") == 0);
  CHECK(error("- a\n- b\n").find(":1:1: a file of settings is") == 0);
  CHECK(error("a: b: c\n").find(":1:5: not YAML: ") == 0);
  CHECK(error("port: 1\n---\nport: 2\n") ==
        ":2:1: another YAML document begins here; a file of settings is one");
  CHECK(error(",port: 1\n").find("not YAML: ") != std::string::npos);
  CHECK(error(std::string(2 << 20, ' ')).find(": longer than 1048576 bytes") == 0);
  CHECK(error(std::string(20'000, '[')).find("not YAML") != std::string::npos);
}

TEST_CASE("a bad line in the file is an error even where a flag hides it", "[config][unit]") {
  const TempFile file("lease: soon\n");
  const Flags flags = Parse({"--lease=3s", "--config", file.path().c_str()}).value();

  CHECK(Resolve(kSettings, flags, FixedEnvironment({})).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("a file that is not there is named", "[config][unit]") {
  Flags flags;
  flags.config_file = "/nonexistent/settings.yaml";

  const Status status = Resolve(kSettings, flags, FixedEnvironment({})).status();

  CHECK(status.code() == StatusCode::kNotFound);
  CHECK(Message(status).find("/nonexistent/settings.yaml") != std::string::npos);
}

TEST_CASE("an empty file gives the defaults", "[config][unit]") {
  const TempFile file("# nothing\n");

  CHECK(FromFile(file).value().Int("port") == 0);
}

TEST_CASE("help is made from the declarations", "[config][unit]") {
  const Flags flags = Parse({"--help", "--version"}).value();
  const std::string page = HelpText("muster-ps", "serves parameters", kSettings);

  CHECK(flags.help);
  CHECK(flags.version);
  CHECK(page.find("Usage: muster-ps [flags]") != std::string::npos);
  CHECK(page.find("--lease DURATION") != std::string::npos);
  CHECK(page.find("Silence that loses a task. Default 3s.") != std::string::npos);
  CHECK(page.find("One of tcp, local, auto.") != std::string::npos);
}

TEST_CASE(
    "the example of a settings file says all, and with its comments taken away gives the defaults",
    "[config][unit]") {
  const std::string example = ExampleConfig("muster-ps", kSettings);
  std::string open;
  std::istringstream lines(example);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK((line.empty() || line.starts_with("#")));
    CHECK(line.size() <= 100);
    const std::size_t colon = line.find(": ");
    const bool setting = line.size() > 1 && line[1] != ' ' && colon != std::string::npos;
    if (setting) open += line.substr(1) + "\n";
  }
  for (const Setting& setting : kSettings) {
    CHECK(example.find("\n#" + setting.name + ":") != std::string::npos);
  }
  const TempFile file(open);
  const auto values = FromFile(file);
  REQUIRE(values.ok());
  for (const Setting& setting : kSettings)
    CHECK(values->Given(setting.name) == !setting.fallback.empty());
}

TEST_CASE("values are described with where they came from", "[config][unit]") {
  const Values values = Resolve(kSettings, {}, FixedEnvironment({{"MUSTER_LEASE", "5s"}})).value();

  CHECK(values.Describe()[2] == "lease = 5s (MUSTER_LEASE)");
  CHECK(values.Describe()[1] == "port = 0 (default)");
}

}  // namespace
}  // namespace muster::config
