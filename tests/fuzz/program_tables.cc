// Tables of reads and writes of a program's variables, as a peer may send them.
#include <algorithm>
#include <vector>

#include "ps/program_wire.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::uint64_t kMost = 16ULL << 30;

template <class Entry>
void CheckEntries(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    muster::fuzz::Require(entry.access <= 1, "access is known");
    muster::fuzz::Require(entry.access == 1 || entry.ids == 0, "ids are for rows");
    muster::fuzz::Require(entry.bytes <= kMost && entry.ids <= kMost / 8, "sizes can be added");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  if (size < 8) return 0;
  // The first eight bytes are the payload's length.
  std::uint64_t payload = 0;
  std::copy_n(data, 8, reinterpret_cast<std::uint8_t*>(&payload));
  const auto meta = fuzz::Bytes(data + 8, size - 8);
  for (const bool local : {true, false}) {
    if (const auto reads = ps::ParseReads(meta, payload, local); reads.ok()) {
      CheckEntries(*reads);
      std::uint64_t ids = 0;
      for (const ps::ReadEntry& entry : *reads) ids += entry.ids * 8;
      fuzz::Require(payload == (local ? 0 : ids), "the payload is what the entries take");
    }
    if (const auto writes = ps::ParseWrites(meta, payload, local); writes.ok()) {
      CheckEntries(*writes);
      std::uint64_t bytes = 0;
      std::vector<std::uint32_t> runs;
      for (const ps::WriteEntry& entry : *writes) {
        if (runs.empty() || runs.back() != entry.shard) runs.push_back(entry.shard);
        fuzz::Require(ps::IsElementOp(entry.op) || entry.op == ps::kGradient,
                      "the operation is known");
        bytes += entry.ids * 8 + (entry.bytes + 7) / 8 * 8;
      }
      fuzz::Require(payload == (local ? 0 : bytes), "the payload is what the entries take");
      std::ranges::sort(runs);
      fuzz::Require(std::ranges::adjacent_find(runs) == runs.end(), "a shard stands together");
    }
  }
  return 0;
}
