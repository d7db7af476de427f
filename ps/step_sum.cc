#include "ps/step_sum.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/words.h"
#include "ps/elements.h"
#include "ps/pieces.h"

namespace muster::ps {
namespace {

// The caller's thread flushes subnormals.
void AddTo(std::span<float> sum, std::span<const float> values) {
  ApplyElements(ElementOp::kAdd, DType::kFloat32, std::as_writable_bytes(sum).data(),
                std::as_bytes(values));
}

std::uint64_t BytesOf(std::span<const std::int64_t> ids, std::size_t floats) {
  return ids.size_bytes() + floats * sizeof(float);
}

Status NoMemory(std::size_t rows) {
  return ResourceExhausted("no memory for {} of a gradient in a synchronous step",
                           Counted(rows, "row"));
}

}  // namespace

std::span<const float> StepSum::values() const {
  if (rows_) return row_sums_;
  return empty_ ? std::span<const float>() : sum_.floats();
}

Result<Region> StepSum::TakeRegion(std::size_t floats) {
  if (!rows_ && !spare_.empty()) {
    Region taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }
  MUSTER_TRY_ASSIGN(Region made, Region::Create(floats));
  bytes_ += made.bytes();
  return made;
}

Status StepSum::Keep(ClosureId closure, std::span<const std::int64_t> ids,
                     std::span<const float> values) {
  Early early;
  try {
    early.ids.assign(ids.begin(), ids.end());
  } catch (const std::bad_alloc&) {
    return NoMemory(ids.size());
  }
  if (!values.empty()) {
    MUSTER_TRY_ASSIGN(early.values, TakeRegion(values.size()));
    std::memcpy(early.values.floats().data(), values.data(), values.size_bytes());
  }
  early.floats = values.size();
  bytes_ += ids.size_bytes();
  early_.emplace(closure, std::move(early));
  return Ok();
}

Status StepSum::FindRows(std::span<const std::int64_t> ids) {
  const std::size_t known = ids_.size();
  try {
    found_.clear();
    found_.reserve(ids.size());
    for (const std::int64_t id : ids) {
      const auto [place, fresh] = places_.try_emplace(id, ids_.size());
      if (fresh) ids_.push_back(id);
      found_.push_back(place->second);
    }
    const std::size_t floats = ids_.size() * row_elements_;
    if (floats > row_sums_.capacity()) {
      row_sums_.reserve(std::max(floats, 2 * row_sums_.capacity()));
    }
  } catch (const std::bad_alloc&) {
    absl::erase_if(places_, [known](const auto& entry) { return entry.second >= known; });
    ids_.resize(known);
    return NoMemory(ids.size());
  }
  return Ok();
}

// Takes its memory first: where there is none, no row has been added to.
Status StepSum::AddRows(std::span<const std::int64_t> ids, std::span<const float> values) {
  MUSTER_TRY(FindRows(ids));
  const FlushSubnormals flush;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto row = values.subspan(k * row_elements_, row_elements_);
    const std::size_t at = found_[k] * row_elements_;
    if (at == row_sums_.size()) {
      row_sums_.insert(row_sums_.end(), row.begin(), row.end());
      bytes_ += BytesOf(ids.subspan(k, 1), row.size());
    } else {
      AddTo(std::span(row_sums_).subspan(at, row_elements_), row);
    }
  }
  return Ok();
}

// The first gradient is copied, for a zero plus it may have other bits.
Status StepSum::AddNext(std::span<const std::int64_t> ids, std::span<const float> values) {
  if (rows_) {
    MUSTER_TRY(AddRows(ids, values));
  } else if (values.empty()) {
    // Only marked: what is left in the sum of an earlier step is nobody's.
  } else if (empty_) {
    if (sum_.bytes() == 0 && elements_ > 0) {
      MUSTER_TRY_ASSIGN(sum_, TakeRegion(elements_));
    }
    std::memcpy(sum_.floats().data(), values.data(), values.size_bytes());
    empty_ = false;
  } else {
    InPieces(pool_, values.size(), kPieceFloats, kParallelFloats,
             [&](std::size_t first, std::size_t count) {
               AddTo(sum_.floats().subspan(first, count), values.subspan(first, count));
             });
  }
  next_ = next_.Next();
  return Ok();
}

// Adds it and those that have waited for it, or keeps it where others come before. One below next_
// was added when there was no memory for those that waited: now it brings them again.
Status StepSum::Add(ClosureId closure, std::span<const std::int64_t> ids,
                    std::span<const float> values) {
  if (closure > next_) return Keep(closure, ids, values);
  if (closure == next_) MUSTER_TRY(AddNext(ids, values));
  for (auto first = early_.begin(); first != early_.end() && first->first == next_;
       first = early_.erase(first)) {
    Early& early = first->second;
    // Only rows take memory that could be missing: the sum of a whole shard begins with what has
    // waited, or there is one already.
    if (!rows_ && empty_ && early.floats > 0) {
      std::swap(sum_, early.values);
      empty_ = false;
      next_ = next_.Next();
    } else {
      MUSTER_TRY(AddNext(early.ids, std::as_const(early.values).floats().first(early.floats)));
    }
    bytes_ -= early.ids.size() * sizeof(std::int64_t);
    if (rows_) {
      bytes_ -= early.values.bytes();
    } else if (early.values.bytes() > 0) {
      spare_.push_back(std::move(early.values));
    }
  }
  return Ok();
}

void StepSum::Clear() {
  bytes_ -= BytesOf(ids_, row_sums_.size());
  ids_.clear();
  row_sums_.clear();
  places_.clear();
  empty_ = true;
}

}  // namespace muster::ps
