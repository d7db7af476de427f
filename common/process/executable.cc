#include "common/process/executable.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <elf.h>
#include <sys/utsname.h>

namespace muster::process {
namespace {

// As uname calls them.
std::string MachineName(unsigned machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_386:
      return "i686";
    case EM_ARM:
      return "arm";
    case EM_RISCV:
      return "riscv64";
    case EM_PPC64:
      return "ppc64le";
    case EM_S390:
      return "s390x";
    default:
      return "another machine";
  }
}

}  // namespace

std::string Executable::Describe() const {
  switch (kind) {
    case Kind::kScript:
      return "a script";
    case Kind::kProgram:
      return "an executable for " + machine;
    case Kind::kPart:
      return "an object file or a core for " + machine;
    default:
      return "no ELF executable";
  }
}

// Type and machine stand at the same place in all classes of ELF; every host of ours and all that
// they run are little-endian, and a big-endian file is another machine's either way.
Result<Executable> LookAtExecutable(const std::string& path) {
  std::array<char, 20> head{};
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return FromErrno(errno, "open " + path);
  stream.read(head.data(), head.size());
  if (stream.bad()) return FromErrno(errno, "read " + path);
  const auto number = [&head](std::size_t at) {
    return static_cast<unsigned>(static_cast<unsigned char>(head[at])) |
           static_cast<unsigned>(static_cast<unsigned char>(head[at + 1])) << 8;
  };
  Executable found;
  if (head[0] == '#' && head[1] == '!') {
    found.kind = Executable::Kind::kScript;
  } else if (std::memcmp(head.data(), ELFMAG, SELFMAG) == 0) {
    const unsigned type = number(16);
    found.kind =
        type == ET_EXEC || type == ET_DYN ? Executable::Kind::kProgram : Executable::Kind::kPart;
    found.machine = MachineName(number(18));
  }
  return found;
}

std::string HostMachine() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

}  // namespace muster::process
