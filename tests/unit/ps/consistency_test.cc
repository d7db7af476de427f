// What one server's shards do when a plan bounds how far closures may run ahead of each other.
#include <future>
#include <thread>

#include "common/storage/file_system.h"
#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "ps/step_signal.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

using Catch::Matchers::Contains;

v1::JobPlan Stepwise(std::uint64_t gradients, std::uint64_t staleness, std::uint64_t total = 10) {
  auto plan = Plan({Variable("w", {2})}, Sgd(1));
  plan.set_total_steps(total);
  plan.mutable_steps()->set_gradients(gradients);
  plan.mutable_steps()->set_staleness(staleness);
  return plan;
}

struct OneShard {
  explicit OneShard(const v1::JobPlan& plan, const std::string& restore_from = "")
      : shards(std::move(JobShards::Create(plan, 0, restore_from, pool)).value()) {}

  std::optional<std::uint64_t> Missing(std::uint64_t closure) {
    const auto missing = shards->Missing(0, ClosureId(closure));
    return missing ? std::optional(missing->value()) : std::nullopt;
  }
  Result<ApplyOutcome> Push(std::uint64_t closure, float gradient, std::uint64_t attempt = 1) {
    return shards->ApplyDense(0, {ClosureId(closure), Attempt(attempt)},
                              std::vector<float>(2, gradient));
  }
  float Value() {
    std::vector<float> values(2);
    REQUIRE(shards->ReadDense(0, values).ok());
    return values[0];
  }
  v1::PsReport Report() const {
    v1::PsReport report;
    shards->Report(report);
    return report;
  }
  Status Save(std::uint64_t step) {
    return shards->Save(step, folder / std::to_string(step), storage::RealFileSystem()).status();
  }

  muster::testing::TempFolder folder;
  ApplyPool pool{1};
  std::shared_ptr<JobShards> shards;
};

TEST_CASE("a synchronous step is one update, made when a closure of a later step comes",
          "[ps][unit]") {
  OneShard one(Stepwise(3, 0));
  REQUIRE(one.Push(2, 2).ok());
  REQUIRE(one.Push(1, 1).ok());
  CHECK(one.Missing(4) == 3U);
  REQUIRE(one.Push(3, 4).ok());
  CHECK(one.Report().staged_bytes() > 0);

  // A closure of the step that runs again reads what it has read before.
  CHECK(one.Missing(1) == std::nullopt);
  CHECK(one.Value() == 0);
  CHECK(one.Report().shards(0).version() == 0);
  CHECK(one.Report().shards(0).watermark() == 3);

  CHECK(one.Missing(4) == std::nullopt);
  CHECK(one.Value() == -7);
  CHECK(one.Report().shards(0).version() == 3);
  CHECK(one.Missing(7) == 4U);
  // And one of a step that is over finds it over.
  CHECK(one.Missing(3) == std::nullopt);
  CHECK(one.Push(3, 100, 2).value() == ApplyOutcome::kDuplicate);
}

TEST_CASE("a gradient counts once in its step however often it is pushed", "[ps][unit]") {
  OneShard one(Stepwise(2, 0));
  REQUIRE(one.Push(1, 1).value() == ApplyOutcome::kApplied);
  REQUIRE(one.Push(1, 1).value() == ApplyOutcome::kDuplicate);
  REQUIRE(one.Push(1, 1, 5).value() == ApplyOutcome::kDuplicate);
  REQUIRE(one.Push(2, 1).ok());
  CHECK(one.Missing(3) == std::nullopt);
  CHECK(one.Value() == -2);
}

TEST_CASE("a push of a later synchronous step waits outside for the step before it", "[ps][unit]") {
  OneShard one(Stepwise(2, 0));
  REQUIRE(one.Push(1, 1).ok());
  CHECK(one.Missing(3) == 2U);
  const auto early = one.Push(3, 1);
  CHECK(early.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(Message(early.status()), Contains("closure 3 of step 2 came before step 1 was over"));
  REQUIRE(one.Push(2, 1).ok());
  REQUIRE(one.Missing(3) == std::nullopt);
  CHECK(one.Push(3, 1).value() == ApplyOutcome::kApplied);
}

TEST_CASE("the last synchronous step has what closures are left", "[ps][unit]") {
  OneShard one(Stepwise(4, 0, 6));
  for (const std::uint64_t closure : {1, 2, 3, 4}) REQUIRE(one.Push(closure, 1).ok());
  REQUIRE(one.Missing(5) == std::nullopt);
  REQUIRE(one.Push(6, 1).ok());
  REQUIRE(one.Push(5, 1).ok());
  // An evaluation reads all that is complete.
  CHECK(one.Missing(0) == std::nullopt);
  CHECK(one.Value() == -6);
  CHECK(one.Save(6).ok());
}

TEST_CASE("who reads for no closure waits for nothing and sees whole steps", "[ps][unit]") {
  OneShard one(Stepwise(2, 0));
  REQUIRE(one.Push(1, 1).ok());
  CHECK(one.Missing(0) == std::nullopt);
  CHECK(one.Value() == 0);
  REQUIRE(one.Push(2, 1).ok());
  CHECK(one.Missing(0) == std::nullopt);
  CHECK(one.Value() == -2);
}

TEST_CASE("a synchronous job is saved at the end of a step, and goes on from there", "[ps][unit]") {
  OneShard one(Stepwise(2, 0));
  for (const std::uint64_t closure : {1, 2}) REQUIRE(one.Push(closure, 1).ok());
  REQUIRE(one.Missing(3) == std::nullopt);
  REQUIRE(one.Push(3, 1).ok());

  const Status cut = one.Save(3);
  CHECK(cut.code() == StatusCode::kFailedPrecondition);
  CHECK_THAT(Message(cut),
             Contains("made of closures 1 to 2, and 1 more are only a part of their"));

  REQUIRE(one.Push(4, 1).ok());
  CHECK(one.Save(4).ok());
  CHECK(one.Value() == -4);
  CHECK(one.Report().shards(0).version() == 4);
}

TEST_CASE("a new view has nothing of a step that was under way", "[ps][unit]") {
  auto plan = Stepwise(2, 0);
  OneShard before(plan);
  REQUIRE(before.Push(1, 1).ok());
  plan.set_view(2);
  OneShard after(plan);
  CHECK(after.Report().shards(0).watermark() == 0);
  REQUIRE(after.Push(2, 1).ok());
  CHECK(after.Missing(3) == 1U);
}

TEST_CASE("an initial value is given before the first gradient, also a staged one", "[ps][unit]") {
  OneShard one(Stepwise(2, 0));
  REQUIRE(one.shards->Assign(0, std::vector<float>{5, 5}).ok());
  REQUIRE(one.Push(2, 1).ok());
  CHECK(one.shards->Assign(0, std::vector<float>{6, 6}).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("updates of a synchronous job are counted by step, rates by closure", "[ps][unit]") {
  auto adam = Sgd(0.1);
  adam.set_kind(v1::OPTIMIZER_KIND_ADAM);
  adam.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_STEP);
  adam.mutable_schedule()->set_step_size(4);
  adam.mutable_schedule()->set_gamma(0.5);
  auto in_twos = Stepwise(2, 0);
  *in_twos.mutable_optimizer() = adam;
  OneShard two(in_twos);
  // The same as updates one by one, each with the rate of the second of its closures.
  adam.mutable_schedule()->set_step_size(2);
  auto in_ones = Stepwise(1, 0);
  *in_ones.mutable_optimizer() = adam;
  OneShard whole(in_ones);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const auto gradient = static_cast<float>(step);
    REQUIRE(two.Missing(2 * step - 1) == std::nullopt);
    REQUIRE(two.Push(2 * step - 1, gradient).ok());
    REQUIRE(two.Push(2 * step, 1).ok());
    REQUIRE(whole.Missing(step) == std::nullopt);
    REQUIRE(whole.Push(step, gradient + 1).ok());
  }
  REQUIRE(two.Missing(0) == std::nullopt);
  REQUIRE(whole.Missing(0) == std::nullopt);
  CHECK(two.Value() == whole.Value());
  CHECK(two.Value() != 0);
}

TEST_CASE("with staleness k updates are made as they come, and a read waits for all but k steps",
          "[ps][unit]") {
  OneShard one(Stepwise(2, 1));
  REQUIRE(one.Push(2, 1).ok());
  CHECK(one.Value() == -1);
  CHECK(one.Report().staged_bytes() == 0);
  CHECK(one.Missing(4) == std::nullopt);
  CHECK(one.Missing(5) == 1U);
  REQUIRE(one.Push(1, 1).ok());
  CHECK(one.Missing(5) == std::nullopt);
  CHECK(one.Missing(7) == 3U);
  CHECK(one.Missing(0) == std::nullopt);
}

TEST_CASE("without a bound nothing waits", "[ps][unit]") {
  OneShard one(Plan({Variable("w", {2})}, Sgd(1)));
  CHECK(one.shards->step_signal() == nullptr);
  CHECK(one.Missing(1'000) == std::nullopt);
}

TEST_CASE("who waits for a step is woken by the push that it lacks", "[ps][unit]") {
  const std::uint64_t staleness = GENERATE(0, 1);
  OneShard one(Stepwise(1, staleness));
  const std::uint64_t waiting = 2 + staleness;
  std::promise<void> looked;
  auto waited = std::async(std::launch::async, [&] {
    bool first = true;
    return one.shards->step_signal()->WaitUntil(
        std::chrono::steady_clock::now() + std::chrono::minutes(1), [&] {
          const bool met = !one.Missing(waiting).has_value();
          if (std::exchange(first, false)) looked.set_value();
          return met;
        });
  });
  looked.get_future().wait();
  REQUIRE(one.Push(1, 1).ok());
  CHECK(waited.get());
  CHECK_FALSE(
      one.shards->step_signal()->WaitUntil(std::chrono::steady_clock::now(), [] { return false; }));
}

TEST_CASE("gradients of a step that would not fit into memory are refused before it begins",
          "[ps][unit]") {
  ApplyPool pool(1);
  auto plan = Stepwise(4'096, 0, 1 << 20);
  *plan.mutable_variables(0) = Plan({Variable("w", {1 << 28})}, Sgd(1)).variables(0);
  const auto made = JobShards::Create(plan, 0, "", pool);
  CHECK(made.status().code() == StatusCode::kResourceExhausted);
  CHECK_THAT(Message(made.status()), Contains("and the gradients of a step"));
  CHECK_THAT(Message(made.status()), Contains("fewer gradients_per_step"));
}

}  // namespace
}  // namespace muster::ps
