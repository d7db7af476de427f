#include "ps/region.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace muster::ps {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // also "max"
}

// What a control group has in the page cache, which the kernel gives back when asked.
std::uint64_t Reclaimable(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::uint64_t total = 0;
  std::string name;
  std::uint64_t bytes = 0;
  while (file >> name >> bytes) {
    if (name == "active_file" || name == "inactive_file") total += bytes;
  }
  return total;
}

// The least that control groups (v2) leave, from this process's group up to the root.
std::optional<std::uint64_t> LeftInControlGroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  if (!std::getline(file, line) || !line.starts_with("0::/")) return std::nullopt;
  std::optional<std::uint64_t> least;
  std::string path = line.substr(3);  // "/a/b", or "/"
  if (path.ends_with('/')) path.pop_back();
  for (;; path.resize(path.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + path;
    const auto limit = ReadNumber(folder + "/memory.max");
    const auto used = ReadNumber(folder + "/memory.current");
    if (limit && used) {
      const std::uint64_t fixed = *used - std::min(*used, Reclaimable(folder));
      const std::uint64_t left = *limit > fixed ? *limit - fixed : 0;
      least = std::min(left, least.value_or(left));
    }
    if (path.empty()) return least;
  }
}

}  // namespace

Result<Region> Region::Create(std::size_t floats) {
  Region region;
  if (floats == 0) return region;
  if (floats > std::numeric_limits<std::size_t>::max() / 8) {
    return ResourceExhausted("{} floats are more than any memory", floats);
  }
  const std::size_t bytes = floats * sizeof(float);
  const bool huge = bytes >= kHugePage;
  const std::size_t mapped = bytes + (huge ? kHugePage : 0);
  void* mapping =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return ResourceExhausted("mmap of {} bytes failed with errno {}", mapped, errno);
  }
  region.mapping_ = mapping;
  region.mapped_ = mapped;
  auto address = reinterpret_cast<std::uintptr_t>(mapping);
  if (huge) {
    address = (address + kHugePage - 1) / kHugePage * kHugePage;
    // A hint: without huge pages everything still works.
    (void)::madvise(reinterpret_cast<void*>(address), bytes, MADV_HUGEPAGE);
  }
  region.begin_ = reinterpret_cast<float*>(address);
  region.size_ = floats;
  return region;
}

Region::~Region() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_);
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  std::swap(begin_, other.begin_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

std::optional<std::uint64_t> AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::optional<std::uint64_t> available;
  std::string name;
  std::uint64_t kibibytes = 0;
  std::string unit;
  while (file >> name >> kibibytes && std::getline(file, unit)) {
    if (name == "MemAvailable:") available = kibibytes << 10;
  }
  const std::optional<std::uint64_t> group = LeftInControlGroup();
  if (!available || !group) return available ? available : group;
  return std::min(*available, *group);
}

}  // namespace muster::ps
