#include "device/cpu_allocator.h"

#include <cstring>

#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include "device/arena.h"
#include "device/placing.h"

// The interface changed with 2.0: allocate() lost its const, copy_data() came.
#if TORCH_VERSION_MAJOR >= 2
#define MUSTER_ALLOCATE_CONST
#else
#define MUSTER_ALLOCATE_CONST const
#endif

namespace muster::device {
namespace {

// The allocator that was there before.
at::Allocator* g_plain = nullptr;

void FreeInArena(void* block) { Arena::Of(Arena::IndexOf(block)).Free(block); }

// Frees what libtorch's raw interface gave, which keeps no deleter beside the memory: oneDNN's
// convolutions and packed weights allocate by it.
void FreeAnywhere(void* block) {
  if (Arena* const arena = Arena::Holding(block)) return arena->Free(block);
  g_plain->raw_deallocate(block);
}

class LogicalCpuAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) MUSTER_ALLOCATE_CONST override {
    Arena* const arena = ArenaScope::CurrentArena();
    if (arena == nullptr) return g_plain->allocate(bytes);
    void* const block = arena->Allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "logical device ",
                     PlaceOfArena(ArenaScope::Current()).ToString(), ": not enough memory for ",
                     bytes,
                     " bytes more: the process is at its limit of addresses (ulimit -v), or the "
                     "machine at that of its memory");
    return {block, block, &FreeInArena, at::Device(at::DeviceType::CPU)};
  }

  at::DeleterFnPtr raw_deleter() const override { return &FreeAnywhere; }

#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
#endif
};

}  // namespace

void InstallCpuAllocator() {
  static const bool installed = [] {
    g_plain = at::GetCPUAllocator();
    // Never destroyed: libtorch keeps the pointer.
    at::SetCPUAllocator(new LogicalCpuAllocator);
    return true;
  }();
  (void)installed;
}

}  // namespace muster::device
