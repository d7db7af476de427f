#include "worker/engine/lookup.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/ranges.h>

#include "common/base/words.h"

namespace muster::engine {
namespace {

// Numbers ids by first use: open addressing, since this stands between every batch and its pull.
class Numbering {
 public:
  explicit Numbering(std::size_t most)
      : mask_(std::bit_ceil(2 * most + 2) - 1), slots_(mask_ + 1, kFree) {}

  // The number of `id`, appended to `ids` when it is new.
  std::int32_t Of(std::int64_t id, std::vector<std::int64_t>& ids) {
    std::size_t at = (static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15u >> 20) & mask_;
    for (;; at = (at + 1) & mask_) {
      const std::int32_t number = slots_[at];
      if (number == kFree) break;
      if (ids[static_cast<std::size_t>(number)] == id) return number;
    }
    slots_[at] = static_cast<std::int32_t>(ids.size());
    ids.push_back(id);
    return slots_[at];
  }

 private:
  static constexpr std::int32_t kFree = -1;
  std::size_t mask_;
  std::vector<std::int32_t> slots_;
};

// How much one place weighs in its example's result.
float Weight(const EmbeddingInfo& info, const std::int32_t* places, std::int64_t length) {
  if (info.combiner != Combiner::kMean) return 1.0f;
  const auto real = std::count_if(places, places + length, [](auto place) { return place >= 0; });
  return real == 0 ? 0.0f : 1.0f / static_cast<float>(real);
}

constexpr std::uint32_t kExponent = 0x7f800000;

}  // namespace

Result<Lookup> FindRows(const EmbeddingInfo& info, const data::Column& feature) {
  const auto& shape = feature.info.shape;
  if (feature.info.dtype != DType::kInt64 || shape.empty() || shape.size() > 2) {
    return InvalidArgument(
        "embedding \"{}\": column \"{}\" is {} [{}]; ids are int64 [batch] or [batch, length]",
        info.name, info.feature, NameOf(feature.info.dtype), fmt::join(shape, ", "));
  }
  Lookup lookup;
  lookup.batch = shape[0];
  lookup.length = shape.size() == 2 ? shape[1] : 1;
  lookup.shape = shape;
  if (info.combiner != Combiner::kNone) lookup.shape = {lookup.batch};
  lookup.shape.push_back(info.dim);

  const auto n = static_cast<std::size_t>(feature.elements());
  const auto* ids = feature.as<std::int64_t>();
  lookup.places.resize(n);
  Numbering numbering(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (ids[i] >= info.rows) {
      return InvalidArgument(
          "embedding \"{}\": column \"{}\" holds id {} (example {} of the batch); the table has "
          "{}, ids 0 to {}",
          info.name, info.feature, ids[i], static_cast<std::int64_t>(i) / lookup.length,
          Counted(static_cast<std::uint64_t>(info.rows), "row"), info.rows - 1);
    }
    lookup.places[i] = ids[i] < 0 ? -1 : numbering.Of(ids[i], lookup.ids);
  }
  return lookup;
}

void Gather(const EmbeddingInfo& info, const Lookup& lookup, float* out) {
  const auto dim = static_cast<std::size_t>(info.dim);
  const float* rows = lookup.rows.data();
  if (info.combiner == Combiner::kNone) {
    for (const std::int32_t place : lookup.places) {
      if (place < 0) {
        std::fill_n(out, dim, 0.0f);
      } else {
        std::copy_n(rows + static_cast<std::size_t>(place) * dim, dim, out);
      }
      out += dim;
    }
    return;
  }
  const std::int32_t* places = lookup.places.data();
  for (std::int64_t b = 0; b < lookup.batch; ++b, places += lookup.length, out += dim) {
    std::fill_n(out, dim, 0.0f);
    const float weight = Weight(info, places, lookup.length);
    for (std::int64_t i = 0; i < lookup.length; ++i) {
      if (places[i] < 0) continue;
      const float* row = rows + static_cast<std::size_t>(places[i]) * dim;
      for (std::size_t d = 0; d < dim; ++d) out[d] += row[d];
    }
    if (weight != 1.0f) {
      for (std::size_t d = 0; d < dim; ++d) out[d] *= weight;
    }
  }
}

void Scatter(const EmbeddingInfo& info, const Lookup& lookup, const float* gradient) {
  const auto dim = static_cast<std::size_t>(info.dim);
  float* rows = lookup.row_gradients.data();
  std::fill_n(rows, lookup.ids.size() * dim, 0.0f);
  const std::int32_t* places = lookup.places.data();
  const bool combined = info.combiner != Combiner::kNone;
  for (std::int64_t b = 0; b < lookup.batch; ++b, places += lookup.length) {
    const float weight = Weight(info, places, lookup.length);
    for (std::int64_t i = 0; i < lookup.length; ++i) {
      if (places[i] >= 0) {
        float* row = rows + static_cast<std::size_t>(places[i]) * dim;
        for (std::size_t d = 0; d < dim; ++d) row[d] += weight * gradient[d];
      }
      if (!combined) gradient += dim;
    }
    if (combined) gradient += dim;
  }
}

bool AllFinite(const float* values, std::size_t n) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    bad |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[i]) & kExponent) ==
                                      kExponent);
  }
  return bad == 0;
}

bool CopyFinite(const float* from, float* to, std::size_t n) {
  // In blocks, so that the check reads what the copy has just brought into the cache.
  constexpr std::size_t kBlock = 4096;
  bool finite = true;
  for (std::size_t at = 0; at < n; at += kBlock) {
    const std::size_t count = std::min(kBlock, n - at);
    std::memcpy(to + at, from + at, count * sizeof(float));
    finite &= AllFinite(to + at, count);
  }
  return finite;
}

}  // namespace muster::engine
