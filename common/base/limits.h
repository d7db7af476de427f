// What this process may use of its machine. A container sees all processors and all memory of its
// host, and may use what its control group gives it: pools that are sized by the machine are
// throttled there, and caches that are sized by it are killed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

struct Limits {
  // Those in the affinity mask (cpusets are in it).
  int machine_processors = 1;
  // The least quota of the process's control groups, as a number of processors; none: no limit.
  std::optional<double> quota = {};
  // The least memory limit of them.
  std::optional<std::uint64_t> memory_bytes = {};

  // How many threads can run at a time: the quota rounded up, within the mask. At least 1.
  [[nodiscard]] int processors() const;
  // "2 of 16 processors (a quota of 1.5), 4096 MiB of memory".
  [[nodiscard]] std::string ToString() const;
};

// What limits this process, by /proc and the mounted hierarchies: version 2, version 1, or both
// beside each other. What cannot be read limits nothing. `root` goes before each path, for tests.
[[nodiscard]] Limits ReadLimits(const std::string& root = "");

// Memory that this process can still take without killing something: the least of what the machine
// and its control groups have left. A group's page cache, which the kernel gives back when asked,
// counts as left. none: not known here.
[[nodiscard]] std::optional<std::uint64_t> AvailableMemory(const std::string& root = "");

// How many processes of this process's control group the kernel has ended for want of memory; of
// the whole machine, where no group counts them. None: nobody says.
[[nodiscard]] std::optional<std::uint64_t> ReadOomKills(const std::string& root = "");

// processors() of this process, asked once. Threading: any thread.
[[nodiscard]] int UsableProcessors();

}  // namespace muster
