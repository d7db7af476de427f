// Copies past the caches.
//
// What one processor has just written and another one reads next is slow to fetch while it lies in
// the first one's caches; written past them it comes as quickly as any memory. And what is larger
// than the caches is not read before it is overwritten. Figures: docs/decisions/0016.
#pragma once

#include <cstddef>

namespace muster {

// Destinations of this many bytes together do not stay in a cache until they are read.
inline constexpr std::size_t kPastCaches = std::size_t{4} << 20;

// Less than this another processor has sooner from a cache.
inline constexpr std::size_t kWorthStreaming = std::size_t{8} << 10;

// memcpy past the caches, where the processor can. Other threads and processes see it after
// EndStream(), and what publishes it must come behind that.
void Stream(void* to, const void* from, std::size_t bytes);
void EndStream();

// Who reads a copy next.
enum class ReadBy : unsigned char { kThisProcessor, kAnother };

// memcpy, past the caches where that is worth it for who reads it; others see it on return.
void CopyFor(ReadBy reader, void* to, const void* from, std::size_t bytes);

}  // namespace muster
