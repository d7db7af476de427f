#include "common/base/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace muster {

void Stream(void* to, const void* from, std::size_t bytes) {
#ifdef __SSE2__
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const std::size_t head = std::min(bytes, -reinterpret_cast<std::uintptr_t>(out) % 16);
  if (head > 0) std::memcpy(out, in, head);
  const std::size_t whole = (bytes - head) / 16 * 16;
  for (std::size_t i = head; i < head + whole; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
  if (head + whole < bytes)
    std::memcpy(out + head + whole, in + head + whole, bytes - head - whole);
#else
  if (bytes > 0) std::memcpy(to, from, bytes);
#endif
}

void EndStream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

void CopyFor(ReadBy reader, void* to, const void* from, std::size_t bytes) {
  if (reader == ReadBy::kAnother && bytes >= kWorthStreaming) {
    Stream(to, from, bytes);
    EndStream();
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace muster
