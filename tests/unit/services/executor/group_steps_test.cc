// Steps that several executors make together: the same numbers on any number of them, whoever is
// lost and whoever joins. The members are objects of one process, with real links between them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <limits>
#include <thread>
#include <utility>

#include "common/data/batch_source.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/executor/steps_fixture.h"

namespace muster::executor {
namespace {

constexpr auto kTogether = v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED;

// Every fifth batch is a partial one.
data::Element BatchOf(std::uint64_t step) { return Batch(step, step % 5 == 0 ? 3 : kBatch); }

constexpr std::uint64_t kHeldStep = 3;

class Batches : public data::BatchSource {
 public:
  // The last example of the batch `poisoned` has no label; 0: of none. That of kHeldStep comes when
  // `held` is there.
  Batches(std::uint64_t poisoned, std::shared_future<void> held)
      : poisoned_(poisoned), held_(std::move(held)) {}
  std::uint64_t examples() const override { return 1'000; }
  std::uint64_t batches_per_epoch() const override { return 1'000; }
  const std::vector<data::ColumnInfo>& columns() const override { return columns_; }
  std::uint64_t bad_records() const override { return 0; }
  Result<data::Element> Batch(std::uint64_t closure) override {
    if (closure == kHeldStep && held_.valid()) held_.wait();
    data::Element batch = BatchOf(closure);
    if (closure == poisoned_) {
      std::vector<float> y(kBatch, 1.0f);
      y.back() = std::numeric_limits<float>::quiet_NaN();
      batch.columns[2] = data::MakeColumn<float>("y", {kBatch, 1}, y);
    }
    return batch;
  }

 private:
  const std::uint64_t poisoned_;
  const std::shared_future<void> held_;
  const std::vector<data::ColumnInfo> columns_ = Columns();
};

class Worker {
 public:
  // `joins`: without variables, as one that comes when others have made steps.
  Worker(const v1::JobSpec& spec, std::uint64_t number, bool joins = false,
         std::uint64_t poisoned = 0, std::shared_future<void> held = {})
      : number_(number),
        reader_(
            std::make_unique<BatchReader>(std::make_unique<Batches>(poisoned, std::move(held)))) {
    v1::ExecutorStart start = StartOf(spec);
    start.set_threads(1);
    start.mutable_start()->set_joins(joins);
    start.mutable_start()->mutable_program()->set_key("a-key");
    start.mutable_start()->mutable_program()->set_incarnation(number);
    auto steps = OpenGroupSteps(start, Columns(), *reader_, [this] { ++over_; });
    CAPTURE(ToString(steps.status()));
    REQUIRE(steps.ok());
    steps_ = *std::move(steps);
  }
  std::uint64_t number() const { return number_; }
  Steps& steps() const { return *steps_; }
  // How often it has said that its group is over.
  int over() const { return over_; }
  // As its process ends: its links with it.
  void Die() { steps_.reset(); }

 private:
  std::uint64_t number_;
  std::atomic<int> over_{0};
  std::unique_ptr<BatchReader> reader_;
  std::unique_ptr<Steps> steps_;
};

// As the coordinator asks them, the first one leads.
std::vector<Result<v1::GroupReport>> AskToJoin(const std::vector<Worker*>& workers,
                                               std::uint64_t generation, bool lost) {
  v1::JoinGroup request;
  request.set_generation(generation);
  request.set_lost(lost);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    v1::GroupMember& member = *request.add_members();
    member.mutable_task()->set_type("worker");
    member.mutable_task()->set_index(static_cast<std::uint32_t>(workers[i]->number()));
    member.set_executor(workers[i]->number());
    member.set_address(workers[i]->steps().group_address());
  }
  std::vector<Result<v1::GroupReport>> reports(workers.size(), Unknown("no answer"));
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    threads.emplace_back([&, i, own = request]() mutable {
      own.set_rank(static_cast<std::uint32_t>(i));
      reports[i] = workers[i]->steps().Join(own);
    });
  }
  return threads.clear(), reports;
}

void Join(const std::vector<Worker*>& workers, std::uint64_t generation, bool lost = false) {
  for (const auto& report : AskToJoin(workers, generation, lost)) {
    CAPTURE(generation, ToString(report.status()));
    REQUIRE(report.ok());
  }
}

std::vector<double> LossesOf(Worker& leader, std::uint64_t first, std::uint64_t last) {
  std::vector<double> losses;
  for (std::uint64_t step = first; step <= last; ++step) {
    losses.push_back(LossOf(leader.steps(), step, BatchOf(step)));
  }
  return losses;
}

TEST_CASE("workers that make steps together make those of one device", "[executor][unit]") {
  const auto one = Losses(*Open(Spec(kOneDevice, 1)), 1, 20);
  for (const auto& [workers, devices] : {std::pair(1, 1), {2, 1}, {4, 1}, {2, 2}}) {
    CAPTURE(workers, devices);
    const v1::JobSpec spec = Spec(kTogether, static_cast<std::uint32_t>(devices));
    std::vector<std::unique_ptr<Worker>> owned;
    std::vector<Worker*> all;
    for (int i = 0; i < workers; ++i) {
      owned.push_back(std::make_unique<Worker>(spec, static_cast<std::uint64_t>(i) + 1));
      all.push_back(owned.back().get());
    }
    Join(all, 1);
    const std::vector<double> together = LossesOf(*all[0], 1, 20);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(together[i] - one[i]) <= 1e-5 * std::max(1.0, one[i]));
    }
  }
}

TEST_CASE(
    "deterministic: the same bits on any number of workers, also when some die and others join",
    "[executor][unit]") {
  const testing::TempFolder folder;
  v1::JobSpec spec = Spec(kOneDevice, 1, true);
  // Random numbers belong to the part, too.
  std::string forward = spec.model().forward();
  forward = forward.substr(0, forward.find("    return")) +
            "    return torch.mm(torch.dropout(hidden, 0.25, self.training), self.w2)\n";
  spec.mutable_model()->set_forward(forward);
  const auto alone = Open(spec);
  const std::vector<double> expected = Losses(*alone, 1, 80);
  const auto tensors = TensorsOf(*alone, 80, folder / "alone");

  spec.mutable_strategy()->set_kind(kTogether);
  Worker a(spec, 1), b(spec, 2), c(spec, 3);
  Join({&a, &b, &c}, 1);
  std::vector<double> losses = LossesOf(a, 1, 20);
  const auto go_on = [&](Worker& leader, std::uint64_t first, std::uint64_t last) {
    for (const double loss : LossesOf(leader, first, last)) losses.push_back(loss);
  };
  b.Die();
  Join({&a, &c}, 2, /*lost=*/true);
  go_on(a, 21, 40);
  // One that knows nothing yet comes in; then the leader goes.
  Worker d(spec, 4, /*joins=*/true);
  Join({&a, &c, &d}, 3);
  go_on(a, 41, 60);
  a.Die();
  Join({&c, &d}, 4, /*lost=*/true);
  go_on(c, 61, 70);
  c.Die();
  Join({&d}, 5, /*lost=*/true);
  go_on(d, 71, 80);

  CHECK((losses == expected));
  CHECK((TensorsOf(d.steps(), 80, folder / "d") == tensors));
}

TEST_CASE("a member that dies in the midst of a step costs nothing but that attempt",
          "[executor][unit]") {
  const auto expected = Losses(*Open(Spec(kOneDevice, 1, true)), 1, 30);
  const v1::JobSpec spec = Spec(kTogether, 1, true);
  Worker a(spec, 1), b(spec, 2);
  Join({&a, &b}, 1);
  std::vector<double> losses = LossesOf(a, 1, 10);
  Status joined;
  {
    // Whatever it is doing while the leader makes the next steps.
    std::jthread killer([&] { b.Die(); });
    std::jthread coordinator([&] {
      killer.join();
      joined = AskToJoin({&a}, 2, /*lost=*/true)[0].status();
    });
    for (const double loss : LossesOf(a, 11, 30)) losses.push_back(loss);
  }
  CAPTURE(ToString(joined));
  CHECK(joined.ok());
  CHECK((losses == expected));
}

TEST_CASE("a member that stands still in its data can be told from those that wait for it",
          "[executor][unit]") {
  const v1::JobSpec spec = Spec(kTogether, 1);
  std::promise<void> made;
  Worker a(spec, 1), b(spec, 2);
  Worker c(spec, 3, /*joins=*/false, /*poisoned=*/0, made.get_future().share());
  Status third;
  std::jthread leader;
  // Ends first: whatever fails here, nobody is held any more.
  std::promise<void> gate = std::move(made);
  const auto comes_to = [](const Worker& worker, std::uint64_t step) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto there = [&] {
      const Steps::Part part = worker.steps().part();
      return part.number == kHeldStep && part.step == step;
    };
    while (!there() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return there();
  };
  Join({&a, &b, &c}, 1);
  CHECK(LossesOf(a, 1, kHeldStep - 1).size() == kHeldStep - 1);

  leader = std::jthread([&] {
    engine::StepTimes times;
    third = a.steps().Train(kHeldStep, Attempt(1), BatchOf(kHeldStep), times).status();
  });

  CHECK(comes_to(c, kHeldStep));
  // It has computed its part, and waits.
  CHECK(comes_to(b, 0));
  CHECK(c.steps().part().step == kHeldStep);
  // The driver knows of the leader's closure.
  CHECK(a.steps().part().number == 0);
  gate.set_value();
  leader.join();
  CHECK(ToString(third) == "OK");
  CHECK(comes_to(c, 0));
}

TEST_CASE("without variables nobody makes a step, and it is said", "[executor][unit]") {
  const v1::JobSpec spec = Spec(kTogether, 1);
  Worker a(spec, 1, /*joins=*/true), b(spec, 2, /*joins=*/true);
  const auto reports = AskToJoin({&a, &b}, 1, false);
  for (const auto& report : reports) {
    REQUIRE(report.ok());
    CHECK_FALSE(report->has_variables());
  }
  engine::StepTimes times;
  const Status status = a.steps().Train(1, Attempt(1), BatchOf(1), times).status();
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(Message(status).find("no member of the group has the job's variables") !=
        std::string::npos);
}

TEST_CASE("a group that does not find together says who has not come; an older one is refused",
          "[executor][unit]") {
  const v1::JobSpec spec = Spec(kTogether, 1);
  Worker a(spec, 1), b(spec, 2);
  Join({&a, &b}, 2);
  CHECK(AskToJoin({&a, &b}, 1, false)[0].status().code() == StatusCode::kAborted);
  v1::JoinGroup request;
  request.set_generation(3);
  for (Worker* worker : {&a, &b}) {
    v1::GroupMember& member = *request.add_members();
    member.mutable_task()->set_type("worker");
    member.mutable_task()->set_index(static_cast<std::uint32_t>(worker->number()));
    member.set_executor(worker->number());
    member.set_address(worker->steps().group_address());
  }
  const Status alone = a.steps().Join(request).status();
  CHECK(alone.code() == StatusCode::kUnavailable);
  CHECK(Message(alone).find("worker:2") != std::string::npos);
  request.mutable_members(0)->set_executor(7);
  CHECK(a.steps().Join(request).status().code() == StatusCode::kAborted);
  request.mutable_members(0)->set_executor(a.number());
  for (const std::uint32_t rank : {2U, std::numeric_limits<std::uint32_t>::max()}) {
    request.set_rank(rank);
    CHECK(a.steps().Join(request).status().code() == StatusCode::kAborted);
  }
  // The group before it goes on.
  CHECK_FALSE(LossesOf(a, 1, 3).empty());
}

TEST_CASE("an error in one member's part of the batch is the step's error on all",
          "[executor][unit]") {
  const v1::JobSpec spec = Spec(kTogether, 1);
  Worker a(spec, 1), b(spec, 2, /*joins=*/false, /*poisoned=*/3);
  Join({&a, &b}, 1);
  CHECK(LossesOf(a, 1, 2).size() == 2);
  engine::StepTimes times;
  const Status status = a.steps().Train(3, Attempt(1), BatchOf(3), times).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("step 3") != std::string::npos);
  CHECK(Message(status).find("column \"y\"") != std::string::npos);
}

}  // namespace
}  // namespace muster::executor
