#include "common/data/reader.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace muster::data {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t Aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::size_t RowBytes(const ColumnInfo& column) {
  std::size_t bytes = SizeOf(column.dtype);
  for (std::size_t d = 1; d < column.shape.size(); ++d) {
    bytes *= static_cast<std::size_t>(column.shape[d]);
  }
  return bytes;
}

Result<Element> AllocateBatch(const std::vector<ColumnInfo>& columns, std::size_t rows) {
  std::size_t total = kAlignment;
  for (const ColumnInfo& column : columns) total += Aligned(RowBytes(column) * rows);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, total));
  if (memory == nullptr) return ResourceExhausted("no memory for a batch of {} bytes", total);
  const std::shared_ptr<const void> owner(memory, [](void* p) { std::free(p); });

  Element element;
  std::byte* next = memory;
  for (const ColumnInfo& info : columns) {
    Column column{.info = info, .owner = owner, .data = next};
    column.info.shape.front() = static_cast<std::int64_t>(rows);
    next += Aligned(column.bytes());
    element.columns.push_back(std::move(column));
  }
  return element;
}

std::string NameRecords(std::span<const std::uint64_t> records,
                        std::span<const std::uint64_t> starts, std::span<const std::string> paths) {
  constexpr int kMostRuns = 24;  // a message, not a table
  std::vector<std::uint64_t> sorted(records.begin(), records.end());
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  std::size_t at = 0;
  for (std::size_t file = 0; file < paths.size(); ++file) {
    std::string runs;
    int count = 0;
    const std::size_t begin = at;
    while (at < sorted.size() && sorted[at] < starts[file + 1]) {
      const std::uint64_t first = sorted[at] - starts[file] + 1;
      std::uint64_t last = first;
      for (++at; at < sorted.size() && sorted[at] < starts[file + 1]; ++at) {
        const std::uint64_t next = sorted[at] - starts[file] + 1;
        if (next > last + 1) break;
        last = next;
      }
      if (++count > kMostRuns) continue;
      runs += fmt::format("{}{}", runs.empty() ? "" : ", ", first);
      if (last > first) runs += fmt::format("-{}", last);
    }
    if (at == begin) continue;
    if (count > kMostRuns) runs += fmt::format(" and others, {} in all,", at - begin);
    text += fmt::format("{}record{} {} of {}", text.empty() ? "" : "; ", at - begin == 1 ? "" : "s",
                        runs, paths[file]);
  }
  return text;
}

}  // namespace muster::data
