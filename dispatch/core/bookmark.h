// Where a closure has left a per-worker value: what the value's next build on that worker is given,
// so that a new executor goes on where results that counted had come to.
//
// Bytes, little-endian: sequence (8), the place, whose meaning is the value's own. As a list: for
// each the value's id (8), the length of its bytes (4), the bytes; at the end the length of all of
// that (4).
//
// Threading: functions of their arguments alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::dispatch {

// A longer place is not kept: the closure that leaves it fails.
inline constexpr std::size_t kMostBookmark = 65'536;

struct Bookmark {
  ClosureId value = {};
  // Grows with each that a value leaves, over its builds: the highest counts.
  std::uint64_t sequence = 0;
  std::span<const std::byte> place;
};

// Behind the bytes of a result.
void AppendBookmarks(std::span<const Bookmark> bookmarks, std::vector<std::byte>& to);
// Takes them off again; valid as long as `bytes`.  kDataLoss: they are none.
Result<std::vector<Bookmark>> TakeBookmarks(std::span<const std::byte>& bytes);

// Behind the arguments of a build: sequence, place, and the length of both (4).
void AppendBookmark(std::uint64_t sequence, std::span<const std::byte> place,
                    std::vector<std::byte>& to);
// Takes it off again; `value` is none.  kDataLoss: it is none.
Result<Bookmark> TakeBookmark(std::span<const std::byte>& bytes);

}  // namespace muster::dispatch
