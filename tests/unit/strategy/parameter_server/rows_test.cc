// What a program finds of ParameterServerStrategy beside variables: creators, replicas, datasets,
// arguments, values of each worker.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/variables/extended.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace rows_of_servers {

// State of the test that runs; closures run on threads of its process.
muster::ParameterServerStrategy* shared_strategy = nullptr;
muster::Variable aggregated;
muster::Variable counter;

void add_to(const muster::Variable& variable, float number) {
  variable.assign_add(number, /*read_value=*/false);
}
// Both handles are of one variable.
std::vector<float> two_handles(const muster::Variable& given) {
  counter.assign_add(1, false);
  const float first = given.item<float>();
  given.assign_add(1, false);
  return {first, counter.item<float>()};
}
double gradient_of(const muster::Variable& given) {
  (given.value() * given.value()).sum().backward();
  return given.value().grad().sum().item<double>();
}
void assign_in_replicas() {
  shared_strategy->run([] {
    const int id = muster::get_replica_context()->replica_id_in_sync_group();
    torch::Tensor value = torch::arange(8.0);
    value[0] = id + 10;
    aggregated.assign(value, false);
  });
}
// How many closures of each worker run now, and the most that did.
std::array<std::atomic<int>, 2> running{};
std::atomic<int> most_at_once{0};
// Closures that worker 1 has ended. The first one of worker 0 lasts until there are some, and what
// else worker 0 has by then is to wait for it.
std::atomic<int> ended_there{0};
std::atomic<bool> has_lasted{false};
void runs_alone() {
  const int worker = muster::worker_index();
  std::atomic<int>& mine = running.at(static_cast<std::size_t>(worker));
  const int now = ++mine;
  int most = most_at_once;
  while (most < now && !most_at_once.compare_exchange_weak(most, now)) {
  }
  if (worker == 0 && !has_lasted.exchange(true)) {
    while (ended_there < 20 && !muster::cancellation().stop_requested()) std::this_thread::yield();
  }
  --mine;
  if (worker == 1) ++ended_there;
}
void count_here(muster::WorkerVariable& seen) { seen.assign_add(1); }
void misfits(muster::WorkerVariable& seen) { seen.assign(torch::zeros({2})); }
using Table = muster::LookupTable<std::int64_t, std::int64_t>;
Table keep(const Table& table) { return table; }
torch::Tensor look_up_in(const Table& table, const torch::Tensor& keys) {
  return table.lookup(keys);
}
std::int64_t size_of(const Table& table) { return static_cast<std::int64_t>(table.size()); }
muster::DistributedDataset<torch::Tensor> distributed() {
  return muster::distribute_datasets_from_function(
      *shared_strategy, [](const muster::InputContext& context) {
        return muster::dataset::range(0, 1)
            .map([context](const torch::Tensor&) {
              return torch::tensor({context.num_input_pipelines(), context.input_pipeline_id(),
                                    context.num_replicas_in_sync()});
            })
            .batch(1);
      });
}
torch::Tensor first_of(const muster::DistributedDataset<torch::Tensor>& data) {
  return data.iterator().get_next()[0];
}

}  // namespace rows_of_servers

MUSTER_FUNCTION(rows_of_servers::add_to);
MUSTER_FUNCTION(rows_of_servers::two_handles);
MUSTER_FUNCTION(rows_of_servers::gradient_of);
MUSTER_FUNCTION(rows_of_servers::assign_in_replicas);
MUSTER_FUNCTION(rows_of_servers::runs_alone);
MUSTER_FUNCTION(rows_of_servers::count_here);
MUSTER_FUNCTION(rows_of_servers::misfits);
MUSTER_FUNCTION(rows_of_servers::keep);
MUSTER_FUNCTION(rows_of_servers::look_up_in);
MUSTER_FUNCTION(rows_of_servers::size_of);
MUSTER_FUNCTION(rows_of_servers::distributed);
MUSTER_FUNCTION(rows_of_servers::first_of);

namespace muster {
namespace {

using namespace rows_of_servers;
using testing::device_of_server;
using testing::Servers;
using testing::throws;

class RowsFixture {
 public:
  explicit RowsFixture(int workers = 2, const std::vector<std::string>& devices = {})
      : servers(2, workers), strategy(nullptr, devices) {
    shared_strategy = &strategy;
  }
  ~RowsFixture() {
    aggregated = Variable();
    counter = Variable();
  }
  Servers servers;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator{servers.link};
};

TEST_CASE_METHOD(RowsFixture, "a creator inside the scope changes no placement, one around it may",
                 "[strategy][unit][PSS-03]") {
  {
    const auto scope = strategy.scope();
    const VariableCreatorScope creator([](const auto& next, VariableSpec spec) {
      spec.name = "renamed " + spec.name;
      const DeviceScope elsewhere("CPU:1");
      return next(std::move(spec));
    });
    const Variable first = Variable::create("first", 1.0);
    const Variable second = Variable::create("second", 2.0);
    CHECK(second.name() == "renamed second");
    CHECK(first.device() == device_of_server(0));
    CHECK(second.device() == device_of_server(1));
  }
  const Variable own = Variable::create("own", 3.0);
  const VariableCreatorScope creator([&](const auto&, const VariableSpec&) { return own; });
  const auto scope = strategy.scope();
  CHECK(Variable::create("other", 1.0).is_same(own));
}

TEST_CASE_METHOD(RowsFixture, "run and reduce outside closures compute here",
                 "[strategy][unit][PSS-07]") {
  const PerReplica<double> results = strategy.run([] { return 3.0; });
  CHECK(strategy.reduce(ReduceOp::kSum, results).item<double>() == 3);
}

TEST_CASE_METHOD(RowsFixture, "distributed datasets are iterated on workers alone",
                 "[strategy][unit][PSS-08][PSS-16]") {
  const auto data = experimental_distribute_dataset(strategy, dataset::range(0, 4).batch(2));
  CHECK(throws(ErrorCode::kInvalidArgument, "ClusterCoordinator::create_per_worker_dataset",
               [&] { (void)data.iterator(); }));
  // Workers are not told apart: one pipeline each, the first, and this worker's replicas.
  const auto here = coordinator.create_per_worker_resource<distributed>();
  for (int i = 0; i < 2; ++i) {
    CHECK(coordinator.schedule<first_of>(here).fetch().flatten().equal(torch::tensor({1, 0, 1})));
  }
}

TEST_CASE("a dataset's function on a worker is told how many replicas this worker has",
          "[strategy][unit][PSS-16]") {
  RowsFixture fixture(2, {"CPU:0", "CPU:1", "CPU:2"});
  const auto here = fixture.coordinator.create_per_worker_resource<distributed>();
  for (int i = 0; i < 2; ++i) {
    const torch::Tensor told = fixture.coordinator.schedule<first_of>(here).fetch();
    CHECK(told.flatten().equal(torch::tensor({1, 0, 3})));
  }
}

TEST_CASE("replicas are the devices that are named, without a GPU else one",
          "[strategy][unit][PSS-09]") {
  const Servers servers;
  CHECK(ParameterServerStrategy(nullptr, {"CPU:0", "CPU:1", "CPU:2"}).num_replicas_in_sync() == 3);
  CHECK(throws(ErrorCode::kInvalidArgument, "named twice",
               [] { ParameterServerStrategy(nullptr, {"CPU:0", "CPU:0"}); }));
  const std::size_t gpus = list_logical_devices("GPU").size();
  CHECK(ParameterServerStrategy().num_replicas_in_sync() ==
        static_cast<int>(std::max<std::size_t>(1, gpus)));
}

TEST_CASE("what replicas of a worker assign is aggregated into one value on the server",
          "[strategy][unit][PSS-10]") {
  RowsFixture fixture(1, {"CPU:0", "CPU:1", "CPU:2"});
  {
    const auto scope = fixture.strategy.scope();
    aggregated = Variable::create("aggregated", torch::zeros({8}),
                                  {.aggregation = VariableAggregation::kSum});
  }
  fixture.coordinator.schedule<assign_in_replicas>();
  fixture.coordinator.join();
  torch::Tensor expected = torch::arange(8.0) * 3;
  expected[0] = 10 + 11 + 12;
  CHECK(aggregated.value().equal(expected));
}

TEST_CASE_METHOD(RowsFixture, "a worker runs one closure at a time", "[strategy][unit][PSS-13]") {
  most_at_once = 0;
  ended_there = 0;
  has_lasted = false;
  for (int i = 0; i < 200; ++i) coordinator.schedule<runs_alone>();
  coordinator.join();
  CHECK(most_at_once == 1);
}

TEST_CASE_METHOD(RowsFixture, "a lookup table is each worker's own, and looking up asks nobody",
                 "[strategy][unit][PSS-14]") {
  const auto table =
      coordinator.create_per_worker_resource<keep>(Table({{0, 0}, {1, 1}, {2, 2}}, -2));
  table.wait();
  // Whoever asked the servers now would be told that they have lost everything.
  servers.cluster.Restart(0);
  servers.cluster.Restart(1);
  const auto found = coordinator.schedule<look_up_in>(table, torch::tensor({0, 1, 3}));
  CHECK(found.fetch().equal(torch::tensor({0, 1, -2})));
  CHECK(coordinator.schedule<size_of>(table).fetch() == 3);
}

TEST_CASE("numbers that are no keys of a lookup table's type have no value",
          "[strategy][unit][PSS-14]") {
  const LookupTable<std::int32_t, float> narrow({{1, 1.0F}, {-1, 2.0F}}, -2.0F);
  CHECK(narrow
            .lookup(torch::tensor({std::int64_t{4'294'967'297}, std::int64_t{1}, std::int64_t{-1},
                                   std::int64_t{4'294'967'295}}))
            .equal(torch::tensor({-2.0F, 1.0F, 2.0F, -2.0F})));
  const LookupTable<std::uint32_t, float> natural({{4'294'967'295, 1.0F}}, -2.0F);
  CHECK(natural.lookup(torch::tensor({std::int64_t{-1}, std::int64_t{4'294'967'295}}))
            .equal(torch::tensor({-2.0F, 1.0F})));
  const LookupTable<std::uint8_t, float> small({{1, 1.0F}}, -2.0F);
  CHECK(small.lookup(torch::tensor({257, 1})).equal(torch::tensor({-2.0F, 1.0F})));
  const LookupTable<std::uint64_t, float> large({{~std::uint64_t{0}, 1.0F}}, -2.0F);
  CHECK(large.lookup(torch::tensor({-1})).item<float>() == -2);
}

TEST_CASE("keys of a lookup table that are no integers are refused", "[strategy][unit]") {
  const Table table({{0, 0}, {1, 1}}, -2);
  CHECK(throws(ErrorCode::kInvalidArgument, "was given Float",
               [&] { (void)table.lookup(torch::tensor({1.9F})); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "an undefined tensor",
               [&] { (void)table.lookup(torch::Tensor()); }));
  CHECK(table.lookup(torch::tensor({true, false})).equal(torch::tensor({1, 0}, torch::kLong)));
}

TEST_CASE_METHOD(RowsFixture, "a per-worker variable is each worker's own, and all are read",
                 "[strategy][unit][PSS-15]") {
  const PerWorkerVariable seen(coordinator, torch::zeros({}));
  for (int i = 0; i < 10; ++i) coordinator.schedule<count_here>(seen);
  coordinator.join();
  const std::vector<torch::Tensor> values = seen.read_all(coordinator);
  REQUIRE(values.size() == 2);
  CHECK((values[0] + values[1]).item<float>() == 10);
  coordinator.schedule<misfits>(seen);
  CHECK(throws(ErrorCode::kInvalidArgument, "shape []; it is given [2]",
               [&] { coordinator.join(); }));
}

TEST_CASE("a per-worker variable takes unsigned numbers away and refuses other shapes",
          "[strategy][unit]") {
  WorkerVariable seen(torch::tensor({10, 20, 30}));
  const torch::Tensor before = seen.value();
  seen.assign_sub(torch::tensor({1, 2, 3}, torch::kByte));
  CHECK(seen.value().equal(torch::tensor({9, 18, 27})));
  seen.assign_sub(torch::tensor(9, torch::kByte));
  CHECK(seen.value().equal(torch::tensor({0, 9, 18})));
  CHECK(before.equal(torch::tensor({10, 20, 30})));
  for (const torch::Tensor& other : {torch::ones({2}), torch::ones({1}), torch::ones({2, 3})}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "has shape [3]; it is given",
                 [&] { seen.assign_add(other); }));
    CHECK(throws(ErrorCode::kInvalidArgument, "has shape [3]; it is given",
                 [&] { seen.assign_sub(other); }));
  }
}

TEST_CASE("a per-worker variable loses no fraction of what it is given without saying so",
          "[strategy][unit][PSS-15]") {
  WorkerVariable counts(torch::tensor({std::int64_t{1} << 60, std::int64_t{20}}));
  for (int i = 0; i < 10; ++i) counts.assign_add(1);
  counts.assign_sub(std::int64_t{3});
  const torch::Tensor counted = torch::tensor({(std::int64_t{1} << 60) + 7, std::int64_t{27}});
  CHECK(counts.value().equal(counted));

  const torch::Tensor halves = torch::tensor({0.5F, 0.5F});
  CHECK(throws(ErrorCode::kInvalidArgument, "is Long and cannot be given Double",
               [&] { counts.assign_add(0.5); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "is Long and cannot be given Float",
               [&] { counts.assign_sub(halves); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "is Long and cannot be given Float",
               [&] { counts.assign(halves); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "is given no tensor",
               [&] { counts.assign(torch::Tensor()); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "is given no tensor",
               [] { const WorkerVariable none{torch::Tensor()}; }));
  CHECK(counts.value().equal(counted));
  WorkerVariable mean(torch::zeros({}));
  for (int i = 0; i < 10; ++i) mean.assign_add(0.5);
  CHECK(mean.value().item<float>() == 5);
}

TEST_CASE_METHOD(RowsFixture, "a function may be given a variable", "[strategy][unit]") {
  {
    const auto scope = strategy.scope();
    counter = Variable::create("counter", 0.0);
  }
  for (int i = 0; i < 20; ++i) coordinator.schedule<add_to>(counter, 2.0F);
  coordinator.join();
  CHECK(counter.item<float>() == 40);
  CHECK(coordinator.schedule<two_handles>(counter).fetch() == std::vector<float>{41, 42});
  CHECK(coordinator.schedule<gradient_of>(counter).fetch() == 84);
  const Variable local = Variable::create("local", 0.0);
  CHECK(throws(ErrorCode::kInvalidArgument, "variable local is on no parameter server",
               [&] { coordinator.schedule<add_to>(local, 1.0F); }));
}

TEST_CASE_METHOD(RowsFixture, "a variable of another job is refused as an argument",
                 "[strategy][unit]") {
  Bytes bytes;
  {
    const auto scope = strategy.scope();
    counter = Variable::create("counter", 0.0);
  }
  Codec<Variable>::write(counter, bytes);
  // The next job's driver takes the place of this one's.
  const ps::ProgramClient::Options options = servers.cluster.Options();
  const auto other = internal::PsConnection::OpenAsDriver(
      {.servers = servers.cluster.Servers(),
       .job_id = "job-10",
       .key = net::JobKey(ps::testing::kToken, "job-10", options.epoch),
       .epoch = options.epoch,
       .incarnation = options.incarnation,
       .host_id = options.host_id},
      servers.link);
  CHECK(throws(ErrorCode::kInvalidArgument, "variable counter is of job-9",
               [&] { coordinator.schedule<add_to>(counter, 1.0F); }));
  ByteReader from(bytes);
  CHECK(throws(ErrorCode::kInvalidArgument, "this closure of job-10",
               [&] { (void)Codec<Variable>::read(from); }));
}

TEST_CASE("a component as an argument is refused where there are fewer replicas than in the driver",
          "[strategy][unit]") {
  const Servers servers;
  Bytes bytes;
  {
    ParameterServerStrategy wide(nullptr, {"CPU:0", "CPU:1"});
    const auto scope = wide.scope();
    const Variable sums = Variable::create("sums", 0.0,
                                           {.synchronization = VariableSynchronization::kOnRead,
                                            .aggregation = VariableAggregation::kSum});
    Codec<Variable>::write(sums.component(1), bytes);
  }
  const ParameterServerStrategy narrow(nullptr, {"CPU:0"});

  ByteReader from(bytes);
  CHECK(throws(ErrorCode::kInvalidArgument, "component 1 of variable sums",
               [&] { (void)Codec<Variable>::read(from); }));
}

TEST_CASE("an initial value in parts is asked for each shard's", "[strategy][unit][SHV-05]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  std::vector<std::int64_t> offsets;
  const InitialValue identity =
      InitialValue::in_parts({4, 4}, torch::kFloat, [&](const VariablePart& part) {
        offsets.push_back(part.offset[0]);
        return torch::eye(4).narrow(0, part.offset[0], part.shape[0]);
      });
  const auto scope = strategy.scope();
  const ShardedVariable v(Variable::create("v", identity));
  CHECK(offsets == std::vector<std::int64_t>{0, 2});
  CHECK(v.value_of_shard(0).equal(torch::eye(4).narrow(0, 0, 2)));
  CHECK(v.value_of_shard(1).equal(torch::eye(4).narrow(0, 2, 2)));
  const InitialValue wrong = InitialValue::in_parts(
      {4, 4}, torch::kFloat, [](const VariablePart&) { return torch::zeros({3, 4}); });
  CHECK(throws(ErrorCode::kInvalidArgument, "must be Float of shape [2, 4]",
               [&] { (void)Variable::create("wrong", wrong); }));
}

TEST_CASE("a function that makes an initial value is called once, and its value cut",
          "[strategy][unit][SHV-06][SHV-07]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  int calls = 0;
  const auto scope = strategy.scope();
  const ShardedVariable v(Variable::create("v", [&] {
    ++calls;
    return torch::arange(6.0).reshape({3, 2});
  }));
  CHECK(calls == 1);
  CHECK(v.size() == 2);
  CHECK(v.value_of_shard(1).equal(torch::tensor({{4.0F, 5.0F}})));
}

TEST_CASE("an initial value of more than a billion elements that is cut is warned of",
          "[strategy][unit][SHV-06]") {
  CHECK(internal::WholeValueWarning("table", 1'000'000'000, 8).empty());
  CHECK(internal::WholeValueWarning("table", 1'000'000'001, 1).empty());
  CHECK(internal::WholeValueWarning("table", 1'000'000'001, 8) ==
        "the initial value of variable table has 1000000001 elements: this process has made all of "
        "them, before they are cut into 8 shards");
}

TEST_CASE("indices of a cut variable are those of one tensor", "[strategy][unit][SHV-16]") {
  using torch::indexing::Ellipsis;
  using torch::indexing::None;
  using torch::indexing::Slice;
  using Indices = std::vector<torch::indexing::TensorIndex>;
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const torch::Tensor all = torch::arange(16.0).reshape({8, 2});
  const ShardedVariable v(Variable::create("v", all));
  const torch::Tensor mask =
      torch::tensor({true, false, false, true, false, false, true, false}, torch::kBool);
  for (const Indices& indices :
       {Indices{Slice(None, 2)}, Indices{Slice(-8, 2)}, Indices{Slice(-10, 2)},
        Indices{Slice(5, None)}, Indices{Slice(5, -1)}, Indices{Slice(None, None, 3)},
        Indices{Slice(1, None, 6)}, Indices{Slice(0, 0)}, Indices{Slice(5, 3)}, Indices{Slice(), 0},
        Indices{Slice(5, None), 1}, Indices{2, 1}, Indices{-2}, Indices{Ellipsis, 0},
        Indices{None, 1}, Indices{mask}, Indices{mask, 1}}) {
    CHECK(v.index(indices).equal(all.index(indices)));
  }
  // libtorch's own indices go forwards alone.
  CHECK(v.index({Slice(None, None, -1)}).equal(all.flip(0)));
  CHECK(v.index({Slice(2, None, -1)}).equal(all.narrow(0, 0, 3).flip(0)));
  CHECK(v.index({Slice(-1, -3, -1), 1}).equal(torch::tensor({15.0F, 13.0F})));
  CHECK(v.index({Slice(7, 1, -4)}).equal(torch::stack({all[7], all[3]})));
  CHECK(throws(ErrorCode::kOutOfRange, "row 100", [&] { (void)v.index({100}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "index of variable v",
               [&] { (void)v.index({Slice(), 5}); }));
}

TEST_CASE("an index of rows has no more indices than the variable has axes",
          "[strategy][unit][SHV-16]") {
  using torch::indexing::None;
  using torch::indexing::Slice;
  using TooMany = std::vector<torch::indexing::TensorIndex>;
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto scope = strategy.scope();
  const torch::Tensor all = torch::arange(6.0).reshape({3, 2});
  const ShardedVariable v(Variable::create("v", all));
  const torch::Tensor mask = torch::tensor({true, false, true}, torch::kBool);
  for (const TooMany& indices :
       {TooMany{Slice(), 0, 0}, TooMany{Slice(), Slice(), Slice()}, TooMany{mask, 0, 0},
        TooMany{torch::tensor({0, 2}), 0, 0}, TooMany{1, 0, 0}, TooMany{Slice(), None, 0, 0}}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "too many indices", [&] { (void)v.index(indices); }));
    CHECK_THROWS_AS(all.index(indices), c10::Error);
  }
  CHECK(v.index({Slice(), None, 0}).equal(all.index({Slice(), None, 0})));
}

TEST_CASE("an index of a list of rows is that of one tensor, and fetches no other row",
          "[strategy][unit][SHV-16][SHV-17]") {
  using torch::indexing::None;
  using torch::indexing::Slice;
  using Indices = std::vector<torch::indexing::TensorIndex>;
  const Servers servers(3);
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const torch::Tensor all = torch::arange(12.0).reshape({6, 2});
  const ShardedVariable v(Variable::create("v", all));
  using ps::testing::Reads;
  const ps::ProgramClient& client = servers.connection->client();
  const auto reads = [&](const Indices& indices) {
    const std::vector<ps::ReadCounts> earlier = client.reads();
    CHECK(v.index(indices).equal(all.index(indices)));
    return ps::testing::ReadsSince(earlier, client);
  };

  // Two rows in each shard; those that have none of the list are not asked.
  CHECK(reads({torch::tensor({0, 1, 0})}) == Reads{{1, 1}, {0, 0}, {0, 0}});
  CHECK(reads({torch::tensor({-1, 0, -6}), 1}) == Reads{{1, 1}, {0, 0}, {1, 1}});
  CHECK(reads({torch::tensor({3, 2}), None, Slice(1, None)}) == Reads{{0, 0}, {1, 1}, {0, 0}});
  CHECK(reads({torch::empty({0}, torch::kLong)}) == Reads{{0, 0}, {0, 0}, {0, 0}});
  CHECK(throws(ErrorCode::kOutOfRange, "row 6 of variable v, which has 6",
               [&] { (void)v.index({torch::tensor({0, 6})}); }));
  CHECK(throws(ErrorCode::kOutOfRange, "row -7 of variable v, which has 6",
               [&] { (void)v.index({torch::tensor({-7, 5})}); }));
  // Where another index is a list, too, or the list is no list, it is of the whole.
  for (const Indices& indices : {Indices{torch::tensor({0, 3}), torch::tensor({1, 0})},
                                 Indices{torch::tensor({{0, 3}, {5, -1}})}}) {
    CHECK(v.index(indices).equal(all.index(indices)));
  }
}

TEST_CASE("bags of ids are combined, and a safe lookup leaves out what is none",
          "[strategy][unit][SHV-19]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(3));
  const auto scope = strategy.scope();
  const Variable table = Variable::create("table", torch::arange(1.0, 11.0).reshape({5, 2}));
  const torch::Tensor offsets = torch::tensor({0, 2, 3});
  CHECK(embedding_lookup_sparse(table, torch::tensor({0, 3, 4, 1}), offsets)
            .equal(torch::tensor({{4.0F, 5.0F}, {9.0F, 10.0F}, {3.0F, 4.0F}})));
  const torch::Tensor ids = torch::tensor({0, -1, 4, 1});
  const torch::Tensor weights = torch::tensor({1.0F, 1.0F, -1.0F, 1.0F});
  const torch::Tensor safe = safe_embedding_lookup_sparse(table, ids, offsets, weights);
  CHECK(safe.equal(torch::tensor({{1.0F, 2.0F}, {0.0F, 0.0F}, {3.0F, 4.0F}})));
  CHECK(safe_embedding_lookup_sparse(table, ids, offsets, weights, EmbeddingCombiner::kMean, 2)
            .equal(torch::tensor({{1.0F, 2.0F}, {5.0F, 6.0F}, {3.0F, 4.0F}})));
  (void)embedding_gradient(table);

  embedding_lookup_sparse(table, torch::tensor({4, 4, 0}), torch::tensor({0, 2}),
                          torch::tensor({1.0F, 3.0F, 2.0F}), EmbeddingCombiner::kSum)
      .sum()
      .backward();
  {
    // An evaluation between: nothing of it is remembered.
    const torch::NoGradGuard no_gradients;
    CHECK_FALSE(embedding_lookup(table, torch::tensor({2})).requires_grad());
  }
  const IndexedSlices gradient = embedding_gradient(table);
  CHECK(gradient.indices.equal(torch::tensor({0, 4})));
  CHECK(gradient.values.equal(torch::tensor({{2.0F, 2.0F}, {4.0F, 4.0F}})));
  CHECK(embedding_lookup_sparse(table, torch::tensor({0, 1}), torch::tensor({0}),
                                torch::tensor({3.0F, 4.0F}), EmbeddingCombiner::kSqrtN)
            .equal(torch::tensor({{3.0F, 4.4F}})));
  CHECK(throws(ErrorCode::kInvalidArgument, "offsets begin at 0", [&] {
    (void)embedding_lookup_sparse(table, torch::tensor({1}), torch::tensor({1}));
  }));
  CHECK(throws(ErrorCode::kInvalidArgument, "offset 1 is 3, after 0 of 2 ids", [&] {
    (void)embedding_lookup_sparse(table, torch::tensor({1, 2}), torch::tensor({0, 3}));
  }));
  for (const torch::Tensor& none : {torch::Tensor(), torch::tensor({0.0F, 1.9F})}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "offsets are int32 or int64, not",
                 [&] { (void)embedding_lookup_sparse(table, torch::tensor({1, 2}), none); }));
  }
  // 1.9 is no row 1.
  CHECK(throws(ErrorCode::kInvalidArgument, "rows are named by int32 or int64, not by Float", [&] {
    (void)safe_embedding_lookup_sparse(table, torch::tensor({1.9F}), torch::tensor({0}));
  }));
}

TEST_CASE("a bag whose weights are all 0 is zeros and gives its weights no gradient",
          "[strategy][unit]") {
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  const Variable table = Variable::create("table", torch::ones({3, 2}));
  const torch::Tensor ids = torch::tensor({0, 1, 2});
  for (const EmbeddingCombiner combiner :
       {EmbeddingCombiner::kSum, EmbeddingCombiner::kMean, EmbeddingCombiner::kSqrtN}) {
    torch::Tensor weights = torch::tensor({0.0F, 0.0F, 2.0F}).requires_grad_();
    const torch::Tensor bags =
        embedding_lookup_sparse(table, ids, torch::tensor({0, 2}), weights, combiner);
    CHECK(bags[0].equal(torch::zeros({2})));
    bags.sum().backward();
    CHECK(weights.grad().isfinite().all().item<bool>());
    CHECK(embedding_gradient(table).values.isfinite().all().item<bool>());
  }
}

TEST_CASE("a cut parameter of a module is one variable that shows its shards",
          "[strategy][unit][SHV-27]") {
  const Servers servers;
  ParameterServerStrategy strategy(fixed_shards_partitioner(2));
  const auto module = strategy.distribute(torch::nn::Linear(3, 4));
  REQUIRE(module.parameters().size() == 2);
  const ShardedVariable weight(module.parameters()[0]);
  CHECK(weight.size() == 2);
  CHECK(weight.shards()[1].name == "weight/part_1");
  const testing::TempFolder folder;
  Checkpoint checkpoint;
  checkpoint.track(module);
  checkpoint.save(folder / "saved");
  // One tensor in the file.
  const Variable plain = Variable::create("plain", torch::zeros({4, 3}));
  Checkpoint other({{"weight", plain}});
  CHECK(other.restore(folder / "saved").unused() == std::vector<std::string>{"bias"});
  CHECK(plain.value().equal(weight.value()));
}

}  // namespace
}  // namespace muster
