#include "collectives/group.h"

#include <cstring>
#include <new>

#include "common/base/page.h"

namespace muster::collectives {

Result<std::shared_ptr<std::byte>> OrdinaryMemory(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 40;
  if (bytes == 0 || bytes > kMost) {
    return InvalidArgument("memory of {} bytes: 1 to {} are allowed", bytes, kMost);
  }
  constexpr std::align_val_t kPage{kPageBytes};
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, kPage, std::nothrow));
  if (memory == nullptr) return ResourceExhausted("no memory for {} bytes", bytes);
  std::memset(memory, 0, bytes);
  return std::shared_ptr<std::byte>(memory, [](std::byte* all) { ::operator delete(all, kPage); });
}

Result<std::shared_ptr<std::byte>> Group::AllocateCommon(std::size_t bytes, Timeout /*timeout*/) {
  return OrdinaryMemory(bytes);
}

}  // namespace muster::collectives
