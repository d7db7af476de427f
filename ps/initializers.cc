#include "ps/initializers.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include <xxhash.h>

#include "muster/v1/common.pb.h"

namespace muster::ps {
namespace {

constexpr double kDefaultScale = 0.05;
// Counters of the truncated normal's tries stand apart from the others'.
constexpr std::uint32_t kTruncatedStream = 1;

// In [0, 1), 24 bits.
float Unit(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }

// Box-Muller: two independent normals from two uniforms. In double: the tail reaches 6.6 deviations
// and the rounding to float is the only one that shows.
std::array<float, 2> Normals(std::uint32_t a, std::uint32_t b) {
  const double radius = std::sqrt(-2 * std::log((a + 1.0) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * (b * 0x1p-32);
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

std::array<std::uint32_t, 4> Counter(std::uint64_t n, std::uint32_t c2 = 0, std::uint32_t c3 = 0) {
  return {static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), c2, c3};
}

// Within two standard deviations, by trying again; each element has counters of its own.
float TruncatedNormal(std::uint64_t element, std::array<std::uint32_t, 2> key) {
  for (std::uint32_t attempt = 0;; ++attempt) {
    const auto bits = Philox(Counter(element, attempt, kTruncatedStream), key);
    for (int pair = 0; pair < 4; pair += 2) {
      for (const float value : Normals(bits[pair], bits[pair + 1])) {
        if (std::fabs(value) < 2) return value;
      }
    }
  }
}

struct Fans {
  double in = 1;
  double out = 1;
};

Fans FansOf(const v1::VariableLayout& variable) {
  Fans fans;
  for (int axis = 0; axis + 1 < variable.shape_size(); ++axis) {
    fans.in *= static_cast<double>(variable.shape(axis));
  }
  if (variable.shape_size() > 0) {
    fans.out = static_cast<double>(variable.shape(variable.shape_size() - 1));
  }
  return fans;
}

v1::InitializerKind KindOf(const v1::VariableLayout& variable) {
  if (variable.initializer().kind() != v1::INITIALIZER_KIND_UNSPECIFIED) {
    return variable.initializer().kind();
  }
  if (variable.embedding()) return v1::INITIALIZER_KIND_UNIFORM;
  return variable.shape_size() >= 2 ? v1::INITIALIZER_KIND_GLOROT_UNIFORM
                                    : v1::INITIALIZER_KIND_ZEROS;
}

}  // namespace

std::array<std::uint32_t, 4> Philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

Result<InitialValues> InitialValues::Create(const v1::VariableLayout& variable,
                                            std::uint64_t seed) {
  InitialValues values;
  const std::uint64_t key =
      XXH3_64bits_withSeed(variable.name().data(), variable.name().size(), seed);
  values.key_ = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  const Fans fans = FansOf(variable);
  const double given = variable.initializer().scale();
  const double scale = given == 0 ? kDefaultScale : given;
  // Beyond the largest float all values would be infinite.
  if (!(std::fabs(given) <= std::numeric_limits<float>::max())) {
    return InvalidArgument("variable {}: initializer.scale is {}; it must be a finite float32",
                           variable.name(), given);
  }
  const auto set = [&](Kind kind, double value) {
    values.kind_ = kind;
    values.scale_ = static_cast<float>(value);
  };
  switch (KindOf(variable)) {
    case v1::INITIALIZER_KIND_ZEROS:
    case v1::INITIALIZER_KIND_ARCHIVE:  // assigned before the first step
      set(Kind::kConstant, 0);
      break;
    case v1::INITIALIZER_KIND_ONES:
      set(Kind::kConstant, 1);
      break;
    case v1::INITIALIZER_KIND_CONSTANT:
      set(Kind::kConstant, given);
      return values;
    case v1::INITIALIZER_KIND_UNIFORM:
      set(Kind::kUniform, scale);
      break;
    case v1::INITIALIZER_KIND_NORMAL:
      set(Kind::kNormal, scale);
      break;
    case v1::INITIALIZER_KIND_TRUNCATED_NORMAL:
      set(Kind::kTruncatedNormal, scale);
      break;
    case v1::INITIALIZER_KIND_GLOROT_UNIFORM:
      set(Kind::kUniform, std::sqrt(6 / (fans.in + fans.out)));
      break;
    case v1::INITIALIZER_KIND_GLOROT_NORMAL:
      set(Kind::kNormal, std::sqrt(2 / (fans.in + fans.out)));
      break;
    case v1::INITIALIZER_KIND_HE_UNIFORM:
      set(Kind::kUniform, std::sqrt(6 / fans.in));
      break;
    case v1::INITIALIZER_KIND_HE_NORMAL:
      set(Kind::kNormal, std::sqrt(2 / fans.in));
      break;
    default:
      return InvalidArgument("variable {}: initializer {} is not known to this version",
                             variable.name(), static_cast<int>(KindOf(variable)));
  }
  if (values.scale_ < 0) {
    return InvalidArgument("variable {}: initializer.scale is {}; it must be 0 or more",
                           variable.name(), given);
  }
  return values;
}

void InitialValues::Fill(std::uint64_t first, std::span<float> into) const {
  if (kind_ == Kind::kConstant) {
    for (float& value : into) value = scale_;
    return;
  }
  if (kind_ == Kind::kTruncatedNormal) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      into[i] = scale_ * TruncatedNormal(first + i, key_);
    }
    return;
  }
  // Four elements to a counter: element i is lane i % 4 of counter i / 4.
  for (std::size_t i = 0; i < into.size();) {
    const std::uint64_t element = first + i;
    const auto bits = Philox(Counter(element / 4), key_);
    std::array<float, 4> lanes;
    if (kind_ == Kind::kUniform) {
      for (int lane = 0; lane < 4; ++lane) lanes[lane] = 2 * Unit(bits[lane]) - 1;
    } else {
      const auto [a, b] = Normals(bits[0], bits[1]);
      const auto [c, d] = Normals(bits[2], bits[3]);
      lanes = {a, b, c, d};
    }
    for (std::uint64_t lane = element % 4; lane < 4 && i < into.size(); ++lane, ++i) {
      into[i] = scale_ * lanes[lane];
    }
  }
}

}  // namespace muster::ps
