#include "dispatch/core/bookmark.h"

#include <cstring>

namespace muster::dispatch {
namespace {

template <class T>
void Append(T number, std::vector<std::byte>& to) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

template <class T>
T NumberAt(std::span<const std::byte> bytes) {
  T number = 0;
  std::memcpy(&number, bytes.data(), sizeof(T));
  return number;
}

// The part before the length at the end of `bytes`, which are cut off before that part.
Result<std::span<const std::byte>> TakeTail(std::span<const std::byte>& bytes) {
  constexpr std::size_t kLength = sizeof(std::uint32_t);
  if (bytes.size() < kLength) return DataLoss("{} bytes hold no bookmark", bytes.size());
  const auto length = NumberAt<std::uint32_t>(bytes.last(kLength));
  bytes = bytes.first(bytes.size() - kLength);
  if (length > bytes.size()) {
    return DataLoss("bookmarks of {} bytes, {} are there", length, bytes.size());
  }
  const auto tail = bytes.last(length);
  bytes = bytes.first(bytes.size() - length);
  return tail;
}

}  // namespace

void AppendBookmarks(std::span<const Bookmark> bookmarks, std::vector<std::byte>& to) {
  const std::size_t before = to.size();
  for (const Bookmark& one : bookmarks) {
    Append(one.value.value(), to);
    Append(static_cast<std::uint32_t>(sizeof(one.sequence) + one.place.size()), to);
    Append(one.sequence, to);
    to.insert(to.end(), one.place.begin(), one.place.end());
  }
  Append(static_cast<std::uint32_t>(to.size() - before), to);
}

Result<std::vector<Bookmark>> TakeBookmarks(std::span<const std::byte>& bytes) {
  MUSTER_TRY_ASSIGN(std::span<const std::byte> left, TakeTail(bytes));
  std::vector<Bookmark> bookmarks;
  constexpr std::size_t kFixed = sizeof(std::uint64_t) + sizeof(std::uint32_t);
  while (!left.empty()) {
    if (left.size() < kFixed) return DataLoss("{} bytes are no bookmark", left.size());
    const ClosureId value(NumberAt<std::uint64_t>(left));
    const auto length = NumberAt<std::uint32_t>(left.subspan(sizeof(std::uint64_t)));
    left = left.subspan(kFixed);
    if (length < sizeof(std::uint64_t) || length > left.size()) {
      return DataLoss("a bookmark of {} bytes, {} are there", length, left.size());
    }
    bookmarks.push_back(
        {.value = value,
         .sequence = NumberAt<std::uint64_t>(left),
         .place = left.subspan(sizeof(std::uint64_t), length - sizeof(std::uint64_t))});
    left = left.subspan(length);
  }
  return bookmarks;
}

void AppendBookmark(std::uint64_t sequence, std::span<const std::byte> place,
                    std::vector<std::byte>& to) {
  Append(sequence, to);
  to.insert(to.end(), place.begin(), place.end());
  Append(static_cast<std::uint32_t>(sizeof(sequence) + place.size()), to);
}

Result<Bookmark> TakeBookmark(std::span<const std::byte>& bytes) {
  MUSTER_TRY_ASSIGN(const std::span<const std::byte> tail, TakeTail(bytes));
  if (tail.size() < sizeof(std::uint64_t)) {
    return DataLoss("{} bytes are no bookmark", tail.size());
  }
  return Bookmark{.sequence = NumberAt<std::uint64_t>(tail),
                  .place = tail.subspan(sizeof(std::uint64_t))};
}

}  // namespace muster::dispatch
