// For loops that look again and again.
#pragma once

namespace muster {

// Tells the processor that this thread spins, which leaves its sibling more and costs less power.
inline void CpuPause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace muster
