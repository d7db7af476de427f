// Command lines of muster that end early, with a text.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/options.h"
#include "tests/support/catch.h"

namespace muster::cli {

// What such a line prints; it must succeed.
inline std::string TextOf(const std::vector<std::string>& line) {
  const auto parsed = ParseCommandLine(line);
  const auto* early = std::get_if<EarlyExit>(&parsed);
  REQUIRE(early != nullptr);
  REQUIRE(early->code == ExitCode::kDone);
  return early->text;
}

}  // namespace muster::cli
