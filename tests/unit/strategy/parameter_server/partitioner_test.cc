// How many parts partitioners cut variables into.
#include "strategy/parameter_server/partitioner.h"

#include "tests/unit/strategy/parameter_server/servers.h"

namespace muster {
namespace {

using internal::count_shards;
using testing::throws;

TEST_CASE("partitioners cut along the first axis, never into more parts than rows",
          "[strategy][unit][PRT-01][PRT-02][PRT-03][PRT-04]") {
  const auto parts = [](const VariablePartitioner& partitioner, std::vector<std::int64_t> shape) {
    return partitioner(shape, torch::kFloat);
  };
  using Parts = std::vector<std::int64_t>;
  CHECK(parts(fixed_shards_partitioner(2), {10, 3}) == Parts{2, 1});
  CHECK(parts(fixed_shards_partitioner(4), {3}) == Parts{3});
  CHECK(parts(min_size_partitioner(4, 2), {6, 1}) == Parts{2, 1});
  CHECK(parts(min_size_partitioner(4, 10), {6, 1}) == Parts{6, 1});
  CHECK(parts(max_size_partitioner(4), {6, 1}) == Parts{6, 1});
  CHECK(parts(max_size_partitioner(4, 2), {6, 1}) == Parts{2, 1});
  CHECK(parts(max_size_partitioner(1024), {6, 1}) == Parts{1, 1});
  CHECK(parts(min_size_partitioner(256 << 10, 100), {1024, 1024}) == Parts{16, 1});
  CHECK(parts(min_size_partitioner(256 << 10, 8), {1024, 1024}) == Parts{8, 1});
}

TEST_CASE("partitioners refuse sizes and counts below 1 by their names",
          "[strategy][unit][PRT-05]") {
  const auto refuses = [](const std::string& argument, const std::function<void()>& body) {
    return throws(ErrorCode::kInvalidArgument, argument, body);
  };
  CHECK(refuses("`num_shards` must be positive", [] { (void)fixed_shards_partitioner(0); }));
  CHECK(refuses("`min_shard_bytes`", [] { (void)min_size_partitioner(0); }));
  CHECK(refuses("`max_shards`", [] { (void)min_size_partitioner(1, -1); }));
  CHECK(refuses("`max_shard_bytes`", [] { (void)max_size_partitioner(0); }));
  CHECK(refuses("`max_shards`", [] { (void)max_size_partitioner(1, 0); }));
}

TEST_CASE("what a user's partitioner answers is checked", "[strategy][unit][PRT-06][PRT-08]") {
  const std::vector<std::int64_t> shape{4, 2};
  const auto answers = [&](std::vector<std::int64_t> parts) {
    return count_shards([parts](const auto&, auto) { return parts; }, shape, torch::kFloat);
  };
  CHECK(answers({2, 1}) == 2);
  CHECK(answers({9, 1}) == 4);
  for (const std::vector<std::int64_t>& wrong :
       {std::vector<std::int64_t>{}, {0, 1}, {2, 2}, {2}, {2, 1, 1}}) {
    CHECK(
        throws(ErrorCode::kInvalidArgument, "variable_partitioner", [&] { (void)answers(wrong); }));
  }
  bool called = false;
  const auto none = [&](const auto&, auto) {
    called = true;
    return std::vector<std::int64_t>();
  };
  CHECK(count_shards(none, {}, torch::kFloat) == 1);
  CHECK_FALSE(called);
}

}  // namespace
}  // namespace muster
