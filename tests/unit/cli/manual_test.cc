#include "common/config/manual.h"

#include <regex>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "cli/options.h"
#include "tests/support/catch.h"

namespace muster::cli {
namespace {

std::string PageOf(const std::vector<std::string>& arguments) {
  const auto parsed = ParseCommandLine(arguments);
  const auto* early = std::get_if<EarlyExit>(&parsed);
  REQUIRE(early != nullptr);
  REQUIRE(early->code == ExitCode::kDone);
  return early->text;
}

TEST_CASE("each command has a page of the manual, with all its flags", "[cli][unit]") {
  std::istringstream commands(PageOf({"manual", "--list"}));
  int count = 0;
  for (std::string command; std::getline(commands, command); ++count) {
    CAPTURE(command);
    const std::string page = PageOf({"manual", command});
    CHECK(page.find(config::ManualText("muster-" + command) + " \\- ") != std::string::npos);
    if (command == "bench") continue;  // its flags are muster-bench's own
    const std::string help = PageOf({command, "--help"});
    const std::regex flag("\n  [^\n]*?(--[a-z-]+)");
    for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at) {
      CAPTURE(at->str(1));
      if (at->str(1) == "--help") continue;
      CHECK(page.find(config::ManualText(at->str(1))) != std::string::npos);
    }
  }
  CHECK(count >= 15);
  const std::string whole = PageOf({"manual"});
  CHECK(whole.find("checkpoints") != std::string::npos);
  CHECK(whole.find(config::ManualText("--token-file")) != std::string::npos);
}

TEST_CASE("a page of the manual that there is not is a mistake", "[cli][unit]") {
  const auto parsed = ParseCommandLine({"manual", "sumbit"});

  REQUIRE(std::holds_alternative<EarlyExit>(parsed));
  CHECK(std::get<EarlyExit>(parsed).code == ExitCode::kUsage);
  CHECK(std::get<EarlyExit>(parsed).text.find("\"sumbit\"") != std::string::npos);
}

}  // namespace
}  // namespace muster::cli
