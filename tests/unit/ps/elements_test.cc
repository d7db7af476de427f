#include "ps/elements.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

template <class T>
std::vector<T> Applied(ElementOp op, DType dtype, std::vector<T> values,
                       const std::vector<T>& operands) {
  ApplyElements(op, dtype, std::as_writable_bytes(std::span(values)).data(),
                std::as_bytes(std::span(operands)));
  return values;
}

TEST_CASE("all seven operations change each element", "[ps][unit]") {
  const std::vector<float> v = {8, -6, 1};
  const std::vector<float> o = {2, 4, -1};
  const auto run = [&](ElementOp op) { return Applied(op, DType::kFloat32, v, o); };

  CHECK(run(ElementOp::kAssign) == o);
  CHECK(run(ElementOp::kAdd) == std::vector<float>{10, -2, 0});
  CHECK(run(ElementOp::kSub) == std::vector<float>{6, -10, 2});
  CHECK(run(ElementOp::kMul) == std::vector<float>{16, -24, -1});
  CHECK(run(ElementOp::kDiv) == std::vector<float>{4, -1.5, -1});
  CHECK(run(ElementOp::kMin) == std::vector<float>{2, -6, -1});
  CHECK(run(ElementOp::kMax) == std::vector<float>{8, 4, 1});
}

TEST_CASE("integers wrap and truncate, and nothing that a peer sends traps", "[ps][unit]") {
  constexpr auto kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  using I32 = std::vector<std::int32_t>;
  using I64 = std::vector<std::int64_t>;
  using U8 = std::vector<std::uint8_t>;

  CHECK(Applied(ElementOp::kDiv, DType::kInt32, I32{7, -7, kLeast, 5}, I32{2, 2, -1, 0}) ==
        I32{3, -3, kLeast, 0});
  CHECK(Applied(ElementOp::kAdd, DType::kInt64, I64{kMost}, I64{1}) ==
        I64{std::numeric_limits<std::int64_t>::min()});
  CHECK(Applied(ElementOp::kMul, DType::kUint8, U8{200, 3}, U8{2, 4}) == U8{144, 12});
  CHECK(Applied(ElementOp::kSub, DType::kUint8, U8{1}, U8{2}) == U8{255});
}

TEST_CASE("min and max pass NaN on from either side", "[ps][unit]") {
  const double nan = std::nan("");
  for (const ElementOp op : {ElementOp::kMin, ElementOp::kMax}) {
    const auto out = Applied(op, DType::kFloat64, std::vector<double>{nan, 1}, {1, nan});
    CHECK(std::isnan(out[0]));
    CHECK(std::isnan(out[1]));
  }
}

TEST_CASE("a row that a scatter names twice is changed twice, in order", "[ps][unit]") {
  std::vector<std::int32_t> values = {1, 2, 3, 4};
  const std::vector<std::int64_t> ids = {1, 1};
  const std::vector<std::int32_t> rows = {10, 20, 5, 6};

  ScatterElements(ElementOp::kAdd, DType::kInt32, std::as_writable_bytes(std::span(values)).data(),
                  8, ids, std::as_bytes(std::span(rows)));
  CHECK(values == std::vector<std::int32_t>{1, 2, 18, 30});

  ScatterElements(ElementOp::kAssign, DType::kInt32,
                  std::as_writable_bytes(std::span(values)).data(), 8, ids,
                  std::as_bytes(std::span(rows)));
  CHECK(values == std::vector<std::int32_t>{1, 2, 5, 6});
}

TEST_CASE("what is stored only is assigned only, and integers are not divided by zero",
          "[ps][unit]") {
  const std::vector<std::byte> bytes(8);
  for (const DType dtype : {DType::kBool, DType::kFloat16, DType::kBfloat16}) {
    CHECK(CheckOperands(ElementOp::kAssign, dtype, bytes, "v").ok());
    CHECK(CheckOperands(ElementOp::kAdd, dtype, bytes, "v").code() == StatusCode::kInvalidArgument);
  }
  const Status zero = CheckOperands(ElementOp::kDiv, DType::kInt64, bytes, "variable v");
  CHECK(Message(zero) == "variable v: division of int64 by zero");
  CHECK(CheckOperands(ElementOp::kDiv, DType::kFloat32, bytes, "v").ok());
}

}  // namespace
}  // namespace muster::ps
