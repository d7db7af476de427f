// libtorch's reader of archives leaks what it has read of one when its constructor throws (1.13).
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace muster::testing {

// While it lives nothing that this thread allocates counts as leaked.
struct LeaksOfLibtorch {
#if defined(__SANITIZE_ADDRESS__)
  const __lsan::ScopedDisabler off = {};
#endif
  LeaksOfLibtorch() = default;
  ~LeaksOfLibtorch() {}  // not trivial anywhere, so that no build calls it unused
  LeaksOfLibtorch(const LeaksOfLibtorch&) = delete;
  LeaksOfLibtorch& operator=(const LeaksOfLibtorch&) = delete;
};

}  // namespace muster::testing
