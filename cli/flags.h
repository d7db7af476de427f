// Flags that commands of several files have.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "cli/options.h"

namespace CLI {
class App;
}

namespace muster::cli {

// For CLI::Validator, of a flag whose empty value would mean the same as none: a script whose
// variable was not set would act on another cluster, or begin another job.
std::string CheckNotEmpty(const std::string& text);
// -o table or json.
void AddOutput(CLI::App& command, Options& options);
// The command `submit`.
CLI::App* AddSubmit(CLI::App& app, Options& options);
// What stands behind the options of a command and is none of the library's to read: a program, a
// benchmark; empty: nothing. For the line of --help and of the manual that tells how it is used.
std::string Behind(const CLI::App& command);
// A file or a program, each with its own options.
//   CLI::ValidationError, thrown: what does not go together.
void CheckSubmit(const CLI::App& submit, const Options& options);
// A duration as "60s"; `set` has it in milliseconds. More than `most` is refused.
void AddDuration(CLI::App& command, const std::string& flag, const std::string& doc,
                 std::function<void(std::chrono::milliseconds)> set,
                 std::optional<std::chrono::milliseconds> most = std::nullopt);
// Where 0 would stand for the default and means at once.
inline std::chrono::milliseconds AtLeastOne(std::chrono::milliseconds given) {
  return std::max(given, std::chrono::milliseconds(1));
}

}  // namespace muster::cli
