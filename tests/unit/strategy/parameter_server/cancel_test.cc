// Closures that are not wanted any more hear it where they read variables on servers.
#include <atomic>
#include <thread>

#include "tests/unit/ps/client/server_process.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace cancelled_reads {

using namespace std::chrono_literals;
// The running test's; closures run on threads of its process.
muster::Variable watched;
std::atomic<bool> begun{false};
std::atomic<bool> goes_on{false};

enum Read : int { kLeaf, kWritten, kRows };

void read_once(int how) {
  switch (how) {
    case kLeaf:
      (void)watched.value();
      break;
    case kWritten:
      (void)watched.assign_add(torch::zeros({3, 1}));
      break;
    default:
      (void)muster::embedding_lookup(watched, torch::tensor({0, 2}));
  }
}

// Does nothing else: only the read can end it.
void reads_on(int how) {
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < end) {
    read_once(how);
    begun = true;
  }
  muster::raise(muster::ErrorCode::kInternal, "it has read for 30 s");
}
void reads_when_told() {
  begun = true;
  while (!goes_on) std::this_thread::yield();
  read_once(kLeaf);
}
void writes_when_told() {
  (void)watched.assign_add(torch::ones({3, 1}), /*read_value=*/false);
  begun = true;
  while (!goes_on) std::this_thread::yield();
}
void throws_while_another_reads() {
  while (!begun) std::this_thread::yield();
  muster::raise(muster::ErrorCode::kOutOfRange, "the other one's");
}

}  // namespace cancelled_reads

MUSTER_FUNCTION(cancelled_reads::reads_on);
MUSTER_FUNCTION(cancelled_reads::reads_when_told);
MUSTER_FUNCTION(cancelled_reads::writes_when_told);
MUSTER_FUNCTION(cancelled_reads::throws_while_another_reads);

namespace muster {
namespace {

namespace reads = cancelled_reads;
using testing::code_of;
using testing::Servers;
using testing::throws;
using namespace std::chrono_literals;

struct CancelFixture {
  CancelFixture() {
    reads::begun = false;
    reads::goes_on = false;
  }
  ~CancelFixture() { reads::watched = Variable(); }
};

TEST_CASE_METHOD(CancelFixture, "a closure that reads on ends when another one has failed",
                 "[strategy][unit][CCE-04]") {
  const auto how = GENERATE(as<int>(), reads::kLeaf, reads::kWritten, reads::kRows);
  const Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  reads::watched = Variable::create("watched", torch::zeros({3, 1}));
  ClusterCoordinator coordinator(servers.link);

  const auto reading = coordinator.schedule<reads::reads_on>(how);
  coordinator.schedule<reads::throws_while_another_reads>();

  CHECK(throws(ErrorCode::kOutOfRange, "the other one's", [&] { coordinator.join(); }));
  CHECK(code_of([&] { reading.fetch(); }) == ErrorCode::kCancelled);
}

TEST_CASE_METHOD(CancelFixture,
                 "a closure that was given up at its deadline writes nothing after all",
                 "[strategy][unit]") {
  const Servers servers(1, 1);
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  reads::watched = Variable::create("watched", torch::zeros({3, 1}));
  ClusterCoordinator coordinator(servers.link);

  coordinator.within(20ms).schedule<reads::writes_when_told>();
  CHECK(throws(ErrorCode::kDeadlineExceeded, "its deadline", [&] { coordinator.join(); }));
  reads::goes_on = true;
  // In time, on the same worker, behind the one that was given up.
  coordinator.within(60s).schedule<reads::writes_when_told>();
  coordinator.join();

  CHECK(reads::watched.value().equal(torch::ones({3, 1})));
}

// Its server is stopped: nobody answers, and nobody says that it is gone.
TEST_CASE_METHOD(CancelFixture,
                 "a closure whose read hangs holds an error up no longer than a call",
                 "[strategy][unit][CCE-04]") {
  const ps::testing::ServerProcess server;
  const auto link = local_cluster(2);
  const auto connection = internal::PsConnection::OpenAsDriver(
      {.servers = {server.server()},
       .job_id = ps::testing::kProgram,
       .key = net::JobKey(ps::testing::kToken, ps::testing::kProgram, Epoch(1)),
       .epoch = Epoch(1),
       .incarnation = Incarnation(1),
       .host_id = *net::HostId()},
      link);
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  reads::watched = Variable::create("watched", torch::zeros({3, 1}));
  ClusterCoordinator coordinator(link);
  const auto reading = coordinator.schedule<reads::reads_when_told>();
  while (!reads::begun) std::this_thread::yield();

  server.Stop();
  reads::goes_on = true;
  const auto begin = std::chrono::steady_clock::now();
  coordinator.schedule<reads::throws_while_another_reads>();
  CHECK(throws(ErrorCode::kOutOfRange, "the other one's", [&] { coordinator.join(); }));

  // The executor of a closure that is deaf would be ended after 10 s.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(code_of([&] { reading.fetch(); }) == ErrorCode::kCancelled);
  // And all is new.
  server.Signal(SIGCONT);
  coordinator.schedule<reads::reads_when_told>();
  coordinator.join();
}

}  // namespace
}  // namespace muster
