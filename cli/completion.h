// Completion of `muster` in shells, made from the command line's own definition.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace muster::cli {

enum class Shell { kBash, kZsh, kFish };

// A script for the shell to read: all commands and flags of `app`, the values of flags that name
// theirs, files where files are wanted, and, asked of the cluster when the key is pressed, jobs.
std::string CompletionScript(const CLI::App& app, Shell shell);

}  // namespace muster::cli
