// An answer over TCP goes in frames of about kFrameTarget: whole entries, as many as fit. Each
// entry's values take ValueBytes(entry), padded to 8. Threading: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "ps/program_wire.h"
#include "ps/wire.h"

namespace muster::ps {

inline std::uint64_t ValueBytes(const WireEntry& entry) { return entry.floats * sizeof(float); }
inline std::uint64_t ValueBytes(const ReadEntry& entry) { return entry.bytes; }

template <class Entry>
struct AnswerGroup {
  std::span<const Entry> entries;
  std::uint64_t bytes = 0;
};

// The first entries that one frame carries, at least one.
template <class Entry>
AnswerGroup<Entry> FirstGroup(std::span<const Entry> entries) {
  AnswerGroup<Entry> group;
  std::size_t n = 0;
  for (; n < entries.size(); ++n) {
    const std::uint64_t more = PaddedTo8(ValueBytes(entries[n]));
    if (n > 0 && group.bytes + more > kFrameTarget) break;
    group.bytes += more;
  }
  group.entries = entries.first(n);
  return group;
}

template <class Entry>
std::uint64_t LargestGroup(std::span<const Entry> entries) {
  std::uint64_t largest = 0;
  while (!entries.empty()) {
    const AnswerGroup<Entry> group = FirstGroup(entries);
    largest = std::max(largest, group.bytes);
    entries = entries.subspan(group.entries.size());
  }
  return largest;
}

}  // namespace muster::ps
