// Pages of the manual (man(7)) of `muster`, made from the command line's own definition.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster::cli {

// The page of a command ("submit"), with all below it; "": of the whole, muster(1). Nothing: there
// is no such command.
std::string ManualPage(const CLI::App& app, const std::string& command);

// All commands, one a line.
std::string ManualList(const CLI::App& app);

}  // namespace muster::cli
