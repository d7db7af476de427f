#include "ps/elements.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace muster::ps {
namespace {

// How many rows ahead memory is asked for, and how much of each.
constexpr std::size_t kRowsAhead = 8;
constexpr std::size_t kLine = 64;
constexpr std::size_t kLinesAhead = 8;

// Signed overflow is undefined; unsigned numbers wrap, and have the same bits.
template <class T, class Function>
T Wrapped(T a, T b, const Function& function) {
  if constexpr (std::is_integral_v<T>) {
    // As wide as an int at least: narrower ones would become a (signed) int.
    using Wide = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    return static_cast<T>(function(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return function(a, b);
  }
}

template <class T>
T Divided(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    if (b == 0) return 0;
    // The least number by -1 would trap.
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return Wrapped(T{0}, a, [](auto x, auto y) { return x - y; });
    }
    return static_cast<T>(a / b);
  } else {
    return a / b;
  }
}

template <class T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T, class Function>
void Each(std::byte* values, std::span<const std::byte> operands, const Function& function) {
  T* const to = reinterpret_cast<T*>(values);
  const T* const from = reinterpret_cast<const T*>(operands.data());
  const std::size_t n = operands.size() / sizeof(T);
  for (std::size_t i = 0; i < n; ++i) to[i] = function(to[i], from[i]);
}

template <class T>
void Apply(ElementOp op, std::byte* values, std::span<const std::byte> operands) {
  switch (op) {
    case ElementOp::kAssign:
      return;  // done as bytes
    case ElementOp::kAdd:
      return Each<T>(values, operands,
                     [](T a, T b) { return Wrapped(a, b, [](auto x, auto y) { return x + y; }); });
    case ElementOp::kSub:
      return Each<T>(values, operands,
                     [](T a, T b) { return Wrapped(a, b, [](auto x, auto y) { return x - y; }); });
    case ElementOp::kMul:
      return Each<T>(values, operands,
                     [](T a, T b) { return Wrapped(a, b, [](auto x, auto y) { return x * y; }); });
    case ElementOp::kDiv:
      return Each<T>(values, operands, [](T a, T b) { return Divided(a, b); });
    case ElementOp::kMin:
      return Each<T>(values, operands, [](T a, T b) { return b < a || IsNan(b) ? b : a; });
    case ElementOp::kMax:
      return Each<T>(values, operands, [](T a, T b) { return b > a || IsNan(b) ? b : a; });
  }
}

template <class T>
bool HasZero(std::span<const std::byte> operands) {
  const T* const from = reinterpret_cast<const T*>(operands.data());
  return std::find(from, from + operands.size() / sizeof(T), T{0}) !=
         from + operands.size() / sizeof(T);
}

bool DividesByZero(DType dtype, std::span<const std::byte> operands) {
  switch (dtype) {
    case DType::kInt32:
      return HasZero<std::int32_t>(operands);
    case DType::kInt64:
      return HasZero<std::int64_t>(operands);
    case DType::kUint8:
      return HasZero<std::uint8_t>(operands);
    default:
      return false;
  }
}

bool IsStoredOnly(DType dtype) {
  return dtype == DType::kBool || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Without a branch in a block, so that it is vectorised: an exponent of ones alone is infinity or
// NaN, and adding one to it reaches the sign.
template <class Float, class Bits>
bool AllFinite(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlock = 1024;
  constexpr Bits kExponent = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());
  constexpr Bits kLowest = kExponent & (~kExponent + 1);
  const std::size_t n = bytes.size() / sizeof(Bits);
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t end = std::min(first + kBlock, n);
    Bits any = 0;
    for (std::size_t i = first; i < end; ++i) {
      Bits value;
      std::memcpy(&value, bytes.data() + i * sizeof(Bits), sizeof(Bits));
      any |= (value & kExponent) + kLowest;
    }
    if (any >> (8 * sizeof(Bits) - 1) != 0) return false;
  }
  return true;
}

}  // namespace

std::string_view NameOf(ElementOp op) {
  constexpr std::string_view kNames[] = {"assign", "add", "sub", "mul", "div", "min", "max"};
  return kNames[static_cast<std::size_t>(op) - 1];
}

bool IsVariableDType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kUint8:
      return true;
    default:
      return IsStoredOnly(dtype);
  }
}

Status CheckOperands(ElementOp op, DType dtype, std::span<const std::byte> operands,
                     std::string_view what) {
  if (op == ElementOp::kAssign) return Ok();
  if (IsStoredOnly(dtype)) {
    return InvalidArgument("{}: {} of {} is not possible; it is stored only: assign and update",
                           what, NameOf(op), NameOf(dtype));
  }
  if (op == ElementOp::kDiv && DividesByZero(dtype, operands)) {
    return InvalidArgument("{}: division of {} by zero", what, NameOf(dtype));
  }
  return Ok();
}

Status CheckGradient(DType dtype, std::span<const std::byte> gradient, double learning_rate,
                     std::string_view what) {
  if (!(learning_rate >= 0) || !std::isfinite(learning_rate)) {
    return InvalidArgument("{}: a learning rate of {}; it must be 0 or more", what, learning_rate);
  }
  const bool finite = dtype == DType::kFloat32   ? AllFinite<float, std::uint32_t>(gradient)
                      : dtype == DType::kFloat64 ? AllFinite<double, std::uint64_t>(gradient)
                                                 : true;
  if (finite) return Ok();
  return InvalidArgument(
      "{}: its gradient is not finite; lower the learning rate, or check the loss and the data",
      what);
}

void ApplyElements(ElementOp op, DType dtype, std::byte* values,
                   std::span<const std::byte> operands) {
  if (op == ElementOp::kAssign) {
    if (!operands.empty()) std::memcpy(values, operands.data(), operands.size());
    return;
  }
  switch (dtype) {
    case DType::kFloat32:
      return Apply<float>(op, values, operands);
    case DType::kFloat64:
      return Apply<double>(op, values, operands);
    case DType::kInt32:
      return Apply<std::int32_t>(op, values, operands);
    case DType::kInt64:
      return Apply<std::int64_t>(op, values, operands);
    case DType::kUint8:
      return Apply<std::uint8_t>(op, values, operands);
    default:
      return;
  }
}

void ScatterElements(ElementOp op, DType dtype, std::byte* values, std::size_t row_bytes,
                     std::span<const std::int64_t> ids, std::span<const std::byte> operands) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (k + kRowsAhead < ids.size()) {
      __builtin_prefetch(values + static_cast<std::size_t>(ids[k + kRowsAhead]) * row_bytes, 1);
    }
    ApplyElements(op, dtype, values + static_cast<std::size_t>(ids[k]) * row_bytes,
                  operands.subspan(k * row_bytes, row_bytes));
  }
}

void GatherRowBytes(const std::byte* values, std::size_t row_bytes,
                    std::span<const std::int64_t> ids, std::byte* into) {
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (k + kRowsAhead < ids.size()) {
      const std::byte* next = values + static_cast<std::size_t>(ids[k + kRowsAhead]) * row_bytes;
      for (std::size_t i = 0; i < std::min(row_bytes, kLinesAhead * kLine); i += kLine) {
        __builtin_prefetch(next + i);
      }
    }
    std::memcpy(into + k * row_bytes, values + static_cast<std::size_t>(ids[k]) * row_bytes,
                row_bytes);
  }
}

}  // namespace muster::ps
