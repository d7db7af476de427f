// Subnormal numbers make Adagrad about 25 times slower and carry nothing that training needs.
// Threading: each thread has a mode of its own.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace muster::ps {

// While one lives, this thread's arithmetic takes subnormal inputs as zero and gives zero for
// subnormal results. Restores what was before.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kInputsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
#elif defined(__aarch64__)
  FlushSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(before_ | kFlush));
  }
  ~FlushSubnormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }
#else
  FlushSubnormals() = default;
  ~FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kInputsAreZero = 0x0040;
  const unsigned before_;
#elif defined(__aarch64__)
  static constexpr std::uint64_t kFlush = 1u << 24;
  std::uint64_t before_ = 0;
#endif
};

}  // namespace muster::ps
