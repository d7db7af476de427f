// Workers in processes of their own, which are killed and stopped while closures run.
#include <atomic>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "strategy/muster.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace processes_test {

// Numbers in a file that all processes map.
class Shared {
 public:
  static constexpr std::size_t kNumbers = 64;
  explicit Shared(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    (void)!::ftruncate(fd, kNumbers * sizeof(std::atomic<std::int64_t>));
    numbers_ = static_cast<std::atomic<std::int64_t>*>(
        ::mmap(nullptr, kNumbers * sizeof(std::atomic<std::int64_t>), PROT_READ | PROT_WRITE,
               MAP_SHARED, fd, 0));
    ::close(fd);
  }
  ~Shared() { ::munmap(numbers_, kNumbers * sizeof(std::atomic<std::int64_t>)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  std::atomic<std::int64_t>& operator[](std::size_t i) { return numbers_[i]; }

 private:
  std::atomic<std::int64_t>* numbers_;
};
enum Number : std::size_t { kIterations, kBegun, kGate, kBuilds, kBuildGate };

std::atomic<std::int64_t>& counted(const std::string& file, Number number) {
  static Shared shared(file);
  return shared[number];
}
int count(const std::string& file) {
  ++counted(file, kBegun);
  ++counted(file, kIterations);
  return muster::worker_index();
}
// Counts once the gate is open.
void count_behind_gate(const std::string& file) {
  ++counted(file, kBegun);
  while (counted(file, kGate) == 0) ::usleep(1000);
  ++counted(file, kIterations);
}
muster::Dataset<torch::Tensor> slow_data(const std::string& file) {
  ++counted(file, kBuilds);
  while (counted(file, kBuildGate) == 0) ::usleep(1000);
  return muster::dataset::range(1, 1'000'000);
}
std::int64_t count_next(const std::string& file, muster::WorkerIterator<torch::Tensor>& data) {
  ++counted(file, kIterations);
  return data.get_next().item<std::int64_t>();
}
int pid() { return ::getpid(); }
torch::Tensor ones(std::int64_t n) { return torch::ones({n}); }
void fails_behind_gate(const std::string& file) {
  ++counted(file, kBegun);
  while (counted(file, kGate) == 0) ::usleep(1000);
  muster::raise(muster::ErrorCode::kOutOfRange, "the user's own error");
}

}  // namespace processes_test

MUSTER_FUNCTION(processes_test::count);
MUSTER_FUNCTION(processes_test::count_behind_gate);
MUSTER_FUNCTION(processes_test::slow_data);
MUSTER_FUNCTION(processes_test::count_next);
MUSTER_FUNCTION(processes_test::pid);
MUSTER_FUNCTION(processes_test::ones);
MUSTER_FUNCTION(processes_test::fails_behind_gate);

namespace processes_test {
namespace {

using namespace muster;
using testing::code_of;
using testing::eventually;
using testing::ProcessWorkers;
using testing::soon;

// What ProcessWorkers runs.
TEST_CASE("serves closures to its parent", "[.][serve]") {
  const char* socket = std::getenv("MUSTER_TEST_SOCKET");
  REQUIRE(socket != nullptr);
  auto executor = dispatch::Executor::Create(
      {.identity = {.token = "key", .host_id = "host"},
       .worker_index = static_cast<std::uint32_t>(std::atoi(std::getenv("MUSTER_TEST_INDEX")))},
      dispatch::ProgramFunctions());
  auto listener = net::ListenUnix(socket);
  REQUIRE((executor.ok() && listener.ok()));
  CHECK((*executor)->Serve(std::span(&*listener, 1)).ok());
}

// A file of shared numbers, gone with the test.
struct Numbers {
  Numbers() {
    std::string name = (std::filesystem::temp_directory_path() / "numbers-XXXXXX").string();
    const int fd = ::mkstemp(name.data());
    ::close(fd);
    file = name;
    shared = std::make_unique<Shared>(file);
  }
  ~Numbers() { std::filesystem::remove(file); }
  std::int64_t at(Number number) { return (*shared)[number]; }
  void open(Number gate) { (*shared)[gate] = 1; }

  std::string file;
  std::unique_ptr<Shared> shared;
};

TEST_CASE("functions run in other processes", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ProcessWorkers>(2));
  const auto pids = coordinator.create_per_worker_resource<pid>().fetch();
  REQUIRE(pids.size() == 2);
  CHECK(std::set<int>{pids[0], pids[1], ::getpid()}.size() == 3);
  CHECK(torch::equal(coordinator.schedule<ones>(1'000'000).fetch(), torch::ones({1'000'000})));
}

TEST_CASE("a worker that is killed between functions and comes back is used again",
          "[strategy][unit][CCF-01][CCF-04]") {
  Numbers numbers;
  const auto workers = std::make_shared<ProcessWorkers>(1);
  ClusterCoordinator coordinator(workers);
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < 2; ++i) coordinator.schedule<count>(numbers.file);
    coordinator.join();
    CHECK(numbers.at(kIterations) == 2 * round);
    workers->kill(0);
    workers->tell_killed(0);
    workers->start(0);
  }
}

TEST_CASE("a function whose worker is killed runs again on another one",
          "[strategy][unit][CCF-02][CCF-07]") {
  Numbers numbers;
  const auto workers = std::make_shared<ProcessWorkers>(2);
  ClusterCoordinator coordinator(workers);
  std::vector<RemoteValue<void>> values;
  for (int i = 0; i < 4; ++i) {
    values.push_back(coordinator.schedule<count_behind_gate>(numbers.file));
  }
  eventually("both run one", [&] { return numbers.at(kBegun) == 2; });
  workers->kill(0);
  workers->tell_killed(0);
  numbers.open(kGate);
  coordinator.join(soon());
  CHECK(numbers.at(kIterations) == 4);
  for (const auto& value : values) value.fetch();
}

TEST_CASE("a worker killed while a user's error is pending does not hide it",
          "[strategy][unit][CCF-07]") {
  Numbers numbers;
  const auto workers = std::make_shared<ProcessWorkers>(2);
  ClusterCoordinator coordinator(workers);
  const auto bad = coordinator.schedule<fails_behind_gate>(numbers.file);
  const auto long_one = coordinator.schedule<fails_behind_gate>(numbers.file);
  eventually("both run", [&] { return numbers.at(kBegun) == 2; });
  workers->kill(1);
  workers->tell_killed(1);
  numbers.open(kGate);
  const auto error = [&] {
    try {
      coordinator.join(soon());
    } catch (const ClosureError& thrown) {
      return std::optional(thrown);
    }
    return std::optional<ClosureError>();
  }();
  REQUIRE(error);
  CHECK(error->code() == ErrorCode::kOutOfRange);
  CHECK(error->details().origin == ErrorOrigin::kUser);
  workers->start(1);
  coordinator.schedule<count>(numbers.file);
  coordinator.join(soon());
  CHECK(numbers.at(kIterations) == 1);
}

TEST_CASE("all workers are killed, and when they are back what was scheduled ends",
          "[strategy][unit][CCF-03][CCF-05]") {
  for (const int how_many : {1, 2}) {
    Numbers numbers;
    const auto workers = std::make_shared<ProcessWorkers>(how_many);
    ClusterCoordinator coordinator(workers);
    for (int i = 0; i < 10; ++i) coordinator.schedule<count_behind_gate>(numbers.file);
    eventually("all workers run", [&] { return numbers.at(kBegun) == how_many; });
    for (int i = 0; i < how_many; ++i) workers->kill(i);
    for (int i = 0; i < how_many; ++i) workers->tell_killed(i);
    CHECK(testing::throws(ErrorCode::kDeadlineExceeded, "no worker is there", [&] {
      coordinator.join(std::chrono::steady_clock::now() + std::chrono::milliseconds(50));
    }));
    numbers.open(kGate);
    for (int i = 0; i < how_many; ++i) workers->start(i);
    coordinator.join(soon());
    CHECK(numbers.at(kIterations) >= 10);
    CHECK(coordinator.done());
  }
}

TEST_CASE("a worker that is killed while it builds its data builds it again",
          "[strategy][unit][CCF-06]") {
  Numbers numbers;
  const auto workers = std::make_shared<ProcessWorkers>(2);
  ClusterCoordinator coordinator(workers);
  const auto iterator = coordinator.create_per_worker_dataset<slow_data>(numbers.file).iterator();
  eventually("both build", [&] { return numbers.at(kBuilds) == 2; });
  for (int i = 0; i < 4; ++i) coordinator.schedule<count_next>(numbers.file, iterator);
  workers->kill(0);
  workers->tell_killed(0);
  workers->start(0);
  eventually("it builds again", [&] { return numbers.at(kBuilds) == 3; });
  numbers.open(kBuildGate);
  coordinator.join(soon());
  CHECK(numbers.at(kIterations) == 4);
  iterator.wait(soon());
}

TEST_CASE("a worker that stands still loses its functions to the others", "[strategy][unit]") {
  Numbers numbers;
  const auto workers = std::make_shared<ProcessWorkers>(2, std::chrono::seconds(1));
  ClusterCoordinator coordinator(workers);
  const auto first = coordinator.schedule<count_behind_gate>(numbers.file);
  const auto second = coordinator.schedule<count_behind_gate>(numbers.file);
  eventually("both run one", [&] { return numbers.at(kBegun) == 2; });
  workers->signal(0, SIGSTOP);
  numbers.open(kGate);
  coordinator.join(soon());
  // The zombie wakes up: what it says is nobody's result any more.
  workers->signal(0, SIGCONT);
  first.fetch();
  second.fetch();
  CHECK(coordinator.counts().succeeded == 2);
  coordinator.schedule<count>(numbers.file);
  coordinator.join(soon());
  CHECK(coordinator.counts().succeeded == 3);
}

TEST_CASE("a program may begin while its worker is away, and goes on when it is back",
          "[strategy][unit][CCF-08][CCF-09]") {
  Numbers numbers;
  numbers.open(kBuildGate);
  const auto workers = std::make_shared<ProcessWorkers>(1);
  {
    ClusterCoordinator before(workers);
    before.schedule<count>(numbers.file);
    before.join(soon());
  }
  workers->kill(0);
  workers->tell_killed(0);
  ClusterCoordinator coordinator(workers);
  const auto data = coordinator.create_per_worker_dataset<slow_data>(numbers.file);
  const auto iterator = data.iterator();
  const auto value = coordinator.schedule<count_next>(numbers.file, iterator);
  // Who is away is named, and it is no parameter server.
  std::optional<ClosureAbortedError> lost;
  try {
    data.wait(soon());
  } catch (const ClosureAbortedError& error) {
    lost = error;
  }
  REQUIRE(lost);
  CHECK(lost->code() == ErrorCode::kAborted);
  CHECK(lost->details().task == "worker:0");
  CHECK(lost->details().origin == ErrorOrigin::kWorker);
  CHECK(lost->text().find("worker:0") != std::string::npos);
  CHECK(lost->text().find("ps:") == std::string::npos);

  workers->start(0);

  CHECK(value.fetch(soon()) == 1);
  coordinator.join(soon());
  CHECK(data.states()[0].kind == PerWorkerState::Kind::kReady);
}

}  // namespace
}  // namespace processes_test
