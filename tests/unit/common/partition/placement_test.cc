#include "common/partition/placement.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/partition/div_layout.h"
#include "tests/support/catch.h"

namespace muster::partition {
namespace {

using Shape = std::vector<std::int64_t>;

TensorSize Float(const Shape& shape) { return {shape, DType::kFloat32}; }

v1::VariableLayout Variable(const std::string& name, const Shape& shape, bool embedding = false) {
  v1::VariableLayout variable;
  variable.set_name(name);
  variable.mutable_shape()->Assign(shape.begin(), shape.end());
  variable.set_embedding(embedding);
  return variable;
}

// "0:0+3 1:3+2": server, first row, rows of each shard.
std::string Shards(const v1::VariableLayout& variable) {
  std::string text;
  for (const auto& shard : variable.shards()) {
    if (!text.empty()) text += ' ';
    text += fmt::format("{}:{}+{}", shard.ps_index(), shard.row_offset(), shard.rows());
  }
  return text;
}

TEST_CASE("a fixed partitioner gives its number, at most the rows",
          "[partition][unit][spec][PRT-01]") {
  CHECK(FixedShards(Float({10, 3}), 2).value() == 2);
  CHECK(FixedShards(Float({3}), 4).value() == 3);
}

TEST_CASE("a min size partitioner rounds up and stops at its maximum",
          "[partition][unit][spec][PRT-02]") {
  CHECK(MinSizeShards(Float({6, 1}), 4, 2).value() == 2);
  CHECK(MinSizeShards(Float({6, 1}), 4, 10).value() == 6);
  CHECK(MinSizeShards(Float({10, 3}), 50, 10).value() == 3);
}

TEST_CASE("a max size partitioner fits whole rows into its size",
          "[partition][unit][spec][PRT-03]") {
  CHECK(MaxSizeShards(Float({6, 1}), 4, std::nullopt).value() == 6);
  CHECK(MaxSizeShards(Float({6, 1}), 4, 2).value() == 2);
  CHECK(MaxSizeShards(Float({6, 1}), 1024, std::nullopt).value() == 1);
  CHECK(MaxSizeShards(Float({10, 3}), 50, std::nullopt).value() == 3);
  CHECK(MaxSizeShards(Float({5, 1000}), 100, std::nullopt).value() == 5);
}

TEST_CASE("a max size without bounds leaves a variable whole, of bytes as well",
          "[partition][unit][spec][PRT-03]") {
  const Shape shape{10};
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(MaxSizeShards({shape, DType::kUint8}, most, std::nullopt).value() == 1);
  CHECK(MaxSizeShards({shape, DType::kUint8}, most, 4).value() == 1);
  CHECK(MaxSizeShards(Float(shape), most, std::nullopt).value() == 1);
}

TEST_CASE("4 MiB by 256 KiB are 16 shards, or as many as allowed",
          "[partition][unit][spec][PRT-04]") {
  CHECK(MinSizeShards(Float({1024, 1024}), 256 << 10, 100).value() == 16);
  CHECK(MinSizeShards(Float({1024, 1024}), 256 << 10, 8).value() == 8);
}

TEST_CASE("sizes and counts below 1 are refused by name", "[partition][unit][spec][PRT-05]") {
  const auto refused = [](const Result<std::int64_t>& result, const std::string& argument) {
    CHECK(result.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(Message(result.status()), Catch::Matchers::Contains(argument));
  };
  refused(FixedShards(Float({4}), 0), "num_shards");
  refused(MinSizeShards(Float({4}), 0, 1), "min_shard_bytes");
  refused(MinSizeShards(Float({4}), 4, -1), "max_shards");
  refused(MaxSizeShards(Float({4}), -4, std::nullopt), "max_shard_bytes");
  refused(MaxSizeShards(Float({4}), 4, 0), "max_shards");
}

TEST_CASE("a variable of one shard is whole", "[partition][unit][spec][PRT-07]") {
  v1::PartitionerSpec fixed;
  fixed.set_kind(v1::PARTITIONER_KIND_FIXED);
  fixed.set_num_shards(1);

  const auto placed = PlaceVariables({Variable("w", {7, 2})}, fixed, 2).value();

  CHECK(Shards(placed[0]) == "0:0+7");
}

TEST_CASE("a scalar is never split", "[partition][unit][spec][PRT-08]") {
  v1::PartitionerSpec malformed;
  malformed.set_kind(v1::PARTITIONER_KIND_FIXED);  // would refuse, num_shards being 0

  const auto placed = PlaceVariables({Variable("s", {})}, malformed, 2).value();

  CHECK(Shards(placed[0]) == "0:0+1");
}

TEST_CASE("a string counts as 16 bytes", "[partition][unit][spec][PRT-09]") {
  const Shape shape{4};
  CHECK(MinSizeShards({shape, DType::kString}, 32, 10).value() == 2);
}

TEST_CASE("shards go round the servers, on and on",
          "[partition][unit][spec][SHV-01][SHV-02][SHV-03]") {
  v1::PartitionerSpec fixed;
  fixed.set_kind(v1::PARTITIONER_KIND_FIXED);
  fixed.set_num_shards(2);
  const auto two =
      PlaceVariables({Variable("b", {6, 1}), Variable("a", {5, 2}), Variable("c", {3})}, fixed, 2)
          .value();
  CHECK(two[0].name() == "a");
  CHECK(two[0].id() == 0);
  CHECK(Shards(two[0]) == "0:0+3 1:3+2");
  CHECK(Shards(two[1]) == "0:0+3 1:3+3");
  CHECK(two[2].id() == 2);
  CHECK(two[2].dtype() == v1::DTYPE_FLOAT32);

  fixed.set_num_shards(4);
  const auto four = PlaceVariables({Variable("a", {10}), Variable("b", {3})}, fixed, 2).value();
  CHECK(Shards(four[0]) == "0:0+3 1:3+3 0:6+2 1:8+2");
  CHECK(Shards(four[1]) == "0:0+1 1:1+1 0:2+1");

  fixed.set_num_shards(3);
  const auto odd = PlaceVariables({Variable("a", {9}), Variable("b", {9})}, fixed, 2).value();
  CHECK(Shards(odd[1]) == "1:0+3 0:3+3 1:6+3");
}

TEST_CASE("the example's parameters spread over both servers by default", "[partition][unit]") {
  const auto placed = PlaceVariables({Variable("w1", {784, 256}), Variable("b1", {256}),
                                      Variable("w2", {256, 10}), Variable("b2", {10})},
                                     v1::PartitionerSpec(), 2)
                          .value();

  std::vector<std::int64_t> bytes(2);
  for (const auto& variable : placed) {
    std::int64_t row = 4;
    for (int axis = 1; axis < variable.shape_size(); ++axis) row *= variable.shape(axis);
    for (const auto& shard : variable.shards()) bytes[shard.ps_index()] += shard.rows() * row;
  }
  CHECK(bytes[0] > 400'000);
  CHECK(bytes[1] > 400'000);
}

TEST_CASE("by bytes the largest shards are placed first, each where the fewest bytes are",
          "[partition][unit]") {
  v1::PartitionerSpec whole;
  whole.set_kind(v1::PARTITIONER_KIND_NONE);
  const auto placed = PlaceVariables({Variable("a", {10}), Variable("b", {100}),
                                      Variable("c", {60}), Variable("d", {50, 1}, true)},
                                     whole, 2, Placer::Policy::kByBytes);
  REQUIRE(placed.ok());
  std::vector<std::uint32_t> servers, ids;
  for (const v1::VariableLayout& variable : *placed) {
    servers.push_back(variable.shards(0).ps_index());
    ids.push_back(variable.id());
  }
  CHECK((ids == std::vector<std::uint32_t>{0, 1, 2, 3}));  // by name, as ever
  // b, c, d, a: 100 rows on the one, 110 on the other; then 10 more.
  CHECK((servers == std::vector<std::uint32_t>{0, 0, 1, 1}));
}

TEST_CASE("the div layout gives the first shards the spare rows", "[partition][unit]") {
  const DivLayout layout(13, 5);
  std::vector<std::int64_t> offsets;
  for (std::int64_t i = 0; i <= layout.shards(); ++i) offsets.push_back(layout.Offset(i));
  CHECK(offsets == Shape{0, 3, 6, 9, 11, 13});
  CHECK(DivLayout(3, 4).shards() == 3);

  const DivLayout three(32, 3);
  CHECK(three.Locate(10) == DivLayout::Place{0, 10});
  CHECK(three.Locate(11) == DivLayout::Place{1, 0});
  CHECK(three.Locate(30) == DivLayout::Place{2, 8});
  const DivLayout five(5, 3);
  CHECK(five.Locate(3) == DivLayout::Place{1, 1});
  CHECK(five.Locate(4) == DivLayout::Place{2, 0});
}

TEST_CASE("every row has exactly one place in a div layout", "[partition][unit]") {
  for (std::int64_t rows = 1; rows <= 40; ++rows) {
    for (std::int64_t shards = 1; shards <= rows; ++shards) {
      const DivLayout layout(rows, shards);
      std::int64_t row = 0;
      for (std::int64_t i = 0; i < layout.shards(); ++i) {
        for (std::int64_t local = 0; local < layout.Rows(i); ++local, ++row) {
          REQUIRE(layout.Locate(row) == DivLayout::Place{i, local});
        }
      }
      REQUIRE(row == rows);
    }
  }
}

TEST_CASE("impossible variables are refused by name", "[partition][unit]") {
  const v1::PartitionerSpec none;
  const auto message = [&](std::vector<v1::VariableLayout> variables) {
    const auto placed = PlaceVariables(std::move(variables), none, 2);
    CHECK(placed.status().code() == StatusCode::kInvalidArgument);
    return Message(placed.status());
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message({Variable("w", {3, 0})}), Contains("variable w: dimension 1 is 0"));
  CHECK_THAT(message({Variable("w", {1}), Variable("w", {2})}), Contains("w is declared twice"));
  CHECK_THAT(message({Variable("", {1})}), Contains("no name"));
  CHECK_THAT(message({Variable("e", {4}, true)}),
             Contains("embedding e has 1 dimension; it must have 2"));
  const std::int64_t huge = std::int64_t{1} << 40;
  CHECK_THAT(message({Variable("w", {huge, huge})}), Contains("more than 2^62"));
  CHECK(PlaceVariables({}, none, 0).status().code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::partition
