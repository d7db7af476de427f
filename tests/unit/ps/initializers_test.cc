#include "ps/initializers.h"

#include <algorithm>
#include <cmath>

#include "tests/support/catch.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

std::vector<float> Values(const v1::VariableLayout& variable, std::size_t n,
                          std::uint64_t seed = 1) {
  std::vector<float> values(n);
  InitialValues::Create(variable, seed)->Fill(0, values);
  return values;
}

struct Moments {
  double mean = 0;
  double deviation = 0;
  double least = 0;
  double most = 0;
};

Moments Measure(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v / static_cast<double>(values.size());
  for (const float v : values) {
    m.deviation += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  }
  m.deviation = std::sqrt(m.deviation);
  m.least = *std::min_element(values.begin(), values.end());
  m.most = *std::max_element(values.begin(), values.end());
  return m;
}

TEST_CASE("the generator is Philox4x32-10", "[ps][unit]") {
  // Known answers of the Random123 library (kat_vectors).
  using Four = std::array<std::uint32_t, 4>;
  CHECK(Philox({0, 0, 0, 0}, {0, 0}) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("an element depends on seed, name and place alone", "[ps][unit]") {
  for (const auto kind : {v1::INITIALIZER_KIND_UNIFORM, v1::INITIALIZER_KIND_NORMAL,
                          v1::INITIALIZER_KIND_TRUNCATED_NORMAL, v1::INITIALIZER_KIND_CONSTANT}) {
    const auto variable = Variable("w", {10, 10}, kind, 0.5);
    const auto whole = Values(variable, 100);
    const auto initial = InitialValues::Create(variable, 1).value();
    for (std::size_t first = 0; first < 100; ++first) {
      std::vector<float> part(std::min<std::size_t>(7, 100 - first));
      initial.Fill(first, part);
      REQUIRE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(first)));
    }
    if (kind == v1::INITIALIZER_KIND_CONSTANT) continue;
    CHECK(Values(variable, 100, 2) != whole);
    CHECK(Values(Variable("v", {10, 10}, kind, 0.5), 100) != whole);
  }
}

TEST_CASE("each kind has its distribution", "[ps][unit]") {
  constexpr std::size_t kN = 200'000;
  const auto measure = [](v1::InitializerKind kind, double scale) {
    return Measure(Values(Variable("w", {40, 5, 60}, kind, scale), kN));
  };
  const auto uniform = measure(v1::INITIALIZER_KIND_UNIFORM, 0.3);
  CHECK(uniform.least >= -0.3F);
  CHECK(uniform.most < 0.3F);
  CHECK(uniform.most > 0.2999);
  CHECK(std::fabs(uniform.mean) < 0.002);
  CHECK(uniform.deviation == Approx(0.3 / std::sqrt(3)).epsilon(0.01));
  CHECK(measure(v1::INITIALIZER_KIND_UNIFORM, 0).most == Approx(0.05).epsilon(0.01));

  const auto normal = measure(v1::INITIALIZER_KIND_NORMAL, 2);
  CHECK(std::fabs(normal.mean) < 0.02);
  CHECK(normal.deviation == Approx(2).epsilon(0.01));
  CHECK(normal.most > 2 * 3.5);

  const auto truncated = measure(v1::INITIALIZER_KIND_TRUNCATED_NORMAL, 2);
  CHECK(truncated.most <= 4);
  CHECK(truncated.least >= -4);
  CHECK(truncated.deviation == Approx(2 * 0.8796).epsilon(0.01));

  // fan_in = 40 * 5, fan_out = 60.
  CHECK(measure(v1::INITIALIZER_KIND_GLOROT_UNIFORM, 0).most ==
        Approx(std::sqrt(6.0 / 260)).epsilon(0.001));
  CHECK(measure(v1::INITIALIZER_KIND_GLOROT_NORMAL, 0).deviation ==
        Approx(std::sqrt(2.0 / 260)).epsilon(0.01));
  CHECK(measure(v1::INITIALIZER_KIND_HE_UNIFORM, 0).most ==
        Approx(std::sqrt(6.0 / 200)).epsilon(0.001));
  CHECK(measure(v1::INITIALIZER_KIND_HE_NORMAL, 0).deviation ==
        Approx(std::sqrt(2.0 / 200)).epsilon(0.01));
  CHECK(Values(Variable("w", {2}, v1::INITIALIZER_KIND_ONES), 2) == std::vector<float>{1, 1});
  CHECK(Values(Variable("w", {2}, v1::INITIALIZER_KIND_CONSTANT, -3), 2) ==
        std::vector<float>{-3, -3});
}

TEST_CASE("without an initializer the kind follows from the shape", "[ps][unit]") {
  const auto none = v1::INITIALIZER_KIND_UNSPECIFIED;
  CHECK(Measure(Values(Variable("w", {30, 30}, none), 900)).most ==
        Approx(std::sqrt(6.0 / 60)).epsilon(0.01));
  CHECK(Values(Variable("b", {3}, none), 3) == std::vector<float>(3));
  auto table = Variable("e", {30, 30}, none);
  table.set_embedding(true);
  CHECK(Measure(Values(table, 900)).most == Approx(0.05).epsilon(0.01));
}

TEST_CASE("bad initializers are refused by variable", "[ps][unit]") {
  CHECK_FALSE(InitialValues::Create(Variable("w", {1}, v1::INITIALIZER_KIND_NORMAL, -1), 0).ok());
  for (const double scale : {double{NAN}, double{INFINITY}, 1e39}) {
    CHECK_FALSE(
        InitialValues::Create(Variable("w", {1}, v1::INITIALIZER_KIND_NORMAL, scale), 0).ok());
  }
  const Status large =
      InitialValues::Create(Variable("w", {1}, v1::INITIALIZER_KIND_CONSTANT, -1e39), 0).status();
  CHECK(large.code() == StatusCode::kInvalidArgument);
  CHECK(Message(large).find("variable w: initializer.scale is -1e+39") != std::string::npos);
  CHECK(Values(Variable("w", {1}, v1::INITIALIZER_KIND_CONSTANT, -3e38), 1).at(0) == -3e38F);
}

}  // namespace
}  // namespace muster::ps
