#include "common/config/manual.h"

#include <regex>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "tests/unit/cli/early_text.h"

namespace muster::cli {
namespace {

TEST_CASE("each command has a page of the manual, with all its flags", "[cli][unit]") {
  std::istringstream commands(TextOf({"manual", "--list"}));
  int count = 0;
  for (std::string command; std::getline(commands, command); ++count) {
    CAPTURE(command);
    const std::string page = TextOf({"manual", command});
    CHECK(page.find(config::ManualText("muster-" + command) + " \\- ") != std::string::npos);
    if (command == "bench") continue;  // its flags are muster-bench's own
    const std::string help = TextOf({command, "--help"});
    const std::regex flag("\n  [^\n]*?(--[a-z-]+)");
    for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at) {
      CAPTURE(at->str(1));
      if (at->str(1) == "--help") continue;
      CHECK(page.find(config::ManualText(at->str(1))) != std::string::npos);
    }
  }
  CHECK(count >= 15);
  const std::string whole = TextOf({"manual"});
  CHECK(whole.find("checkpoints") != std::string::npos);
  CHECK(whole.find(config::ManualText("--token-file")) != std::string::npos);
}

TEST_CASE("the synopsis has what stands behind a command's options", "[cli][unit]") {
  CHECK(TextOf({"manual", "submit"})
            .find(config::ManualText("muster submit [OPTIONS] [-- PROGRAM ARGUMENTS...]") + "\n") !=
        std::string::npos);
  CHECK(TextOf({"submit", "--help"})
            .find("Usage: muster submit [OPTIONS] [-- PROGRAM ARGUMENTS...]\n") !=
        std::string::npos);
  CHECK(TextOf({"manual", "bench"}).find("muster bench BENCHMARK [OPTIONS]\n") !=
        std::string::npos);
}

TEST_CASE("a page of the manual that there is not is a mistake", "[cli][unit]") {
  const auto parsed = ParseCommandLine({"manual", "sumbit"});

  REQUIRE(std::holds_alternative<EarlyExit>(parsed));
  CHECK(std::get<EarlyExit>(parsed).code == ExitCode::kUsage);
  CHECK(std::get<EarlyExit>(parsed).text.find("\"sumbit\"") != std::string::npos);
}

}  // namespace
}  // namespace muster::cli
