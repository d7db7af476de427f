// Flags that commands of several files have.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "cli/options.h"

namespace CLI {
class App;
}

namespace muster::cli {

// -o table or json.
void AddOutput(CLI::App& command, Options& options);
// A duration as "60s"; `set` has it in milliseconds.
void AddDuration(CLI::App& command, const std::string& flag, const std::string& doc,
                 std::function<void(std::chrono::milliseconds)> set);

}  // namespace muster::cli
