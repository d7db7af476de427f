// An array operation in pieces that threads share. Threading: free functions, any thread.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ps/apply_pool.h"
#include "ps/float_mode.h"

namespace muster::ps {

// A piece of an array operation: small enough to share out, large enough to be worth a hand-over.
inline constexpr std::size_t kPieceFloats = 128 << 10;
// Updates below this run on the caller's thread alone: waking a helper costs 20 to 35 us.
inline constexpr std::size_t kParallelFloats = 1 << 20;
// Row updates wait for memory more, so fewer floats are worth a helper.
inline constexpr std::size_t kParallelRowFloats = 256 << 10;

constexpr std::size_t DivideUp(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// body(first, count) over pieces of [0, n), without subnormals, in parallel from `parallel_from`
// on.
template <class Body>
void InPieces(ApplyPool& pool, std::size_t n, std::size_t piece, std::size_t parallel_from,
              const Body& body) {
  if (n < parallel_from) {
    const FlushSubnormals flush;
    body(std::size_t{0}, n);
    return;
  }
  pool.Run(DivideUp(n, piece), [&](std::size_t i) {
    const FlushSubnormals flush;
    body(i * piece, std::min(piece, n - i * piece));
  });
}

// The same over n rows of `row` elements each.
template <class Body>
void InRowPieces(ApplyPool& pool, std::size_t n, std::size_t row, const Body& body) {
  InPieces(pool, n, std::max<std::size_t>(1, kParallelRowFloats / 8 / row),
           DivideUp(kParallelRowFloats, row), body);
}

}  // namespace muster::ps
