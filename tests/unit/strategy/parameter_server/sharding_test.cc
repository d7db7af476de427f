// Variables that a partitioner has cut, as one and as their parts.
#include <filesystem>
#include <limits>
#include <optional>

#include "strategy/parameter_server/sharded_variable.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace muster {
namespace {

using testing::device_of_server;
using testing::Servers;
using testing::throws;

std::vector<std::int64_t> RowsOf(const ShardedVariable& variable) {
  std::vector<std::int64_t> rows;
  for (const auto& shard : variable.shards()) rows.push_back(shard.rows);
  return rows;
}
std::vector<std::string> DevicesOf(const ShardedVariable& variable) {
  std::vector<std::string> devices;
  for (const auto& shard : variable.shards()) devices.push_back(shard.device);
  return devices;
}

TEST_CASE("shards divide the rows evenly and go on where the variable before ended",
          "[strategy][unit][SHV-01][SHV-02][SHV-08]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const ShardedVariable w(Variable::create("w", torch::arange(10, torch::kInt).reshape({5, 2})));
  CHECK(RowsOf(w) == std::vector<std::int64_t>{3, 2});
  CHECK(w.shards()[1].name == "w/part_1");
  CHECK(w.shards()[1].offset == 3);
  CHECK(DevicesOf(w) == std::vector{device_of_server(0), device_of_server(1)});
  CHECK(w.value_of_shard(1).equal(torch::tensor({{6, 7}, {8, 9}}, torch::kInt)));
  CHECK(w.variable().sizes() == std::vector<std::int64_t>{5, 2});
  CHECK(w.variable().dtype() == torch::kInt);
  CHECK(w.name() == "w");
  const ShardedVariable next(Variable::create("next", torch::zeros({6, 1})));
  CHECK(RowsOf(next) == std::vector<std::int64_t>{3, 3});
  CHECK(DevicesOf(next) == std::vector{device_of_server(0), device_of_server(1)});
  const ShardedVariable scalar(Variable::create("scalar", 1.0));
  CHECK(scalar.shards()[0].name == "scalar");
}

TEST_CASE("four shards of ten rows have 3, 3, 2 and 2, and of three rows one each",
          "[strategy][unit][SHV-03][SHV-04][PRT-07]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(4));
  const auto scope = strategy.scope();
  const ShardedVariable ten(Variable::create("ten", torch::zeros({10})));
  CHECK(RowsOf(ten) == std::vector<std::int64_t>{3, 3, 2, 2});
  CHECK(DevicesOf(ten) == std::vector{device_of_server(0), device_of_server(1), device_of_server(0),
                                      device_of_server(1)});
  CHECK(RowsOf(ShardedVariable(Variable::create("three", torch::zeros({3})))) ==
        std::vector<std::int64_t>{1, 1, 1});
  CHECK(ShardedVariable(Variable::create("one", torch::zeros({1}))).shards()[0].name == "one");
}

TEST_CASE("what lies beside another variable is one shard, and the round goes on where it was",
          "[strategy][unit][PSS-04]") {
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const ShardedVariable v(Variable::create("v", torch::zeros({4, 2})));
  std::optional<ShardedVariable> beside;
  {
    const auto colocated = strategy.extended().colocate_vars_with(v.variable());
    beside.emplace(Variable::create("beside", torch::zeros({4, 2})));
  }
  const ShardedVariable next(Variable::create("next", torch::zeros({4, 2})));

  CHECK(DevicesOf(v) == std::vector{device_of_server(0), device_of_server(1)});
  CHECK(beside->variable().device() == v.variable().device());
  CHECK(RowsOf(*beside) == std::vector<std::int64_t>{4});
  CHECK(DevicesOf(*beside) == std::vector{device_of_server(0)});
  CHECK(DevicesOf(next) == std::vector{device_of_server(2), device_of_server(0)});
}

TEST_CASE("a value that is assigned goes to all shards, each its rows",
          "[strategy][unit][SHV-09][SHV-10]") {
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const ShardedVariable v(Variable::create("v", torch::zeros({4, 1})));
  const torch::Tensor values = torch::arange(4.0).reshape({4, 1});
  CHECK(torch::Tensor(v.assign(values)).equal(values));
  CHECK(v.assign_add(values).value().equal(values * 2));
  CHECK(v.assign_sub(values).value().equal(values));
  CHECK(v.value_of_shard(0).equal(values.slice(0, 0, 2)));
}

TEST_CASE("slices and rows are those of one tensor", "[strategy][unit][SHV-17]") {
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const torch::Tensor all = torch::arange(16.0).reshape({8, 2});
  const ShardedVariable v(Variable::create("v", all));
  const auto rows = [&](const std::vector<std::int64_t>& ids) {
    return all.index_select(0, torch::tensor(ids, torch::kLong));
  };
  CHECK(v.slice({}, 2).equal(rows({0, 1})));
  CHECK(v.slice(-8, 2).equal(rows({0, 1})));
  CHECK(v.slice(-10, 2).equal(rows({0, 1})));
  CHECK(v.slice(5).equal(rows({5, 6, 7})));
  CHECK(v.slice(5, -1).equal(rows({5, 6})));
  CHECK(v.slice({}, {}, 3).equal(rows({0, 3, 6})));
  CHECK(v.slice(1, {}, 6).equal(rows({1, 7})));
  CHECK(v.slice({}, {}, -1).equal(all.flip(0)));
  CHECK(v.slice(2, {}, -1).equal(rows({2, 1, 0})));
  CHECK(v.slice(-1, -3, -1).equal(rows({7, 6})));
  CHECK(v.slice(7, 1, -4).equal(rows({7, 3})));
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(v.slice(1, {}, kMost).equal(rows({1})));
  CHECK(v.slice(-kMost, kMost, kMost).equal(rows({0})));
  CHECK(v.slice(kMost, {}, -kMost - 1).equal(rows({7})));
  CHECK(v.slice(0, 0).sizes() == torch::IntArrayRef({0, 2}));
  CHECK(v.slice(5, 3).size(0) == 0);
  CHECK(v[2][1].item<float>() == 5);
  CHECK(v[-2].equal(all[6]));
  CHECK(testing::throws(ErrorCode::kOutOfRange, "row 100", [&] { (void)v[100]; }));
  CHECK(testing::throws(ErrorCode::kOutOfRange, "row -100", [&] { (void)v[-100]; }));
  CHECK(throws(ErrorCode::kInvalidArgument, "the step must not be 0",
               [&] { (void)v.slice(0, 1, 0); }));
}

TEST_CASE("rows are read one request for each shard, and never all",
          "[strategy][unit][SHV-14][SHV-15][SHV-18]") {
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const Variable table = Variable::create("table", torch::arange(1.0, 11.0).reshape({5, 2}));
  using ps::testing::Reads;
  const ps::ProgramClient& client = servers.connection->client();
  std::vector<ps::ReadCounts> earlier = client.reads();
  CHECK(embedding_lookup(table, torch::tensor({0, 3, 4}))
            .equal(torch::tensor({{1.0F, 2.0F}, {7.0F, 8.0F}, {9.0F, 10.0F}})));
  CHECK(ps::testing::ReadsSince(earlier, client) == Reads{{1, 1}, {1, 1}, {1, 1}});
  // Those that have none of the rows are not asked.
  earlier = client.reads();
  CHECK(embedding_lookup(table, torch::tensor({{1, 4}, {4, 0}})).size(0) == 2);
  CHECK(ps::testing::ReadsSince(earlier, client) == Reads{{1, 1}, {0, 0}, {1, 1}});
  CHECK(ShardedVariable(table)
            .sparse_read(torch::tensor({4, 0, 4}))
            .equal(torch::tensor({{9.0F, 10.0F}, {1.0F, 2.0F}, {9.0F, 10.0F}})));
  CHECK(throws(ErrorCode::kInvalidArgument, "one dimension",
               [&] { (void)ShardedVariable(table).sparse_read(torch::tensor({{1}})); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "row 5 is not in [0, 5)",
               [&] { (void)embedding_lookup(table, torch::tensor({5})); }));

  const Variable large = Variable::create("large", torch::zeros({30'000, 16}));
  const auto before = servers.connection->client().bytes();
  CHECK(embedding_lookup(large, torch::arange(30)).size(0) == 30);
  const auto after = servers.connection->client().bytes();
  CHECK(after.tcp + after.local - before.tcp - before.local < 30'000);
}

TEST_CASE("the gradient of a lookup is of the rows that were looked up", "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const Variable table = Variable::create("table", torch::ones({6, 2}));
  const torch::Tensor twice = embedding_lookup(table, torch::tensor({{4, 1}, {4, 4}}));
  CHECK(twice.sizes() == torch::IntArrayRef({2, 2, 2}));
  (twice.sum() + embedding_lookup(table, torch::tensor({1, 0})).sum()).backward();
  const IndexedSlices gradient = embedding_gradient(table);
  CHECK(gradient.indices.equal(torch::tensor({0, 1, 4})));
  CHECK(gradient.values.equal(torch::tensor({{1.0F, 1.0F}, {2.0F, 2.0F}, {3.0F, 3.0F}})));
  CHECK_FALSE(embedding_gradient(table).values.defined());
  table.scatter_sub(gradient);
  CHECK(table.value().sum().item<float>() == 0);
}

TEST_CASE("each of two losses has the gradient of its own lookups, whichever comes first",
          "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const Variable table = Variable::create("table", torch::ones({6, 2}));
  const torch::Tensor first = embedding_lookup(table, torch::tensor({1})).sum();
  const torch::Tensor second = 2 * embedding_lookup(table, torch::tensor({1, 4})).sum();
  const auto ids = [&] { return embedding_gradient(table).indices; };
  second.backward();
  CHECK(ids().equal(torch::tensor({1, 4})));
  first.backward();
  CHECK(ids().equal(torch::tensor({1})));
  CHECK_FALSE(embedding_gradient(table).values.defined());
}

TEST_CASE("what is saved of one split is restored into another",
          "[strategy][unit][SHV-20][SHV-23][SHV-24][CKP-09]") {
  const testing::TempFolder folder;
  const std::string saved = folder / "saved";
  const Servers servers;
  const torch::Tensor values = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F});
  {
    ParameterServerStrategy two(fixed_shards_partitioner(2));
    const auto scope = two.scope();
    const Variable v = Variable::create("v", values);
    const Checkpoint checkpoint({{"v", v}});
    checkpoint.save(saved);
    v.assign(0);
    Checkpoint again({{"v", v}});
    again.restore(saved);
    CHECK(v.value().equal(values));
  }
  {
    ParameterServerStrategy four(fixed_shards_partitioner(4));
    const auto scope = four.scope();
    const Variable v = Variable::create("v", torch::zeros({4}));
    Checkpoint checkpoint({{"v", v}});
    checkpoint.restore(saved);
    CHECK(ShardedVariable(v).size() == 4);
    CHECK(ShardedVariable(v).value_of_shard(2).item<float>() == 3);
  }
  {
    // One that is made after the restore begins with what was saved.
    ParameterServerStrategy three(fixed_shards_partitioner(3));
    const auto scope = three.scope();
    Checkpoint delayed;
    delayed.restore(saved);
    const Variable v = delayed.create("v", torch::zeros({4}));
    CHECK(ShardedVariable(v).size() == 3);
    CHECK(v.value().equal(values));
  }
  Checkpoint plain;
  plain.restore(saved);
  CHECK(plain.create("v", torch::zeros({4})).value().equal(values));
}

TEST_CASE("four shards are restored into one, which changes, and back into four",
          "[strategy][unit][SHV-21]") {
  const testing::TempFolder folder;
  const Servers servers;
  ParameterServerStrategy four(fixed_shards_partitioner(4));
  ParameterServerStrategy one;
  const auto made = [](ParameterServerStrategy& strategy, const char* name,
                       const torch::Tensor& value) {
    const auto scope = strategy.scope();
    return Variable::create(name, value);
  };
  const Variable cut = made(four, "cut", torch::arange(4.0));
  const Variable whole = made(one, "whole", torch::zeros({4}));
  REQUIRE(ShardedVariable(cut).size() == 4);
  REQUIRE(ShardedVariable(whole).size() == 1);
  Checkpoint of_four({{"v", cut}});
  Checkpoint of_one({{"v", whole}});

  of_four.save(folder / "four");
  of_one.restore(folder / "four");
  CHECK(whole.value().equal(torch::arange(4.0)));

  const torch::Tensor others = torch::tensor({5.0F, 10.0F, 15.0F, 20.0F});
  whole.assign(others);
  of_one.save(folder / "one");
  of_four.restore(folder / "one");
  CHECK(cut.value().equal(others));
  for (int shard = 0; shard < 4; ++shard) {
    CHECK(ShardedVariable(cut).value_of_shard(shard).equal(others.slice(0, shard, shard + 1)));
  }
}

TEST_CASE("four shards are restored into two of two rows each", "[strategy][unit][SHV-22]") {
  const testing::TempFolder folder;
  const Servers servers;
  {
    ParameterServerStrategy four(fixed_shards_partitioner(4));
    const auto scope = four.scope();
    const Variable v = Variable::create("v", torch::arange(4.0));
    REQUIRE(ShardedVariable(v).size() == 4);
    Checkpoint({{"v", v}}).save(folder / "saved");
  }
  ParameterServerStrategy two(fixed_shards_partitioner(2));
  const auto scope = two.scope();
  const Variable v = Variable::create("v", torch::zeros({4}));

  Checkpoint({{"v", v}}).restore(folder / "saved");

  REQUIRE(ShardedVariable(v).size() == 2);
  CHECK(ShardedVariable(v).value_of_shard(0).equal(torch::tensor({0.0F, 1.0F})));
  CHECK(ShardedVariable(v).value_of_shard(1).equal(torch::tensor({2.0F, 3.0F})));
}

TEST_CASE("a variable that is made after the restore has its saved value, cut as before or not",
          "[strategy][unit][SHV-23]") {
  const testing::TempFolder folder;
  const Servers servers;
  const torch::Tensor values = torch::tensor({1.0F, 2.0F, 3.0F, 4.0F});
  {
    ParameterServerStrategy two(fixed_shards_partitioner(2));
    const auto scope = two.scope();
    Checkpoint({{"v", Variable::create("v", values)}}).save(folder / "saved");
  }
  for (const int shards : {2, 4}) {
    CAPTURE(shards);
    ParameterServerStrategy strategy(fixed_shards_partitioner(shards));
    const auto scope = strategy.scope();
    Checkpoint delayed;
    delayed.restore(folder / "saved");
    const Variable v = delayed.create("v", torch::zeros({4}));
    CHECK(ShardedVariable(v).size() == shards);
    CHECK(v.value().equal(values));
    CHECK(
        ShardedVariable(v).value_of_shard(1).equal(values.slice(0, 4 / shards, 2 * (4 / shards))));
  }
}

TEST_CASE("a checkpoint of another model is refused with the variable, and changes nothing",
          "[strategy][unit]") {
  const testing::TempFolder folder;
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const Variable a = Variable::create("a", torch::ones({4}));
  const Variable b = Variable::create("b", torch::ones({4, 2}));
  const std::string narrow = folder / "narrow";
  const std::string without = folder / "without";
  Checkpoint({{"a", Variable::create("a2", torch::zeros({4}))},
              {"b", Variable::create("b2", torch::zeros({4, 3}))}})
      .save(narrow);
  Checkpoint({{"a", Variable::create("a3", torch::zeros({4}))}}).save(without);

  Checkpoint checkpoint({{"a", a}, {"b", b}});
  CHECK(throws(ErrorCode::kInvalidArgument, "tensor b of the checkpoint has shape [4, 3], variable",
               [&] { checkpoint.restore(narrow); }));
  CHECK(a.value().equal(torch::ones({4})));
  CHECK(b.value().equal(torch::ones({4, 2})));
  // What a checkpoint lacks stays as it is, and whoever wants to know is told.
  CHECK(throws(ErrorCode::kFailedPrecondition, "b",
               [&] { checkpoint.restore(without).assert_existing_matched(); }));
  CHECK(b.value().equal(torch::ones({4, 2})));
}

}  // namespace
}  // namespace muster
