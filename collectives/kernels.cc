#include "collectives/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/base/status.h"
#include "common/base/stream.h"

namespace muster::collectives {
namespace {

// Elements summed at a time: a block of sums stays in the first-level cache until it is stored.
constexpr std::size_t kBlock = 2048;

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

float ToFloat(Half half) {
  const std::uint32_t magnitude = half.bits & 0x7fffu;
  const std::uint32_t sign = (half.bits & 0x8000u) << 16;
  // Shifted into place, the exponent is 112 too small; the multiplication mends it, also for
  // subnormal numbers. Infinity and NaN need all exponent bits.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign | special);
}

float ToFloat(Bfloat value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Rounds to the nearest, ties to even.
void FromFloat(float value, Half& half) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds up to more than the largest half
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 rounds at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    result = std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u;
  } else {
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  half.bits = static_cast<std::uint16_t>(sign | result);
}

void FromFloat(float value, Bfloat& narrow) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  narrow.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 0x40u : rounded >> 16);
}

template <class T>
constexpr bool kNarrow = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

// Sums of 64-bit integers, of which two may be too many for 64 bits.
__extension__ using Int128 = __int128;

// What elements of type T are reduced in. Unsigned integers wrap around without undefined
// behaviour; means do not.
template <class T, Reduction kReduction>
auto SumType() {
  constexpr bool kOrdered = kReduction == Reduction::kMin || kReduction == Reduction::kMax;
  if constexpr (kNarrow<T>) {
    return float{};
  } else if constexpr (!std::is_integral_v<T> || kOrdered) {
    return T{};
  } else if constexpr (kReduction == Reduction::kMean) {
    return std::conditional_t<sizeof(T) == 8, Int128, std::int64_t>{};
  } else {
    return std::make_unsigned_t<T>{};
  }
}

template <class Acc, class T>
Acc Load(T value) {
  if constexpr (kNarrow<T>) {
    return ToFloat(value);
  } else {
    return static_cast<Acc>(value);
  }
}

template <class T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <Reduction kReduction, class Acc>
Acc Combine(Acc a, Acc b) {
  if constexpr (kReduction == Reduction::kMin) {
    return a < b || IsNan(a) ? a : b;
  } else if constexpr (kReduction == Reduction::kMax) {
    return a > b || IsNan(a) ? a : b;
  } else if constexpr (kReduction == Reduction::kProduct) {
    // A product of two small unsigned numbers is computed as int, which may overflow.
    if constexpr (std::is_integral_v<Acc>) {
      return static_cast<Acc>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  } else {
    return static_cast<Acc>(a + b);
  }
}

template <bool kMean, class Out, class Acc>
void Store(const Acc* sums, std::size_t count, std::size_t divisor, Out* out) {
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (kNarrow<Out>) {
      FromFloat(kMean ? sums[i] / static_cast<float>(divisor) : sums[i], out[i]);
    } else if constexpr (kMean && !std::is_floating_point_v<Acc>) {
      out[i] = static_cast<double>(sums[i]) / static_cast<double>(divisor);
    } else if constexpr (kMean) {
      out[i] = sums[i] / static_cast<Acc>(divisor);
    } else {
      out[i] = static_cast<Out>(sums[i]);
    }
  }
}

// Block by block: the sum of all sources, then that to all destinations.
template <class T, Reduction kReduction>
void ReduceTyped(std::span<const void* const> sources, std::span<void* const> destinations,
                 std::size_t begin, std::size_t end, std::span<void* const> handed) {
  constexpr bool kMean = kReduction == Reduction::kMean;
  using Acc = decltype(SumType<T, kReduction>());
  using Out = std::conditional_t<kMean && std::is_integral_v<T>, double, T>;
  constexpr bool kAsSummed = !kMean && sizeof(Out) == sizeof(Acc);
  const bool streamed = (end - begin) * sizeof(Out) * destinations.size() >= kPastCaches;
  alignas(64) Acc sums[kBlock];
  alignas(64) Out block[kAsSummed ? 1 : kBlock];
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    const auto elements = [&](std::size_t source) {
      return static_cast<const T*>(sources[source]) + at;
    };
    const T* const first = elements(0);
    if (sources.size() == 1) {
      for (std::size_t i = 0; i < count; ++i) sums[i] = Load<Acc>(first[i]);
    } else {
      const T* const second = elements(1);
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] = Combine<kReduction>(Load<Acc>(first[i]), Load<Acc>(second[i]));
      }
    }
    for (std::size_t source = 2; source < sources.size(); ++source) {
      const T* const next = elements(source);
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] = Combine<kReduction>(sums[i], Load<Acc>(next[i]));
      }
    }
    // Every source was read before any destination is written: one may be the other.
    const void* result = sums;
    if constexpr (!kAsSummed) {
      Store<kMean>(sums, count, sources.size(), block);
      result = block;
    }
    for (void* destination : destinations) {
      Out* const to = static_cast<Out*>(destination) + at;
      if (streamed) {
        Stream(to, result, count * sizeof(Out));
      } else {
        std::memcpy(to, result, count * sizeof(Out));
      }
    }
    for (void* destination : handed) {
      Stream(static_cast<Out*>(destination) + at, result, count * sizeof(Out));
    }
  }
  if (streamed || !handed.empty()) EndStream();
}

template <class T>
void Dispatch(Reduction reduction, std::span<const void* const> sources,
              std::span<void* const> destinations, std::size_t begin, std::size_t end,
              std::span<void* const> handed) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceTyped<T, Reduction::kSum>(sources, destinations, begin, end, handed);
    case Reduction::kMean:
      return ReduceTyped<T, Reduction::kMean>(sources, destinations, begin, end, handed);
    case Reduction::kMin:
      return ReduceTyped<T, Reduction::kMin>(sources, destinations, begin, end, handed);
    case Reduction::kMax:
      return ReduceTyped<T, Reduction::kMax>(sources, destinations, begin, end, handed);
    case Reduction::kProduct:
      return ReduceTyped<T, Reduction::kProduct>(sources, destinations, begin, end, handed);
  }
}

}  // namespace

std::string_view NameOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "SUM";
    case Reduction::kMean:
      return "MEAN";
    case Reduction::kMin:
      return "MIN";
    case Reduction::kMax:
      return "MAX";
    case Reduction::kProduct:
      return "PRODUCT";
  }
  return "?";
}

bool Reducible(DType type) { return SizeOf(type) != 0 && type != DType::kBool; }

DType ResultType(Reduction reduction, DType type) {
  if (reduction != Reduction::kMean) return type;
  switch (type) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBfloat16:
      return type;
    default:
      return DType::kFloat64;
  }
}

bool AddsUp(Reduction reduction, DType type) {
  return ResultType(reduction, type) == type && type != DType::kFloat16 && type != DType::kBfloat16;
}

Reduction WhileAdding(Reduction reduction) {
  return reduction == Reduction::kMean ? Reduction::kSum : reduction;
}

void ReduceRange(Reduction reduction, DType type, std::span<const void* const> sources,
                 std::span<void* const> destinations, std::size_t begin, std::size_t end,
                 std::span<void* const> handed) {
  MUSTER_INVARIANT(!sources.empty());
  switch (type) {
    case DType::kFloat32:
      return Dispatch<float>(reduction, sources, destinations, begin, end, handed);
    case DType::kFloat64:
      return Dispatch<double>(reduction, sources, destinations, begin, end, handed);
    case DType::kFloat16:
      return Dispatch<Half>(reduction, sources, destinations, begin, end, handed);
    case DType::kBfloat16:
      return Dispatch<Bfloat>(reduction, sources, destinations, begin, end, handed);
    case DType::kInt64:
      return Dispatch<std::int64_t>(reduction, sources, destinations, begin, end, handed);
    case DType::kInt32:
      return Dispatch<std::int32_t>(reduction, sources, destinations, begin, end, handed);
    case DType::kInt16:
      return Dispatch<std::int16_t>(reduction, sources, destinations, begin, end, handed);
    case DType::kInt8:
      return Dispatch<std::int8_t>(reduction, sources, destinations, begin, end, handed);
    case DType::kUint8:
      return Dispatch<std::uint8_t>(reduction, sources, destinations, begin, end, handed);
    default:
      MUSTER_INVARIANT(!"a type that has no sum");
  }
}

void DivideRange(DType type, void* values, std::size_t divisor, std::size_t begin,
                 std::size_t end) {
  if (type == DType::kFloat32) {
    auto* const at = static_cast<float*>(values);
    for (std::size_t i = begin; i < end; ++i) at[i] /= static_cast<float>(divisor);
  } else {
    MUSTER_INVARIANT(type == DType::kFloat64);
    auto* const at = static_cast<double*>(values);
    for (std::size_t i = begin; i < end; ++i) at[i] /= static_cast<double>(divisor);
  }
}

}  // namespace muster::collectives
