// What a file is that somebody wants to run, by its first bytes, and which machine this is.
//
// Threading: any thread.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::process {

struct Executable {
  enum class Kind {
    kOther,
    // Begins with "#!".
    kScript,
    // A program, or a library (one file may be both).
    kProgram,
    // ELF that is linked into others only: an object file, a core.
    kPart,
  };
  Kind kind = Kind::kOther;
  // As `uname -m` calls it; empty unless it is ELF.
  std::string machine;

  // "an executable for aarch64", "a script", "no ELF executable".
  std::string Describe() const;
};

// kNotFound, kPermissionDenied, kUnknown: it cannot be read.
Result<Executable> LookAtExecutable(const std::string& path);

// "x86_64"; "unknown" where the kernel does not say.
std::string HostMachine();

}  // namespace muster::process
