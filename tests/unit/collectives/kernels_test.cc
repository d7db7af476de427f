#include "collectives/kernels.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

template <class T>
std::vector<T> Reduced(Reduction reduction, DType type, const std::vector<std::vector<T>>& values) {
  std::vector<T> result(values[0].size());
  std::vector<const void*> sources;
  for (const auto& value : values) sources.push_back(value.data());
  void* to = result.data();
  ReduceRange(reduction, type, sources, {&to, 1}, 0, result.size());
  return result;
}

template <class T>
void CheckSums(DType type) {
  for (const std::size_t count : {0, 1, 63, 2048, 5000}) {
    for (const std::size_t members : {1, 2, 3, 4}) {
      std::vector<std::vector<T>> values(members, std::vector<T>(count));
      for (std::size_t m = 0; m < members; ++m) {
        for (std::size_t i = 0; i < count; ++i) values[m][i] = static_cast<T>((i * 3 + m) % 29);
      }
      const auto sums = Reduced(Reduction::kSum, type, values);
      for (std::size_t i = 0; i < count; ++i) {
        double expected = 0;
        for (const auto& value : values) expected += static_cast<double>(value[i]);
        REQUIRE(static_cast<double>(sums[i]) == expected);
      }
    }
  }
}

TEST_CASE("sums of every number type and length", "[collectives][unit]") {
  CheckSums<float>(DType::kFloat32);
  CheckSums<double>(DType::kFloat64);
  CheckSums<std::int64_t>(DType::kInt64);
  CheckSums<std::int32_t>(DType::kInt32);
  CheckSums<std::int16_t>(DType::kInt16);
  CheckSums<std::int8_t>(DType::kInt8);
  CheckSums<std::uint8_t>(DType::kUint8);
}

TEST_CASE("a mean of floating numbers keeps its type, one of integers is float64",
          "[collectives][unit]") {
  CHECK(Reduced<double>(Reduction::kMean, DType::kFloat64, {{1, 2}, {2, 2}, {4, 2}}) ==
        std::vector<double>{7.0 / 3, 2});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> most{kMost, -kMost};
  const std::vector<const void*> both{most.data(), most.data()};
  std::vector<double> middle(2);
  void* const means = middle.data();
  ReduceRange(Reduction::kMean, DType::kInt64, both, {&means, 1}, 0, 2);
  CHECK(middle == std::vector<double>{static_cast<double>(kMost), -static_cast<double>(kMost)});
  CHECK(ResultType(Reduction::kMean, DType::kFloat16) == DType::kFloat16);
  CHECK(ResultType(Reduction::kMean, DType::kInt64) == DType::kFloat64);
  CHECK(ResultType(Reduction::kSum, DType::kInt64) == DType::kInt64);

  // The sum does not fit into 32 bits; the mean does.
  const std::vector<std::int32_t> large(3, std::numeric_limits<std::int32_t>::max());
  const void* sources[] = {large.data(), large.data(), large.data()};
  std::vector<double> mean(3);
  void* to = mean.data();
  ReduceRange(Reduction::kMean, DType::kInt32, sources, {&to, 1}, 0, 3);
  CHECK(mean == std::vector<double>(3, 2147483647.0));
}

TEST_CASE("results that no cache holds are the same, also where nothing is aligned",
          "[collectives][unit]") {
  constexpr std::size_t kCount = 2'000'003;
  std::vector<float> a(kCount), b(kCount), first(kCount + 1, -1), second(kCount + 3, -1);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i % 1000);
    b[i] = static_cast<float>(i % 77);
  }
  const void* const sources[] = {a.data(), b.data()};
  void* const destinations[] = {first.data() + 1, second.data() + 3};
  ReduceRange(Reduction::kSum, DType::kFloat32, sources, destinations, 1, kCount - 1);
  std::size_t wrong = 0;
  for (std::size_t i = 1; i + 1 < kCount; ++i) {
    if (first[i + 1] != a[i] + b[i] || second[i + 3] != a[i] + b[i]) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK((first[1] == -1 && first[kCount] == -1));
  CHECK((second[3] == -1 && second[kCount + 2] == -1));
}

TEST_CASE("integers wrap around", "[collectives][unit]") {
  CHECK(Reduced<std::int32_t>(Reduction::kSum, DType::kInt32,
                              {{std::numeric_limits<std::int32_t>::max()}, {1}}) ==
        std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min()});
}

TEST_CASE("bool and strings have no sum", "[collectives][unit]") {
  CHECK_FALSE(Reducible(DType::kBool));
  CHECK_FALSE(Reducible(DType::kString));
  CHECK(Reducible(DType::kBfloat16));
}

TEST_CASE("only the range that was asked for is written, to every destination, also in place",
          "[collectives][unit]") {
  std::vector<float> a(100, 1), b(100, 2), c(100, -1);
  const void* sources[] = {a.data(), b.data()};
  void* destinations[] = {a.data(), c.data()};

  ReduceRange(Reduction::kSum, DType::kFloat32, sources, destinations, 10, 20);

  for (std::size_t i = 0; i < 100; ++i) {
    const bool inside = i >= 10 && i < 20;
    CHECK(a[i] == (inside ? 3 : 1));
    CHECK(c[i] == (inside ? 3 : -1));
  }
}

// The value of a small floating format, from its definition.
double Value(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1 : 1;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

void CheckNarrow(DType type, int exponent_bits, int fraction_bits) {
  const auto infinite = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  // Each value alone is itself.
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto value = static_cast<std::uint16_t>(bits);
    if ((value & 0x7fff) > infinite) continue;  // NaN
    REQUIRE(Reduced<std::uint16_t>(Reduction::kSum, type, {{value}})[0] == value);
  }
  const auto nan = static_cast<std::uint16_t>(infinite | 1);
  CHECK((Reduced<std::uint16_t>(Reduction::kSum, type, {{nan}})[0] & 0x7fff) > infinite);

  // A third of the sum of any two and zero is the nearest value, ties to even.
  std::uint32_t seed = 7;
  for (int i = 0; i < 20000; ++i) {
    seed = seed * 1664525 + 1013904223;
    const auto a = static_cast<std::uint16_t>((seed >> 16) & 0x7fff);
    const auto b = static_cast<std::uint16_t>((seed >> 3) & 0x7fff);
    if (a >= infinite || b >= infinite) continue;
    const float exact = (static_cast<float>(Value(a, exponent_bits, fraction_bits)) +
                         static_cast<float>(Value(b, exponent_bits, fraction_bits))) /
                        3.0f;
    const auto largest = static_cast<std::uint16_t>(infinite - 1);
    if (exact >= Value(largest, exponent_bits, fraction_bits)) continue;
    const std::uint16_t got = Reduced<std::uint16_t>(Reduction::kMean, type, {{a}, {b}, {0}})[0];
    const double value = Value(got, exponent_bits, fraction_bits);
    const double error = std::abs(value - exact);
    for (const int step : {-1, 1}) {
      if (got == 0 && step < 0) continue;
      const auto next = static_cast<std::uint16_t>(got + step);
      if (next == infinite) continue;
      const double other = std::abs(Value(next, exponent_bits, fraction_bits) - exact);
      REQUIRE(error <= other);
      if (error == other) REQUIRE(got % 2 == 0);
    }
  }
}

TEST_CASE("float16 and bfloat16 are added in float32 and rounded once", "[collectives][unit]") {
  CheckNarrow(DType::kFloat16, 5, 10);
  CheckNarrow(DType::kBfloat16, 8, 7);
}

TEST_CASE("a float16 sum that is too large is infinite", "[collectives][unit]") {
  CHECK(Reduced<std::uint16_t>(Reduction::kSum, DType::kFloat16, {{0x7bff}, {0x7bff}}) ==
        std::vector<std::uint16_t>{0x7c00});
  CHECK(Reduced<std::uint16_t>(Reduction::kSum, DType::kFloat16, {{0xfbff}, {0xfbff}}) ==
        std::vector<std::uint16_t>{0xfc00});
}

}  // namespace
}  // namespace muster::collectives
