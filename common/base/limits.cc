#include "common/base/limits.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include "common/base/number_in.h"
#include "common/base/whole_file.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Version 1 says "no limit" with the largest multiple of a page.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// A mounted hierarchy of control groups.
struct Hierarchy {
  std::string root;         // which group is mounted
  std::string mount_point;  // where
  bool version_2 = false;
  std::string controllers;  // of version 1: "rw,cpu,cpuacct"
};

bool HasWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    if (one == word) return true;
    list.remove_prefix(std::min(list.size(), one.size() + 1));
  }
  return false;
}

std::vector<Hierarchy> MountedAt(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skip, type, source, options;
    Hierarchy one;
    before >> skip >> skip >> skip >> one.root >> one.mount_point;
    after >> type >> source >> options;
    if (type != "cgroup" && type != "cgroup2") continue;
    one.version_2 = type == "cgroup2";
    one.controllers = options;
    found.push_back(std::move(one));
  }
  return found;
}

// The process's group in the hierarchy of version 2 (`controller` empty) or in that of a controller
// of version 1; empty: it is in none.
std::string GroupOf(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool wanted = controller.empty() ? names.empty() : HasWord(names, controller);
    if (wanted) return line.substr(second + 1);
  }
  return "";
}

// The folders whose limits hold for the process: its group's and those above it. A container often
// sees its own group at the mount point, and is told the path that the host knows it by.
std::vector<std::string> FoldersOf(const std::string& root, const Hierarchy& hierarchy,
                                   const std::string& group) {
  std::string below = group;
  // "/a" is not above "/ab".
  if (hierarchy.root != "/" && (below + "/").starts_with(hierarchy.root + "/")) {
    below.erase(0, hierarchy.root.size());
  }
  if (below.find("..") != std::string::npos) below.clear();
  while (below.ends_with('/')) below.pop_back();
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(root + hierarchy.mount_point + below);
    if (below.empty()) return folders;
    const std::size_t slash = below.rfind('/');
    below.resize(slash == std::string::npos ? 0 : slash);
  }
}

// "150000 100000" or "max 100000".
std::optional<double> QuotaOf(const std::string& folder) {
  std::istringstream both(FirstLineOf(folder + "/cpu.max"));
  std::string quota, period;
  both >> quota >> period;
  if (quota.empty()) {
    quota = FirstLineOf(folder + "/cpu.cfs_quota_us");  // -1: no limit
    period = FirstLineOf(folder + "/cpu.cfs_period_us");
  }
  const auto used = NumberIn<std::int64_t>(quota), of = NumberIn<std::int64_t>(period);
  if (!used || !of || *used <= 0 || *of <= 0) return std::nullopt;
  return static_cast<double>(*used) / static_cast<double>(*of);
}

std::optional<std::uint64_t> MemoryOf(const std::string& folder) {
  std::string text = FirstLineOf(folder + "/memory.max");
  if (text.empty()) text = FirstLineOf(folder + "/memory.limit_in_bytes");
  const auto limit = NumberIn<std::int64_t>(text);
  if (!limit || *limit <= 0 || static_cast<std::uint64_t>(*limit) >= kNoLimit) return std::nullopt;
  return static_cast<std::uint64_t>(*limit);
}

// The number in the line "`name` 3" of `path`; such files have ten to some hundred lines.
std::optional<std::uint64_t> NamedNumberIn(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name) || line[name.size()] != ' ') continue;
    std::string number;
    std::istringstream(line.substr(name.size())) >> number;
    return NumberIn<std::uint64_t>(number);
  }
  return std::nullopt;
}

// What a group and those below it have in the page cache. Of version 1 the plain names count the
// group alone.
std::uint64_t CachedBy(const std::string& folder) {
  const std::string path = folder + "/memory.stat";
  std::uint64_t cached = 0;
  for (const std::string name : {"active_file", "inactive_file"}) {
    std::optional<std::uint64_t> bytes = NamedNumberIn(path, "total_" + name);
    if (!bytes) bytes = NamedNumberIn(path, name);
    cached += bytes.value_or(0);
  }
  return cached;
}

// What a group may still take; none: it has no limit.
std::optional<std::uint64_t> LeftIn(const std::string& folder) {
  const std::optional<std::uint64_t> limit = MemoryOf(folder);
  if (!limit) return std::nullopt;
  std::string text = FirstLineOf(folder + "/memory.current");
  if (text.empty()) text = FirstLineOf(folder + "/memory.usage_in_bytes");
  const auto used = NumberIn<std::uint64_t>(text);
  if (!used) return std::nullopt;
  const std::uint64_t fixed = *used - std::min(*used, CachedBy(folder));
  return *limit - std::min(*limit, fixed);
}

template <class Value>
void Lower(std::optional<Value>& limit, const std::optional<Value>& other) {
  if (other && (!limit || *other < *limit)) limit = other;
}

// FoldersOf() each hierarchy that has `controller` ("cpu", "memory").
std::vector<std::vector<std::string>> FoldersOfAll(const std::string& root,
                                                   const char* controller) {
  std::vector<std::vector<std::string>> all;
  for (const Hierarchy& hierarchy : MountedAt(root)) {
    if (!hierarchy.version_2 && !HasWord(hierarchy.controllers, controller)) continue;
    const std::string group = GroupOf(root, hierarchy.version_2 ? "" : controller);
    if (!group.empty()) all.push_back(FoldersOf(root, hierarchy, group));
  }
  return all;
}

}  // namespace

int Limits::processors() const {
  const double most = quota ? std::ceil(*quota) : machine_processors;
  return std::max(1, static_cast<int>(std::min<double>(most, machine_processors)));
}

std::string Limits::ToString() const {
  std::string text = fmt::format("{} of {} processors", processors(), machine_processors);
  if (quota) text += fmt::format(" (a quota of {:.4g})", *quota);
  if (memory_bytes) text += fmt::format(", {} MiB of memory", *memory_bytes >> 20);
  return text;
}

Limits ReadLimits(const std::string& root) {
  Limits limits;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    limits.machine_processors = std::max(1, CPU_COUNT(&set));
  }
  for (const auto& folders : FoldersOfAll(root, "cpu")) {
    for (const std::string& folder : folders) Lower(limits.quota, QuotaOf(folder));
  }
  for (const auto& folders : FoldersOfAll(root, "memory")) {
    for (const std::string& folder : folders) Lower(limits.memory_bytes, MemoryOf(folder));
  }
  return limits;
}

std::optional<std::uint64_t> AvailableMemory(const std::string& root) {
  std::optional<std::uint64_t> available;
  const auto machine = NamedNumberIn(root + "/proc/meminfo", "MemAvailable:");
  if (machine) available = *machine << 10;  // it is in KiB
  // Asked for each variable of a server: which groups are its own does not change.
  static const auto mine = FoldersOfAll("", "memory");
  for (const auto& folders : root.empty() ? mine : FoldersOfAll(root, "memory")) {
    for (const std::string& folder : folders) Lower(available, LeftIn(folder));
  }
  return available;
}

std::optional<std::uint64_t> ReadOomKills(const std::string& root) {
  for (const auto& folders : FoldersOfAll(root, "memory")) {
    const std::string& own = folders.front();
    // The first is without the groups below; kernels before 5.2 lack it.
    for (const char* name : {"/memory.events.local", "/memory.events", "/memory.oom_control"}) {
      if (const auto kills = NamedNumberIn(own + name, "oom_kill")) return kills;
    }
  }
  return NamedNumberIn(root + "/proc/vmstat", "oom_kill");
}

int UsableProcessors() {
  static const int processors = ReadLimits().processors();
  return processors;
}

}  // namespace muster
