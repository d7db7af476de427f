// A control group of a test's own with a limit to its memory, below the one that the test is in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <sys/types.h>
#include <unistd.h>

namespace muster::testing {

// Its end moves whoever is left in it to where the test was.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t bytes) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      if (const std::size_t one = line.find(":memory:"); one != std::string::npos) {
        Make("/sys/fs/cgroup/memory" + line.substr(one + 8), "memory.limit_in_bytes", bytes);
      } else if (line.starts_with("0::")) {
        Make("/sys/fs/cgroup" + line.substr(3), "memory.max", bytes);
      }
    }
  }
  ~MemoryGroup() {
    if (!works()) return;
    std::ifstream left(processes());
    for (std::string pid; left >> pid;) std::ofstream(outer_ / "cgroup.procs") << pid << std::flush;
    std::error_code ignored;
    std::filesystem::remove(inner_, ignored);
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  // Else this machine lets nobody make such groups, or not this user.
  bool works() const { return !inner_.empty(); }
  // Who writes a pid into this file moves that process here, with the children that it has later.
  std::string processes() const { return inner_ / "cgroup.procs"; }
  bool Add(pid_t pid) const {
    return static_cast<bool>(std::ofstream(processes()) << pid << std::flush);
  }

 private:
  void Make(const std::filesystem::path& outer, const char* file, std::uint64_t bytes) {
    const std::filesystem::path inner = outer / ("muster-test-" + std::to_string(::getpid()));
    std::error_code error;
    if (works() || !std::filesystem::create_directory(inner, error)) return;
    if (std::filesystem::exists(inner / file, error) && std::ofstream(inner / file)
                                                            << bytes << std::flush) {
      outer_ = outer;
      inner_ = inner;
    } else {
      std::filesystem::remove(inner, error);
    }
  }

  std::filesystem::path outer_, inner_;
};

}  // namespace muster::testing
