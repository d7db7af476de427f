#include "ps/program_wire.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "ps/wire.h"

namespace muster::ps {
namespace {

// More than any frame carries: sums of as many entries as there may be fit into 64 bits.
constexpr std::uint64_t kMostBytes = 16ULL << 30;
constexpr std::uint64_t kMostIds = kMostBytes / sizeof(std::int64_t);

template <class Entry>
Result<std::vector<Entry>> Table(std::span<const std::byte> meta) {
  const std::size_t count = meta.size() / sizeof(Entry);
  if (meta.size() % sizeof(Entry) != 0 || count == 0 || count > kMaxEntries) {
    return InvalidArgument("{} bytes of meta are not 1 to {} entries of {}", meta.size(),
                           kMaxEntries, sizeof(Entry));
  }
  std::vector<Entry> entries(count);
  std::memcpy(entries.data(), meta.data(), meta.size());
  return entries;
}

template <class Entry>
Status CheckEntry(const Entry& entry, std::size_t at) {
  if (entry.access > 1) {
    return InvalidArgument("entry {}: access {}; 0 (whole) and 1 (rows) are known", at,
                           static_cast<std::uint32_t>(entry.access));
  }
  if (entry.access == 0 && entry.ids != 0) {
    return InvalidArgument("entry {}: {} row ids for access to the whole shard", at, entry.ids);
  }
  if (entry.ids > kMostIds || entry.bytes > kMostBytes) {
    return InvalidArgument("entry {}: {} ids and {} bytes; at most {} and {}", at, entry.ids,
                           entry.bytes, kMostIds, kMostBytes);
  }
  return Ok();
}

Status CheckPayload(std::uint64_t payload, std::uint64_t expected) {
  if (payload == expected) return Ok();
  return InvalidArgument("a payload of {} bytes; the entries make {}", payload, expected);
}

// A shard would take entries that come apart from its others for a repeat of those. Clients send
// shards in ascending order: only where that is not so, those before have to be known.
Status CheckTogether(std::span<const WriteEntry> entries) {
  if (std::ranges::is_sorted(entries, {}, &WriteEntry::shard)) return Ok();
  std::set<std::uint32_t> seen;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint32_t shard = entries[i].shard;
    if (i > 0 && entries[i - 1].shard == shard) continue;
    if (seen.insert(shard).second) continue;
    return InvalidArgument(
        "entry {}: shard {} comes again behind others; all entries of a shard stand together", i,
        shard);
  }
  return Ok();
}

}  // namespace

Status CheckFlushCount(ClosureId closure, std::uint64_t count, std::uint64_t most) {
  if (count <= most) return Ok();
  return Unimplemented(
      "closure {} sends what it writes for the {}th time; {} times are possible{}: write more "
      "together, or schedule several closures",
      closure, count, most,
      most == kMostFlushes ? " where replicas write, or in a synchronous step" : "");
}

Result<std::vector<ReadEntry>> ParseReads(std::span<const std::byte> meta, std::uint64_t payload,
                                          bool local) {
  MUSTER_TRY_ASSIGN(std::vector<ReadEntry> entries, Table<ReadEntry>(meta));
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    MUSTER_TRY(CheckEntry(entries[i], i));
    expected += entries[i].ids * sizeof(std::int64_t);
  }
  MUSTER_TRY(CheckPayload(payload, local ? 0 : expected));
  return entries;
}

Result<std::vector<WriteEntry>> ParseWrites(std::span<const std::byte> meta, std::uint64_t payload,
                                            bool local) {
  MUSTER_TRY_ASSIGN(std::vector<WriteEntry> entries, Table<WriteEntry>(meta));
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    MUSTER_TRY(CheckEntry(entries[i], i));
    if (!IsElementOp(entries[i].op) && entries[i].op != kGradient) {
      return InvalidArgument("entry {}: operation {} is not known", i,
                             static_cast<unsigned>(entries[i].op));
    }
    if (entries[i].op == kGradient && entries[i].slot != 0) {
      return InvalidArgument("entry {}: a gradient for slot {}; it is for the values", i,
                             entries[i].slot);
    }
    expected += entries[i].ids * sizeof(std::int64_t) + PaddedTo8(entries[i].bytes);
  }
  MUSTER_TRY(CheckTogether(entries));
  MUSTER_TRY(CheckPayload(payload, local ? 0 : expected));
  return entries;
}

}  // namespace muster::ps
