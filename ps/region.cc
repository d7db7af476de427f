#include "ps/region.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include <sys/mman.h>

namespace muster::ps {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

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

}  // namespace muster::ps
