// Values on their way.
#include "strategy/cluster/codec.h"

#include <limits>

#include "strategy/cluster/function.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"

namespace codec_test {
struct Batch {
  torch::Tensor images;
  std::vector<std::string> names;
  int epoch = 0;
};
struct Pixel {
  float red, green, blue;
  bool operator==(const Pixel&) const = default;
};
enum class Color { kRed, kBlue };
// It has been written so often.
struct Counted {
  int* written = nullptr;
};
}  // namespace codec_test

template <>
struct muster::Codec<codec_test::Counted> {
  static void write(const codec_test::Counted& value, Bytes&) { ++*value.written; }
  static codec_test::Counted read(ByteReader&) { return {}; }
};

template <>
struct muster::NestFields<codec_test::Batch> {
  static auto tie(auto& value) { return std::tie(value.images, value.names, value.epoch); }
};

namespace codec_test {
namespace {

using namespace muster;
using testing::code_of;

static_assert(Travels<int> && Travels<Color> && Travels<Pixel> && Travels<std::string>);
static_assert(Travels<std::map<std::string, std::vector<std::optional<torch::Tensor>>>>);
static_assert(Travels<std::array<double, 3>>);
// What points into one process's memory.
static_assert(!Travels<int*> && !Travels<const char*> && !Travels<std::string_view>);
static_assert(!Travels<std::span<int>> && !Travels<std::reference_wrapper<int>>);
static_assert(!Travels<std::shared_ptr<int>> && !Travels<std::vector<std::string_view>>);

template <class T>
T there_and_back(const T& value) {
  Bytes bytes;
  Codec<T>::write(value, bytes);
  // Wherever it is cut, it is refused, and nothing else happens.
  for (std::size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 64) {
    ByteReader cut(std::span<const std::byte>(bytes).first(n));
    CHECK(code_of([&] { (void)Codec<T>::read(cut); }) == ErrorCode::kInvalidArgument);
  }
  ByteReader from(bytes);
  T read = Codec<T>::read(from);
  CHECK(from.left() == 0);
  return read;
}

TEST_CASE("numbers, texts and nests of them come back as they went", "[strategy][unit]") {
  CHECK(there_and_back(3.5) == 3.5);
  CHECK(there_and_back(Color::kBlue) == Color::kBlue);
  CHECK(there_and_back(std::string("a\0b", 3)) == std::string("a\0b", 3));
  CHECK(there_and_back(std::vector<Pixel>{{1, 2, 3}, {4, 5, 6}})[1] == Pixel{4, 5, 6});
  CHECK(there_and_back(std::vector<bool>{true, false, true}) ==
        std::vector<bool>{true, false, true});
  CHECK(there_and_back(std::optional<std::string>()) == std::nullopt);
  using Nest = std::map<std::string, std::vector<std::pair<int, std::optional<std::string>>>>;
  const Nest nest{{"", {}}, {"a", {{1, "x"}, {2, std::nullopt}}}};
  CHECK((there_and_back(nest) == nest));
  const std::tuple<int, std::vector<std::vector<float>>, std::string> tuple{
      7, {{1}, {}, {2, 3}}, "t"};
  CHECK(there_and_back(tuple) == tuple);
}

TEST_CASE("tensors of every type of number keep type, shape and values", "[strategy][unit]") {
  for (const auto type :
       {torch::kFloat32, torch::kFloat64, torch::kInt32, torch::kInt64, torch::kUInt8, torch::kInt8,
        torch::kInt16, torch::kBool, torch::kFloat16, torch::kBFloat16, torch::kComplexFloat}) {
    const torch::Tensor tensor = torch::arange(24).reshape({2, 3, 4}).to(type);
    const torch::Tensor read = there_and_back(tensor);
    INFO(torch::toString(type));
    CHECK(read.scalar_type() == type);
    CHECK(torch::equal(read, tensor));
  }
  CHECK(there_and_back(torch::tensor(5.0)).dim() == 0);
  CHECK(there_and_back(torch::zeros({0, 7})).sizes() == torch::IntArrayRef({0, 7}));
  CHECK(!there_and_back(torch::Tensor()).defined());
}

TEST_CASE("a view travels as what it shows, without its gradient", "[strategy][unit]") {
  const torch::Tensor whole = torch::arange(12.0).reshape({3, 4}).requires_grad_();
  const torch::Tensor column = whole.t().slice(0, 1, 3);
  const torch::Tensor read = there_and_back(column);
  CHECK(torch::equal(read, column));
  CHECK(read.is_contiguous());
  CHECK(!read.requires_grad());
  const torch::Tensor z = torch::complex(torch::arange(3.0), torch::arange(3.0) + 1);
  CHECK(torch::equal(there_and_back(torch::conj(z)), torch::conj(z)));
  CHECK(torch::equal(there_and_back(torch::imag(torch::conj(z))), -torch::arange(3.0) - 1));
}

TEST_CASE("rows, replicas and aggregates travel, sparse tensors say how they would",
          "[strategy][unit]") {
  const IndexedSlices slices{torch::ones({2, 3}), torch::tensor({4, 4}),
                             std::vector<std::int64_t>{9, 3}};
  const IndexedSlices read = there_and_back(slices);
  CHECK(torch::equal(read.indices, slices.indices));
  CHECK(read.dense_shape == slices.dense_shape);
  CHECK(there_and_back(PerReplica<int>({1, 2}))[1] == 2);
  const Batch batch = there_and_back(Batch{torch::ones({2}), {"a", "b"}, 3});
  CHECK((batch.names == std::vector<std::string>{"a", "b"} && batch.epoch == 3));
  Bytes bytes;
  CHECK(testing::throws(ErrorCode::kInvalidArgument, "IndexedSlices",
                        [&] { Codec<torch::Tensor>::write(to_sparse(slices), bytes); }));
}

TEST_CASE("a worker's value that is known to be too long is not written at all",
          "[strategy][unit]") {
  constexpr auto kLongest = static_cast<std::int64_t>(internal::kLongestValue);
  int written = 0;
  using Value = std::tuple<Counted, std::vector<torch::Tensor>, std::map<int, std::vector<float>>>;
  const Value small({&written}, {torch::ones({2, 3})}, {{1, {1, 2}}});
  const Value large({&written}, {torch::ones({2}), torch::empty({kLongest}, torch::kByte)}, {});
  Bytes bytes;

  internal::write_built(large, bytes);

  REQUIRE(bytes.size() == 1);
  CHECK(bytes[0] == internal::kTooLong);
  CHECK(written == 0);
  // Those of others only their Codec knows.
  CHECK(internal::least_bytes(small) == 32);
  CHECK(internal::least_bytes(std::string("words")) == 0);
  bytes.clear();
  internal::write_built(small, bytes);
  CHECK(written == 1);
  CHECK(bytes.size() > 32);
  CHECK(bytes[0] == internal::kValueFollows);
}

TEST_CASE("sizes that no memory has are refused before memory is asked for", "[strategy][unit]") {
  const auto refused = [](std::vector<std::int64_t> sizes) {
    Bytes bytes;
    internal::append_value(bytes, static_cast<std::uint8_t>(sizes.size()));
    internal::append_value(bytes, static_cast<std::int8_t>(torch::kFloat64));
    for (const std::int64_t size : sizes) internal::append_value(bytes, size);
    ByteReader from(bytes);
    return code_of([&] { (void)Codec<torch::Tensor>::read(from); }) == ErrorCode::kInvalidArgument;
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(refused({kMost}));
  CHECK(refused({-1}));
  CHECK(refused({kMost / 8, kMost / 8}));
  CHECK(refused({1LL << 32, 1LL << 32, 4}));
  Bytes bytes;
  internal::append_value(bytes, std::uint64_t{1} << 60);
  ByteReader list(bytes);
  CHECK(code_of([&] { (void)Codec<std::vector<double>>::read(list); }) ==
        ErrorCode::kInvalidArgument);
  ByteReader text(bytes);
  CHECK(code_of([&] { (void)Codec<std::string>::read(text); }) == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace codec_test
