#include "ps/staged_writes.h"

#include <new>

#include "common/base/words.h"
#include "ps/elements.h"
#include "ps/float_mode.h"

namespace muster::ps {

std::uint64_t BytesOf(std::span<const ShardWrite> writes) {
  std::uint64_t bytes = 0;
  for (const ShardWrite& write : writes) bytes += write.ids.size_bytes() + write.values.size();
  return bytes;
}

Status StagedWrites::Add(const FlushId& id, std::span<const ShardWrite> writes) {
  const std::uint64_t bytes = BytesOf(writes);
  try {
    std::vector<Write> set(writes.size());
    for (std::size_t i = 0; i < writes.size(); ++i) {
      set[i].ids.assign(writes[i].ids.begin(), writes[i].ids.end());
      set[i].values.assign(writes[i].values.begin(), writes[i].values.end());
      set[i].write = writes[i];
    }
    sets_[{id.closure.value(), OrderOfFlush(id.flush)}] = std::move(set);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for {} bytes that closure {} writes in a synchronous step",
                             bytes, id.closure);
  }
  bytes_ += bytes;
  return Ok();
}

void StagedWrites::AddRows(const Write& from, DType dtype, std::size_t row_bytes) {
  for (std::size_t k = 0; k < from.ids.size(); ++k) {
    const auto row = std::span(from.values).subspan(k * row_bytes, row_bytes);
    const auto [place, fresh] = rows_.places.try_emplace(from.ids[k], rows_.ids.size());
    if (fresh) {
      rows_.ids.push_back(from.ids[k]);
      rows_.values.insert(rows_.values.end(), row.begin(), row.end());
    } else {
      ApplyElements(ElementOp::kAdd, dtype, &rows_.values[place->second * row_bytes], row);
    }
  }
}

// The first gradient is the sum's beginning: a zero plus it may have other bits. The others of the
// whole shard are added to it when nothing takes memory any more: what has failed before that has
// changed nothing.
Result<std::vector<ShardWrite>> StagedWrites::Merge(DType dtype, std::size_t row_bytes) {
  const FlushSubnormals flush;
  std::vector<ShardWrite> merged;
  Write* whole = nullptr;
  ShardWrite rows;
  try {
    for (auto& [key, set] : sets_) {
      for (Write& one : set) {
        one.write.ids = one.ids;
        one.write.values = one.values;
        if (one.write.op != kGradient) {
          merged.push_back(one.write);
        } else if (one.write.rows) {
          rows = one.write;
          AddRows(one, dtype, row_bytes);
        } else if (whole == nullptr) {
          whole = &one;
        }
      }
    }
    merged.reserve(merged.size() + 2);
  } catch (const std::bad_alloc&) {
    rows_ = {};
    return ResourceExhausted("no memory for the sum of {} of a synchronous step",
                             Counted(sets_.size(), "write set"));
  }
  for (const auto& [key, set] : sets_) {
    for (const Write& one : set) {
      if (one.write.op != kGradient || one.write.rows || &one == whole) continue;
      ApplyElements(ElementOp::kAdd, dtype, whole->values.data(), one.values);
      whole->write.learning_rate = one.write.learning_rate;
    }
  }
  if (whole != nullptr) merged.push_back(whole->write);
  if (rows.rows) {
    rows.ids = rows_.ids;
    rows.values = rows_.values;
    merged.push_back(rows);
  }
  return merged;
}

void StagedWrites::Clear() {
  sets_.clear();
  rows_ = {};
  bytes_ = 0;
}

}  // namespace muster::ps
