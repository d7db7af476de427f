#include "worker/engine/device/cpu_allocator.h"

#include <cstring>

#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include "worker/engine/device/arena.h"

// The interface changed with 2.0: allocate() lost its const, copy_data() came.
#if TORCH_VERSION_MAJOR >= 2
#define MUSTER_ALLOCATE_CONST
#else
#define MUSTER_ALLOCATE_CONST const
#endif

namespace muster::device {
namespace {

void FreeInArena(void* block) { Arena::Of(Arena::IndexOf(block)).Free(block); }

class LogicalCpuAllocator final : public at::Allocator {
 public:
  explicit LogicalCpuAllocator(at::Allocator* plain) : plain_(plain) {}

  at::DataPtr allocate(std::size_t bytes) MUSTER_ALLOCATE_CONST override {
    Arena* const arena = ArenaScope::CurrentArena();
    if (arena == nullptr) return plain_->allocate(bytes);
    void* const block = arena->Allocate(bytes);
    TORCH_CHECK(block != nullptr, "logical device CPU:", ArenaScope::Current(),
                " is out of addresses for ", bytes, " bytes");
    return {block, block, &FreeInArena, at::Device(at::DeviceType::CPU)};
  }

#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
#endif

 private:
  at::Allocator* const plain_;
};

}  // namespace

void InstallCpuAllocator() {
  static const bool installed = [] {
    // Never destroyed: libtorch keeps the pointer.
    at::SetCPUAllocator(new LogicalCpuAllocator(at::GetCPUAllocator()));
    return true;
  }();
  (void)installed;
}

}  // namespace muster::device
