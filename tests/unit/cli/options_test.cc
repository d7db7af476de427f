#include "cli/options.h"

#include "common/base/version.h"
#include "tests/support/catch.h"

namespace muster::cli {
namespace {

Options Parse(const std::vector<std::string>& arguments) {
  const auto parsed = ParseCommandLine(arguments);
  if (const auto* early = std::get_if<EarlyExit>(&parsed)) FAIL(early->text);
  return std::get<Options>(parsed);
}

EarlyExit Refused(const std::vector<std::string>& arguments) {
  const auto parsed = ParseCommandLine(arguments);
  REQUIRE(std::holds_alternative<EarlyExit>(parsed));
  return std::get<EarlyExit>(parsed);
}

TEST_CASE("a command line becomes options", "[cli][unit]") {
  const Options submit = Parse({"submit", "-f", "a.yaml", "--follow", "--name", "x", "-o", "json"});
  CHECK(submit.command == "submit");
  CHECK(submit.file == "a.yaml");
  CHECK(submit.follow);
  CHECK(submit.name == "x");
  CHECK(submit.output == Output::kJson);

  const Options logs = Parse({"logs", "j-1", "worker:1", "-f", "--tail", "5", "--since", "10m"});
  CHECK(logs.command == "logs");
  CHECK(logs.job == "j-1");
  CHECK(logs.task == "worker:1");
  CHECK(logs.follow);
  CHECK(logs.tail == 5);
  CHECK(logs.since == std::chrono::minutes(10));

  const Options write =
      Parse({"checkpoints", "export", "j-1", "-o", "m.safetensors", "--step", "7"});
  CHECK(write.command == "checkpoints export");
  CHECK(write.export_file == "m.safetensors");
  CHECK(write.step == 7u);

  const Options up = Parse({"up", "--ps", "2", "--workers", "3", "--no-restart"});
  CHECK(up.command == "up");
  CHECK(up.ps == 2);
  CHECK(up.workers == 3);
  CHECK_FALSE(up.restart);
  CHECK(Parse({"up"}).restart);
}

TEST_CASE("a step may be given as the name of its folder", "[cli][unit]") {
  for (const char* step : {"500", "step-500", "step-000000000500", "/c/j-1/step-000000000500/"}) {
    CAPTURE(step);
    CHECK(Parse({"checkpoints", "verify", "j-1", "--step", step}).step == 500u);
  }
  CHECK(Refused({"checkpoints", "verify", "j-1", "--step", "latest"})
            .text.find("\"latest\" is neither a step (500) nor a checkpoint's folder") !=
        std::string::npos);
  CHECK(Parse({"checkpoints", "verify", "j-1", "-o", "json"}).output == Output::kJson);
}

TEST_CASE("a name that is not UTF-8 is refused, a folder's is not", "[cli][unit]") {
  CHECK(Refused({"describe", "\xFF"}).text.find("is no name: it is not UTF-8") !=
        std::string::npos);
  CHECK(Parse({"checkpoints", "verify", "/c/\xFF"}).job == "/c/\xFF");
}

TEST_CASE("an empty name is a mistake and not the same as none", "[cli][unit]") {
  for (const std::vector<std::string>& optional :
       {std::vector<std::string>{"checkpoints", "gc", ""}, {"logs", "j-1", ""}}) {
    const EarlyExit early = Refused(optional);
    CAPTURE(early.text);
    CHECK(early.code == ExitCode::kUsage);
    CHECK(early.text.find("the name is empty; leave it out for all") != std::string::npos);
  }
  for (const char* command : {"describe", "stop", "wait", "logs"}) {
    const EarlyExit early = Refused({command, ""});
    CAPTURE(early.text);
    CHECK(early.code == ExitCode::kUsage);
    CHECK(early.text.find("the name is empty\n") != std::string::npos);
  }
  CHECK(Parse({"checkpoints", "gc"}).job.empty());
}

TEST_CASE("what `up` or `status` would pass over is refused", "[cli][unit]") {
  const auto says = [](const std::vector<std::string>& line, const std::string& words) {
    const EarlyExit early = Refused(line);
    CAPTURE(early.text);
    CHECK(early.code == ExitCode::kUsage);
    return early.text.find(words) != std::string::npos;
  };
  CHECK(says({"status", "--timeout", "5s"}, "--timeout requires --wait"));
  CHECK(Parse({"status", "--wait", "ready", "--timeout", "5s"}).wait_ready);
  for (const char* flag : {"--coordinator", "--token-file"}) {
    CHECK(says({"up", flag, "x"}, std::string(flag) + " names a cluster that is there"));
  }
  for (const char* flag : {"--tls-ca", "--tls-cert", "--tls-key"}) {
    CHECK(says({flag, "x", "up"}, "for `up` set MUSTER_TLS_CA, MUSTER_TLS_CERT and"));
  }
}

TEST_CASE("the cluster may be named before or after the command", "[cli][unit]") {
  CHECK(Parse({"--coordinator", "h:1", "jobs"}).coordinator == "h:1");
  CHECK(Parse({"jobs", "--coordinator", "h:1"}).coordinator == "h:1");
}

TEST_CASE("an empty value of what names something is a mistake", "[cli][unit]") {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"jobs", "--coordinator", ""},
        {"--token-file", "", "jobs"},
        {"jobs", "--tls-ca", ""},
        {"jobs", "--tls-cert", ""},
        {"jobs", "--tls-key", ""},
        {"submit", "-f", "job.yaml", "--name", ""},
        {"submit", "-f", ""},
        {"up", "--state-dir", ""}}) {
    const EarlyExit early = Refused(wrong);
    CAPTURE(wrong, early.text);
    CHECK(early.code == ExitCode::kUsage);
    CHECK(early.text.find("it is empty, as of a variable that was not set") != std::string::npos);
  }
}

TEST_CASE("a slash does not make a job's name a folder", "[cli][unit]") {
  for (const char* command : {"describe", "logs", "wait", "stop"}) {
    CAPTURE(command);
    CHECK(Refused({command, "a/\xff"}).text.find("it is not UTF-8") != std::string::npos);
  }
  CHECK(Refused({"logs", "j-1", "a/\xff"}).code == ExitCode::kUsage);
}

TEST_CASE("bench hands everything on", "[cli][unit]") {
  const Options bench = Parse({"bench", "ps", "--size", "1MiB"});
  CHECK(bench.command == "bench");
  CHECK(bench.rest == std::vector<std::string>{"ps", "--size", "1MiB"});
  CHECK(Parse({"bench", "--help"}).rest == std::vector<std::string>{"--help"});
  CHECK(Parse({"bench"}).rest.empty());
}

TEST_CASE("options of all commands may stand before bench", "[cli][unit]") {
  for (const std::vector<std::string>& before : {std::vector<std::string>{"--color", "never"},
                                                 {"--color=never"},
                                                 {"--coordinator", "bench"}}) {
    CAPTURE(before);
    std::vector<std::string> line = before;
    line.insert(line.end(), {"bench", "ps", "--size", "1MiB", "--color", "blue"});
    const Options bench = Parse(line);
    CHECK(bench.command == "bench");
    CHECK(bench.rest == std::vector<std::string>{"ps", "--size", "1MiB", "--color", "blue"});
  }
  CHECK(Parse({"--color", "never", "bench"}).colours == Colours::kNever);
  CHECK(Refused({"--color", "blue", "bench", "ps"}).code == ExitCode::kUsage);
  CHECK(Refused({"--color"}).code == ExitCode::kUsage);
}

TEST_CASE("a mistake is exit code 2 and says where help is", "[cli][unit]") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{},
                                                {"fly"},
                                                {"submit"},
                                                {"submit", "-f", "a", "--follow", "--dry-run"},
                                                {"describe"},
                                                {"jobs", "-o", "xml"},
                                                {"wait", "j", "--timeout", "soon"},
                                                {"up", "--ps", "-1"},
                                                {"up", "--workers", "0"},
                                                {"checkpoints"},
                                                {"jobs", "--unknown"}}) {
    const EarlyExit early = Refused(wrong);
    CAPTURE(early.text);
    CHECK(early.code == ExitCode::kUsage);
    CHECK(early.text.starts_with("error: "));
    CHECK(early.text.find("--help` tells what there is") != std::string::npos);
  }
}

TEST_CASE("a mistake is named", "[cli][unit]") {
  const auto says = [](const std::vector<std::string>& wrong, const std::string& text) {
    const EarlyExit early = Refused(wrong);
    CAPTURE(early.text);
    return early.text.find(text) != std::string::npos;
  };
  CHECK(says({"sumbit"}, "there is no command \"sumbit\"; did you mean \"submit\"?"));
  CHECK(says({"checkpoints", "lst", "j"}, "there is no command \"lst\"; did you mean \"list\"?"));
  CHECK(says({"--versio"}, "there is no option \"--versio\"; did you mean \"--version\"?"));
  CHECK(
      says({"status", "--wiat=ready"}, "there is no option \"--wiat\"; did you mean \"--wait\"?"));
  CHECK(says({"checkpoints", "verify", "j", "--step", "5x"},
             "error: --step: \"5x\" is neither a step"));
  CHECK(says({"jobs", "-o", "yaml"}, "there is no output \"yaml\"; choose table or json"));
}

TEST_CASE("help is no mistake", "[cli][unit]") {
  const EarlyExit all = Refused({"--help"});
  CHECK(all.code == ExitCode::kDone);
  for (const char* command : {"up", "submit", "jobs", "describe", "logs", "stop", "wait", "status",
                              "checkpoints", "version", "bench"}) {
    CAPTURE(command);
    CHECK(all.text.find(command) != std::string::npos);
  }
  const EarlyExit version = Refused({"--version"});
  CHECK(version.text == "muster " + std::string(muster::Version()) + "\n");
  CHECK(version.code == ExitCode::kDone);

  const EarlyExit one = Refused({"submit", "--help"});
  CHECK(one.code == ExitCode::kDone);
  CHECK(one.text.find("--follow") != std::string::npos);
  CHECK(Refused({"up", "--help"}).text.find("=2") != std::string::npos);  // a default
}

TEST_CASE("colours are chosen before or after the command", "[cli][unit]") {
  CHECK(std::get<Options>(ParseCommandLine({"jobs"})).colours == Colours::kAuto);
  CHECK(std::get<Options>(ParseCommandLine({"jobs", "--color", "never"})).colours ==
        Colours::kNever);
  CHECK(std::get<Options>(ParseCommandLine({"--color=always", "jobs"})).colours ==
        Colours::kAlways);
  const auto bad = ParseCommandLine({"jobs", "--color", "red"});
  CHECK(std::get<EarlyExit>(bad).code == ExitCode::kUsage);
}
}  // namespace
}  // namespace muster::cli
