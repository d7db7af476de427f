// Calls that are begun, and carried out in their order while their member does something else.
#include "collectives/queued_group.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/no_threads.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

using Floats = std::shared_ptr<std::vector<float>>;

Floats Filled(std::size_t count, float value) {
  return std::make_shared<std::vector<float>>(count, value);
}

// A sum in place, which keeps its buffer.
Pending StartSum(Group& group, const Floats& values, Timeout timeout = {}) {
  return group.Start([values, timeout](Group& members) {
    const ReduceBuffer buffer{.type = DType::kFloat32,
                              .shape = {static_cast<std::int64_t>(values->size())},
                              .in = values->data(),
                              .out = values->data()};
    return members.AllReduce(Reduction::kSum, {&buffer, 1}, timeout);
  });
}

Status Sum(Group& group, const Floats& values) {
  const ReduceBuffer buffer{.type = DType::kFloat32,
                            .shape = {static_cast<std::int64_t>(values->size())},
                            .in = values->data(),
                            .out = values->data()};
  return group.AllReduce(Reduction::kSum, {&buffer, 1});
}

// What Formed() gives, with the queue before it.
std::unique_ptr<QueuedGroup> Form(const Address& address, int rank,
                                  std::size_t most = QueuedGroup::kMostInFlight) {
  auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
  if (!group.ok()) {
    FAIL_CHECK(ToString(group.status()));
    return nullptr;
  }
  return std::make_unique<QueuedGroup>(std::shared_ptr<Group>(*std::move(group)), most);
}

// InGroup(), each behind a queue.
void InQueues(const Address& address, const std::function<void(QueuedGroup&)>& member) {
  std::vector<std::thread> threads;
  for (int r = 0; r < address.size(); ++r) {
    threads.emplace_back([&, r] {
      if (const auto group = Form(address, r)) member(*group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

bool Has(const Status& status, StatusCode code, const std::string& text) {
  return status.code() == code && Message(status).find(text) != std::string::npos;
}

TEST_CASE("started calls are made in their order, with others in between, while members go on",
          "[collectives][process][COL-01]") {
  const int size = GENERATE(1, 2, 4);
  Steps begun;
  InQueues(Address(size), [&](QueuedGroup& group) {
    const auto rank = static_cast<float>(group.rank());
    const auto n = static_cast<float>(size);
    const float ranks = n * (n - 1) / 2;
    // The first member begins before any other comes, which a call that waits could not.
    if (group.rank() > 0) begun.Await();
    std::vector<std::pair<Floats, Pending>> started;
    for (std::size_t i = 1; i <= 20; ++i) {
      const Floats values = Filled(i * i * 50, rank + static_cast<float>(i));
      started.emplace_back(values, StartSum(group, values));
    }
    if (group.rank() == 0) {
      for (int r = 1; r < size; ++r) begun.Done();
    }
    // What is called now comes after what was begun, and before what is begun then.
    const Floats called = Filled(7, rank);
    if (const Status status = Sum(group, called); !status.ok()) FAIL_CHECK(ToString(status));
    for (const auto& [values, pending] : started) {
      if (!pending.Done()) FAIL_CHECK("a later call has ended before");
    }
    const Floats last = Filled(100'000, 1.0f);
    const Pending pending = StartSum(group, last);
    if (const Status status = group.Barrier(); !status.ok()) FAIL_CHECK(ToString(status));
    if (!pending.Wait().ok() || (*last)[99'999] != n) FAIL_CHECK("the last one");
    if ((*called)[6] != ranks) FAIL_CHECK("called in between: " << (*called)[6]);
    for (std::size_t i = 1; i <= 20; ++i) {
      const auto& [values, ended] = started[i - 1];
      if (!ended.Wait().ok() || values->back() != ranks + n * static_cast<float>(i)) {
        FAIL_CHECK("sum " << i << ": " << values->back());
      }
    }
  });
}

TEST_CASE("a call is begun though no thread can be had for it", "[collectives][process][faults]") {
  const Address address(1);
  const auto group = Form(address, 0);
  REQUIRE(group != nullptr);
  const Floats values = Filled(3, 2);
  const testing::NoThreads none;

  CHECK(StartSum(*group, values).Wait() == Ok());
  CHECK(Sum(*group, values) == Ok());
}

TEST_CASE("all kinds of calls can be begun, several as one", "[collectives][process]") {
  InQueues(Address(2), [](QueuedGroup& group) {
    const std::int64_t mine = group.rank() + 10;
    const auto told = std::make_shared<std::vector<std::vector<std::int64_t>>>();
    const auto data = Filled(3, static_cast<float>(group.rank()));
    const Pending pending = group.Start([=](Group& members) -> Status {
      MUSTER_TRY_ASSIGN(*told, members.Exchange("ranks", {&mine, 1}));
      MUSTER_TRY(members.Broadcast(std::as_writable_bytes(std::span(*data)), 1));
      return members.Barrier();
    });
    const Status status = pending.Wait();
    if (!status.ok()) FAIL_CHECK(ToString(status));
    if (*told != std::vector<std::vector<std::int64_t>>{{10}, {11}}) FAIL_CHECK("exchange");
    if ((*data)[2] != 1.0f) FAIL_CHECK("broadcast");
  });
}

TEST_CASE("a started call that a member does not come to ends at its deadline, and those behind it",
          "[collectives][process][COL-10]") {
  Steps over;
  InQueues(Address(3), [&](QueuedGroup& group) {
    if (group.rank() == 2) {
      over.Await();
      over.Await();
      return;
    }
    std::vector<Pending> started;
    for (std::size_t i = 1; i <= 3; ++i) {
      started.push_back(StartSum(group, Filled(i, 1.0f), std::chrono::milliseconds(800)));
    }
    const Status first = started[0].Wait();
    if (!Has(first, StatusCode::kDeadlineExceeded, "operation 1, all_reduce SUM of float32[1]") ||
        !Has(first, StatusCode::kDeadlineExceeded, "for worker:2 (which has not begun it)")) {
      FAIL_CHECK(ToString(first));
    }
    for (const std::size_t i : {1U, 2U}) {
      const Status later = started[i].Wait();
      if (!Has(later, StatusCode::kDeadlineExceeded, "worker:2")) FAIL_CHECK(ToString(later));
    }
    over.Done();
  });
}

TEST_CASE("a member that begins another call than the others is all members' error",
          "[collectives][process][COL-12]") {
  InQueues(Address(2), [](QueuedGroup& group) {
    // In another order, or of another shape: both are found.
    const Pending first = StartSum(group, Filled(group.rank() == 0 ? 3 : 4, 1.0f));
    const Pending second = StartSum(group, Filled(group.rank() == 0 ? 4 : 3, 1.0f));
    const Status status = first.Wait();
    if (!Has(status, StatusCode::kInvalidArgument, "Shape mismatch")) FAIL_CHECK(ToString(status));
    if (second.Wait().ok()) FAIL_CHECK("the group goes on");
  });
}

TEST_CASE("a call that nobody waits for is carried out, and its error is the next call's",
          "[collectives][process]") {
  InQueues(Address(2), [](QueuedGroup& group) {
    const Floats values = Filled(5, 1.0f);
    (void)StartSum(group, values);
    Status status = group.Barrier();
    if (!status.ok() || values->back() != 2.0f) FAIL_CHECK(ToString(status));
    (void)StartSum(group, Filled(group.rank() == 0 ? 3 : 4, 1.0f));
    for (int call = 0; call < 2; ++call) {
      status = group.Barrier();
      if (!Has(status, StatusCode::kInvalidArgument, "Shape mismatch")) {
        FAIL_CHECK(ToString(status));
      }
    }
    status = StartSum(group, values).Wait();
    if (!Has(status, StatusCode::kInvalidArgument, "Shape mismatch")) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE("a group that ends carries out what was begun, and handles outlive it",
          "[collectives][process]") {
  const Address address(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      std::vector<std::pair<Floats, Pending>> started;
      {
        const auto group = Form(address, r);
        for (std::size_t i = 0; group != nullptr && i < 30; ++i) {
          const Floats values = Filled(20'000, static_cast<float>(i));
          started.emplace_back(values, StartSum(*group, values));
        }
      }
      for (std::size_t i = 0; i < started.size(); ++i) {
        const auto& [values, pending] = started[i];
        if (!pending.Done()) FAIL_CHECK("not ended");
        if (!pending.Wait().ok() || values->back() != 3 * static_cast<float>(i)) {
          FAIL_CHECK(i << ": " << ToString(pending.Wait()));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("what one member aborts with ends what others have begun", "[collectives][process]") {
  Steps begun;
  InQueues(Address(2), [&](QueuedGroup& group) {
    if (group.rank() == 0) {
      begun.Await();
      group.Abort(Aborted("the data has ended early"));
      return;
    }
    const Pending first = StartSum(group, Filled(3, 1.0f));
    const Pending second = StartSum(group, Filled(3, 1.0f));
    begun.Done();
    for (const Pending& pending : {first, second}) {
      const Status status = pending.Wait();
      if (Message(status).find("the data has ended early") == std::string::npos) {
        FAIL_CHECK(ToString(status));
      }
    }
  });
}

TEST_CASE("no more calls are in flight than the queue holds", "[collectives]") {
  class Alone final : public Group {
   public:
    int rank() const override { return 0; }
    int size() const override { return 1; }
    Status AllReduce(Reduction, std::span<const ReduceBuffer>, Timeout) override { return Ok(); }
    Result<std::vector<std::vector<std::int64_t>>> Exchange(std::string_view,
                                                            std::span<const std::int64_t>,
                                                            Timeout) override {
      return std::vector<std::vector<std::int64_t>>{};
    }
    Status AllGather(std::span<const GatherBuffer>, Timeout) override { return Ok(); }
    Status Broadcast(std::span<std::byte>, int, Timeout) override { return Ok(); }
    Status ReduceScatter(Reduction, const ScatterBuffer&, Timeout) override { return Ok(); }
    Status AllToAll(std::span<const std::span<const std::byte>>,
                    std::span<const std::span<std::byte>>, Timeout) override {
      return Ok();
    }
    Status Barrier(Timeout) override { return Ok(); }
    void Abort(const Status&) override {}
  };
  QueuedGroup group(std::make_shared<Alone>(), 3);
  std::atomic<int> begun{0}, ended{0};
  // The first call lasts until the queue is full, and a while longer.
  const auto call = [&](Group&) {
    while (begun.load() < 3) std::this_thread::yield();
    for (int i = 0; ended.load() == 0 && i < 1'000; ++i) std::this_thread::yield();
    ++ended;
    return Ok();
  };
  int most = 0;
  Pending last;
  for (int i = 0; i < 20; ++i) {
    last = group.Start(call);
    ++begun;
    most = std::max(most, begun.load() - ended.load());
  }
  CHECK(last.Wait().ok());
  CHECK(ended == 20);
  CHECK(most <= 3);
}

TEST_CASE("a member that is killed ends what all others have begun",
          "[collectives][process][faults]") {
  const Address address(3);
  Steps running;
  std::vector<std::unique_ptr<Process>> members;
  for (int r = 0; r < 3; ++r) {
    members.push_back(std::make_unique<Process>([&, r]() -> std::string {
      auto formed = FormGroup(address.Of(r), address.listeners[static_cast<std::size_t>(r)]);
      if (!formed.ok()) return ToString(formed.status());
      QueuedGroup group(std::shared_ptr<Group>(*std::move(formed)), 8);
      std::vector<Pending> started;
      for (int i = 0; i < 30; ++i) started.push_back(StartSum(group, Filled(200'000, 1.0f)));
      running.Done();
      // Until the group is over, with more in flight.
      while (started.back().Wait().ok()) {
        started.clear();
        for (int i = 0; i < 8; ++i) started.push_back(StartSum(group, Filled(200'000, 1.0f)));
      }
      std::string told;
      for (const Pending& pending : started) {
        if (const Status status = pending.Wait(); !status.ok()) told += ToString(status) + "\n";
      }
      return told + ToString(group.Barrier());
    }));
  }
  for (int r = 0; r < 3; ++r) running.Await();
  members[1]->Signal(SIGKILL);
  for (const int survivor : {0, 2}) {
    const std::string told = members[static_cast<std::size_t>(survivor)]->Told();
    INFO(told);
    CHECK(told.find("UNAVAILABLE: ") == 0);
    CHECK(told.find("all_reduce SUM of float32[200000]") != std::string::npos);
    CHECK(told.find("worker:1 was lost") != std::string::npos);
    CHECK(told.find("barrier") != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::collectives
