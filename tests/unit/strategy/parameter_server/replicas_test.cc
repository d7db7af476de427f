// Several replicas of one worker, and variables on servers: each has gradients of its own, and what
// they write counts once, whichever of them was first.
#include <atomic>
#include <barrier>
#include <latch>
#include <memory>
#include <optional>
#include <thread>

#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace replicas_of_servers {

using namespace std::chrono_literals;
using muster::Variable;

// The running test's; closures run on threads of its process.
muster::ParameterServerStrategy* two_replicas = nullptr;
muster::ServerOptimizer* descent = nullptr;
Variable plain_value;
Variable first_alone;
Variable matrix;
Variable rows_of;
std::atomic<bool> has_read{false};
std::unique_ptr<std::barrier<>> both;
std::unique_ptr<std::latch> other_done;

int replica_here() { return muster::get_replica_context()->replica_id_in_sync_group(); }
// What each replica's gradient is made of.
float own_number() { return replica_here() == 0 ? 1.0F : 10.0F; }
void descend_by(float by) { descent->apply_gradients({{torch::full({3, 1}, by), matrix}}, 1.0); }

// Only the read can end it.
void replicas_read_on() {
  two_replicas->run([] {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < end) {
      (void)plain_value.value();
      has_read = true;
    }
    muster::raise(muster::ErrorCode::kInternal, "it has read for 30 s");
  });
}
void fails_while_replicas_read() {
  while (!has_read) std::this_thread::yield();
  muster::raise(muster::ErrorCode::kOutOfRange, "the other one's");
}
std::pair<double, double> sum_and_difference(double x) {
  const auto each = two_replicas->run(
      [](double own) {
        const double value = plain_value.item<double>();
        return std::tuple{value + own, own - value};
      },
      x);
  const auto [sum, difference] = two_replicas->reduce(muster::ReduceOp::kSum, each);
  return {sum.item<double>(), difference.item<double>()};
}
void add_three() {
  two_replicas->run([] { first_alone.assign_add(3, /*read_value=*/false); });
}
// The second replica has looked up, and has no gradient yet, when the first one asks for its own.
void look_up_in_replicas() {
  two_replicas->run([] {
    const int replica = replica_here();
    const torch::Tensor rows =
        muster::embedding_lookup(rows_of, torch::tensor({replica}, torch::kLong));
    both->arrive_and_wait();
    if (replica == 1) other_done->wait();
    rows.sum().backward();
    const muster::IndexedSlices gradient = muster::embedding_gradient(rows_of);
    if (replica == 0) other_done->count_down();
    descent->apply_gradients({{gradient, rows_of}}, 1.0);
  });
}
// Asks for all when they have run.
torch::Tensor ids_of_all_replicas() {
  two_replicas->run([] {
    muster::embedding_lookup(rows_of, torch::tensor({3 - replica_here()}, torch::kLong))
        .sum()
        .backward();
  });
  return muster::embedding_gradient(rows_of).indices;
}
// The first replica writes while the second one is between its backward pass and its gradient.
void descend_while_another_does() {
  two_replicas->run([] {
    (matrix.value() * own_number()).sum().backward();
    both->arrive_and_wait();
    if (replica_here() == 1) other_done->wait();
    descent->apply_gradients({{matrix.value().grad(), matrix}}, 1.0);
    if (replica_here() == 0) other_done->count_down();
  });
}
// What replicas see of those that have run before them, and what the closure does.
std::vector<float> seen_after_replicas() {
  const auto seen = [] { return matrix.value().min().item<float>(); };
  two_replicas->run([] { descend_by(own_number()); });
  std::vector<float> all = two_replicas->run(seen).values();
  two_replicas->run([] { descend_by(own_number()); });
  all.push_back(seen());
  return all;
}

}  // namespace replicas_of_servers

MUSTER_FUNCTION(replicas_of_servers::replicas_read_on);
MUSTER_FUNCTION(replicas_of_servers::fails_while_replicas_read);
MUSTER_FUNCTION(replicas_of_servers::sum_and_difference);
MUSTER_FUNCTION(replicas_of_servers::add_three);
MUSTER_FUNCTION(replicas_of_servers::look_up_in_replicas);
MUSTER_FUNCTION(replicas_of_servers::ids_of_all_replicas);
MUSTER_FUNCTION(replicas_of_servers::descend_while_another_does);
MUSTER_FUNCTION(replicas_of_servers::seen_after_replicas);

namespace muster {
namespace {

using namespace replicas_of_servers;
using internal::ClosureSession;
using testing::code_of;
using testing::Servers;
using testing::throws;

class ReplicasFixture {
 public:
  explicit ReplicasFixture(Writes writes = Writes::kTogether)
      : strategy({.devices = {"CPU:0", "CPU:1"}, .writes = writes}) {
    const auto scope = strategy.scope();
    plain_value = Variable::create("plain_value", 1.0);
    first_alone = Variable::create("first_alone", 0.0,
                                   {.aggregation = VariableAggregation::kOnlyFirstReplica});
    matrix = Variable::create("matrix", torch::zeros({3, 1}));
    rows_of = Variable::create("rows_of", torch::ones({4, 2}));
    optimizer.emplace(torch::optim::SGDOptions(1), std::vector{matrix, rows_of});
    two_replicas = &strategy;
    descent = &*optimizer;
    has_read = false;
    both = std::make_unique<std::barrier<>>(2);
    other_done = std::make_unique<std::latch>(1);
  }
  ~ReplicasFixture() {
    optimizer.reset();
    for (Variable* const variable : {&plain_value, &first_alone, &matrix, &rows_of}) {
      *variable = Variable();
    }
  }

  // Replicas of an attempt of one closure, whose end does not come.
  template <class Body>
  void begin_attempt(std::uint64_t attempt, const Body& body) {
    ClosureSession session(servers.connection, ClosureId(1), Attempt(attempt), 0);
    strategy.run([&] {
      const ClosureSession::Scope scope(session);
      body(replica_here());
    });
  }
  // -1 times what has come of the numbers that were descended by.
  float descended() const { return -matrix.value().min().item<float>(); }

  Servers servers;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator{servers.link};
  std::optional<ServerOptimizer> optimizer;
};

TEST_CASE_METHOD(ReplicasFixture,
                 "a closure whose replicas read on ends when another one has failed",
                 "[strategy][unit][CCE-04]") {
  const auto reading = coordinator.schedule<replicas_read_on>();
  coordinator.schedule<fails_while_replicas_read>();

  CHECK(throws(ErrorCode::kOutOfRange, "the other one's", [&] { coordinator.join(); }));
  CHECK(code_of([&] { reading.fetch(); }) == ErrorCode::kCancelled);
}

TEST_CASE_METHOD(ReplicasFixture, "replicas of a closure compute with variables on servers",
                 "[strategy][unit][CCO-25]") {
  for (int i = 0; i < 2; ++i) {
    CHECK(coordinator.schedule<sum_and_difference>(3).fetch() == std::pair{8.0, 4.0});
  }
  for (int i = 0; i < 2; ++i) coordinator.schedule<add_three>();
  coordinator.join();
  CHECK(first_alone.item<float>() == 6);
}

TEST_CASE_METHOD(ReplicasFixture,
                 "each replica finds the gradient of the rows that it has looked up",
                 "[strategy][unit]") {
  coordinator.schedule<look_up_in_replicas>();
  coordinator.join();

  const torch::Tensor expected =
      torch::tensor({{0.0F, 0.0F}, {0.0F, 0.0F}, {1.0F, 1.0F}, {1.0F, 1.0F}});
  CHECK(rows_of.value().equal(expected));
}

TEST_CASE_METHOD(ReplicasFixture,
                 "a closure finds the gradients that its replicas have not asked for",
                 "[strategy][unit]") {
  CHECK(coordinator.schedule<ids_of_all_replicas>().fetch().equal(torch::tensor({2, 3})));
}

TEST_CASE_METHOD(ReplicasFixture, "what one replica writes takes no gradient from another one",
                 "[strategy][unit]") {
  coordinator.schedule<descend_while_another_does>();
  coordinator.join();

  CHECK(descended() == 11);
}

TEST_CASE_METHOD(ReplicasFixture, "what replicas have written is seen by all that runs after them",
                 "[strategy][unit]") {
  CHECK(coordinator.schedule<seen_after_replicas>().fetch() == std::vector<float>{-11, -11, -22});
  CHECK(descended() == 22);
}

TEST_CASE_METHOD(ReplicasFixture,
                 "what replicas send while they run counts once, whatever was sent before the "
                 "worker died",
                 "[strategy][unit]") {
  begin_attempt(1, [](int replica) {
    descend_by(own_number());
    both->arrive_and_wait();
    if (replica == 0) (void)matrix.value();  // sends what is written
  });

  begin_attempt(2, [](int replica) {
    if (replica == 1) other_done->wait();
    descend_by(own_number());
    (void)matrix.value();
    if (replica == 0) other_done->count_down();
  });

  CHECK(descended() == 11);
}

TEST_CASE("immediate writes of replicas count once, whichever of them is first the second time",
          "[strategy][unit]") {
  ReplicasFixture fixture(Writes::kImmediate);
  fixture.begin_attempt(1, [](int replica) {
    if (replica == 0) descend_by(own_number());
  });

  fixture.begin_attempt(2, [](int replica) {
    if (replica == 0) other_done->wait();
    descend_by(own_number());
    if (replica == 1) other_done->count_down();
  });

  CHECK(fixture.descended() == 11);
}

TEST_CASE_METHOD(ReplicasFixture,
                 "a thread outside closures finds the gradients of its own lookups",
                 "[strategy][unit]") {
  const torch::Tensor mine = embedding_lookup(rows_of, torch::tensor({2}, torch::kLong));
  IndexedSlices theirs;
  std::thread([&] {
    embedding_lookup(rows_of, torch::tensor({1}, torch::kLong)).sum().backward();
    theirs = embedding_gradient(rows_of);
  }).join();
  mine.sum().backward();

  CHECK(theirs.indices.equal(torch::tensor({1})));
  CHECK(embedding_gradient(rows_of).indices.equal(torch::tensor({2})));
}

TEST_CASE_METHOD(ReplicasFixture, "rows that were looked up for nothing take no memory",
                 "[strategy][unit]") {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;
  internal::RemoteComponent& table = internal::remote_component(rows_of);
  const torch::Tensor ids = torch::tensor({1}, torch::kLong);
  const auto look_up = [&] {
    return Weak(table.LookUp(ids, /*trainable=*/true).getIntrusivePtr());
  };
  const torch::Tensor used = embedding_lookup(rows_of, torch::tensor({2}, torch::kLong));

  std::vector<Weak> unused;
  for (int i = 0; i < 1'000; ++i) unused.push_back(look_up());

  CHECK(std::ranges::count_if(unused, [](const Weak& one) { return !one.expired(); }) <= 20);
  used.sum().backward();
  CHECK(embedding_gradient(rows_of).indices.equal(torch::tensor({2})));
}

}  // namespace
}  // namespace muster
