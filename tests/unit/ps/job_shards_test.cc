#include "ps/job_shards.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <limits>
#include <random>
#include <thread>

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/storage/checkpoint.h"
#include "ps/apply_pool.h"
#include "tests/support/catch.h"
#include "tests/support/fake_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

using Catch::Matchers::Contains;

std::vector<float> Read(const JobShards& shards, std::uint32_t shard, std::size_t floats) {
  std::vector<float> values(floats);
  REQUIRE(shards.ReadDense(shard, values).ok());
  return values;
}

std::uint64_t VersionOf(const JobShards& shards, std::uint32_t shard) {
  v1::PsReport report;
  shards.Report(report);
  return report.shards(static_cast<int>(shard)).version();
}

struct Fixture {
  ApplyPool pool{1};
  std::shared_ptr<JobShards> Make(const v1::JobPlan& plan, std::uint32_t ps = 0,
                                  const std::string& restore_from = "") {
    auto made = JobShards::Create(plan, ps, restore_from, pool);
    INFO(ToString(made.status()));
    REQUIRE(made.ok());
    return *std::move(made);
  }
};

TEST_CASE_METHOD(Fixture, "a server holds its shards in the order of variable and row",
                 "[ps][unit]") {
  const auto plan = Plan({Variable("b", {5, 3}), Variable("a", {4}), Variable("s", {})}, Sgd(1), 2);

  const auto shards = Make(plan, 0);

  REQUIRE(shards->shards().size() == 3);
  CHECK(shards->shards()[1].variable == 1);
  CHECK(shards->shards()[1].row_offset == 0);
  CHECK(shards->shards()[1].rows == 3);
  CHECK(shards->shards()[1].row_elements == 3);
  CHECK(shards->shards()[2].rows == 1);
  CHECK(Make(plan, 1)->shards().size() == 2);
  CHECK(shards->view() == ViewId(1));
}

TEST_CASE_METHOD(Fixture, "a value that changes while it is looked at leads nowhere else",
                 "[ps][unit]") {
  constexpr std::size_t kPage = 4096;
  const auto shards = Make(Plan({Variable("w", {4})}, Sgd(1)));
  // A worker's memory: the gradient is the last of it, and that worker writes to it all the time.
  void* pages =
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(::mprotect(static_cast<std::byte*>(pages) + kPage, kPage, PROT_NONE) == 0);
  auto* values = reinterpret_cast<float*>(static_cast<std::byte*>(pages) + kPage) - 4;
  const pid_t worker = ::fork();
  if (worker == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      const std::atomic_ref<float> last(values[3]);
      last = std::numeric_limits<float>::quiet_NaN();
      last = 0;
    }
  }
  REQUIRE(worker > 0);

  for (std::uint64_t closure = 1; closure <= 20'000; ++closure) {
    const auto outcome =
        shards->ApplyDense(0, Update(closure, 1), std::span<const float>(values, 4));
    if (!outcome.ok()) REQUIRE(outcome.status().code() == StatusCode::kInvalidArgument);
  }
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  ::munmap(pages, 2 * kPage);
}

TEST_CASE_METHOD(Fixture, "a push changes the values once, whatever comes again", "[ps][unit]") {
  const auto shards = Make(Plan({Variable("w", {2}, v1::INITIALIZER_KIND_ONES)}, Sgd(0.5)));

  CHECK(shards->ApplyDense(0, Update(1, 1), std::vector<float>{2, 4}).value() ==
        ApplyOutcome::kApplied);
  CHECK(shards->ApplyDense(0, Update(1, 1), std::vector<float>{2, 4}).value() ==
        ApplyOutcome::kDuplicate);
  CHECK(shards->ApplyDense(0, Update(1, 2), std::vector<float>{9, 9}).value() ==
        ApplyOutcome::kDuplicate);

  CHECK(Read(*shards, 0, 2) == std::vector<float>{0, -1});
  CHECK(VersionOf(*shards, 0) == 1);
  v1::PsReport report;
  shards->Report(report);
  CHECK(report.duplicates_refused() == 2);
  CHECK(report.pushes() == 3);
  CHECK(report.parameter_bytes() == 8);
  report.clear_shards();
  v1::PsReport totals;
  shards->ReportTotals(totals);
  CHECK(totals.SerializeAsString() == report.SerializeAsString());
}

TEST_CASE_METHOD(Fixture, "a gradient that is not finite changes nothing and is named",
                 "[ps][unit]") {
  const auto shards = Make(Plan({Variable("w1", {3, 2})}, Sgd(1)));
  std::vector<float> gradient{1, 1, 1, std::numeric_limits<float>::quiet_NaN(), 1, 1};

  const auto refused = shards->ApplyDense(0, Update(17, 1), gradient);

  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(Message(refused.status()),
             Contains("step 17: the gradient of w1 is nan in row 1, element 1"));
  CHECK(Read(*shards, 0, 6) == std::vector<float>(6));
  gradient[3] = -std::numeric_limits<float>::infinity();
  CHECK_FALSE(shards->ApplyDense(0, Update(17, 1), gradient).ok());
  gradient[3] = 1;
  CHECK(shards->ApplyDense(0, Update(17, 1), gradient).value() == ApplyOutcome::kApplied);
}

TEST_CASE_METHOD(Fixture, "a push of rows touches these rows alone", "[ps][unit]") {
  auto table = Variable("table", {1000, 3}, v1::INITIALIZER_KIND_ONES);
  table.set_embedding(true);
  auto adagrad = Sgd(1);
  adagrad.set_kind(v1::OPTIMIZER_KIND_ADAGRAD);
  const auto shards = Make(Plan({table}, adagrad));
  const std::vector<std::int64_t> ids{999, 0};

  REQUIRE(shards->ApplyRows(0, Update(1, 1), ids, std::vector<float>{1, 2, 3, 4, 5, 6}).ok());
  REQUIRE(shards->ApplyRows(0, Update(2, 1), {}, {}).value() == ApplyOutcome::kApplied);

  const std::vector<std::int64_t> all{0, 1, 998, 999};
  std::vector<float> rows(12);
  CHECK(shards->ReadRows(0, all, rows).value() == 2);
  CHECK(rows == std::vector<float>{0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0});
  muster::testing::TempFolder folder;
  const auto saved = shards->Save(2, folder.path(), storage::RealFileSystem()).value();
  REQUIRE(saved.slices_size() == 2);
  CHECK(saved.slices(1).name() == "table/slot/sum");
}

TEST_CASE_METHOD(Fixture, "bad requests say which variable and what is allowed", "[ps][unit]") {
  auto table = Variable("table", {10, 2});
  table.set_embedding(true);
  const auto shards = Make(Plan({table, Variable("w", {4})}, Sgd(1)));
  std::vector<float> two(2);
  std::vector<float> three(3);
  std::vector<float> twenty(20);
  const std::vector<std::int64_t> outside{10};
  const std::vector<std::int64_t> below{-1};

  CHECK(shards->ReadRows(0, outside, two).status().code() == StatusCode::kOutOfRange);
  CHECK(shards->ApplyRows(0, Update(1, 1), below, two).status().code() == StatusCode::kOutOfRange);
  CHECK(shards->ReadRows(0, outside, three).status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(Message(shards->ReadDense(0, twenty).status()), Contains("table is an embedding"));
  CHECK(shards->ApplyDense(0, Update(1, 1), std::vector<float>(20)).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(shards->ReadDense(1, two).status().code() == StatusCode::kInvalidArgument);
  CHECK(shards->ApplyDense(1, Update(1, 1), two).status().code() == StatusCode::kInvalidArgument);
  CHECK(shards->ReadDense(2, two).status().code() == StatusCode::kInvalidArgument);
  CHECK(shards->ApplyDense(1, Update(0, 1), std::vector<float>(4)).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE_METHOD(Fixture, "rows of a variable that is no embedding are not pushed, only marks are",
                 "[ps][unit]") {
  v1::JobPlan plan = Plan({Variable("w", {8})}, Sgd(1));
  const bool synchronous = GENERATE(false, true);
  if (synchronous) {
    plan.mutable_steps()->set_gradients(2);
    plan.mutable_steps()->set_staleness(0);
  }
  const auto shards = Make(plan);
  const std::vector<std::int64_t> ids{5, 6};

  const auto refused = shards->ApplyRows(0, Update(1, 1), ids, std::vector<float>{1, 1});
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(Message(refused.status()), Contains("variable w is no embedding; 2 rows"));

  CHECK(shards->ApplyRows(0, Update(1, 1), {}, {}).value() == ApplyOutcome::kApplied);
  CHECK(shards->ApplyDense(0, Update(2, 1), std::vector<float>(8, 1)).value() ==
        ApplyOutcome::kApplied);
  (void)shards->Missing(0, ClosureId(3));
  CHECK(Read(*shards, 0, 8) == std::vector<float>(8, -1));
}

TEST_CASE_METHOD(Fixture, "a value can be assigned before the first update only", "[ps][unit]") {
  const auto shards = Make(Plan({Variable("w", {2}, v1::INITIALIZER_KIND_ARCHIVE)}, Sgd(1)));

  REQUIRE(shards->Assign(0, std::vector<float>{3, 4}).ok());
  CHECK(Read(*shards, 0, 2) == std::vector<float>{3, 4});
  REQUIRE(shards->ApplyDense(0, Update(1, 1), std::vector<float>{1, 1}).ok());

  CHECK(shards->Assign(0, std::vector<float>{0, 0}).code() == StatusCode::kFailedPrecondition);
  CHECK(Read(*shards, 0, 2) == std::vector<float>{2, 3});
}

TEST_CASE_METHOD(Fixture, "a save needs the job to stand still at the step", "[ps][unit]") {
  muster::testing::TempFolder folder;
  const auto shards = Make(Plan({Variable("w", {1})}, Sgd(1)));
  const std::vector<float> one{1};
  REQUIRE(shards->ApplyDense(0, Update(1, 1), one).ok());

  CHECK(shards->Save(2, folder.path(), storage::RealFileSystem()).status().code() ==
        StatusCode::kFailedPrecondition);
  CHECK(shards->Save(0, folder.path(), storage::RealFileSystem()).status().code() ==
        StatusCode::kFailedPrecondition);
  CHECK(shards->Save(1, folder.path(), storage::RealFileSystem()).ok());
  REQUIRE(shards->ApplyDense(0, Update(3, 1), one).ok());
  CHECK(shards->Save(1, folder.path(), storage::RealFileSystem()).status().code() ==
        StatusCode::kFailedPrecondition);
}

// Files on a disk that stops answering before one of its calls, until it is released.
class StuckDisk final : public storage::FakeFileSystem {
 public:
  explicit StuckDisk(bool at_creation) : at_creation_(at_creation) {}
  Result<std::unique_ptr<storage::WritableFile>> Create(const std::string& path) override {
    if (at_creation_) Stick();
    return FakeFileSystem::Create(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    if (!at_creation_) Stick();
    return FakeFileSystem::Rename(from, to);
  }

  std::promise<void> stuck;
  std::promise<void> released;

 private:
  void Stick() {
    stuck.set_value();
    released.get_future().wait();
  }
  const bool at_creation_;
};

TEST_CASE_METHOD(Fixture, "a disk that does not answer a save holds up no push and no pull",
                 "[ps][unit]") {
  const bool before_copying = GENERATE(true, false);
  const auto shards = Make(Plan({Variable("w", {3}), Variable("b", {1})}, Sgd(1)));
  const auto push = [&](std::uint64_t closure) {
    CHECK(shards->ApplyDense(0, Update(closure, 1), std::vector<float>(1, 1)).ok());
    CHECK(shards->ApplyDense(1, Update(closure, 1), std::vector<float>(3, 1)).ok());
  };
  push(1);
  storage::FakeFileSystem good;
  REQUIRE(shards->Save(1, "/c", good).ok());
  const std::vector<std::byte> cut = *good.Find("/c/ps-0-of-1.safetensors");

  StuckDisk disk(before_copying);
  auto saved = std::async(std::launch::async, [&] { return shards->Save(1, "/c", disk); });
  disk.stuck.get_future().wait();
  // The coordinator has given the save up, the job goes on.
  auto pushed = std::async(std::launch::async, [&] { push(2); });
  const bool in_time = pushed.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  const std::vector<float> now = in_time ? Read(*shards, 1, 3) : std::vector<float>();
  disk.released.set_value();
  pushed.wait();
  const auto report = saved.get();

  CHECK(in_time);
  CHECK(now == std::vector<float>(3, -2));
  if (before_copying) {
    // Its content would be of two steps.
    CHECK(report.status().code() == StatusCode::kFailedPrecondition);
    CHECK_THAT(Message(report.status()), Contains("the job has gone on without waiting"));
    CHECK(disk.Files().empty());
  } else {
    CHECK(report.ok());
    CHECK(*disk.Find("/c/ps-0-of-1.safetensors") == cut);
  }
}

// Saves a job of two servers, restores it onto `servers`, and checks every value by its row.
void SaveAndRestore(std::uint32_t before, std::uint32_t after) {
  muster::testing::TempFolder folder;
  ApplyPool pool(1);
  auto adam = Sgd(0.1);
  adam.set_kind(v1::OPTIMIZER_KIND_ADAM);
  const std::vector<v1::VariableLayout> variables{
      Variable("w", {11, 3}, v1::INITIALIZER_KIND_NORMAL), Variable("bias", {4}),
      Variable("scale", {}, v1::INITIALIZER_KIND_ONES)};
  const auto run_step = [](JobShards& shards, std::uint64_t step) {
    for (std::uint32_t i = 0; i < shards.shards().size(); ++i) {
      const ShardInfo& info = shards.shards()[i];
      std::vector<float> gradient;
      for (std::int64_t j = 0; j < info.rows * info.row_elements; ++j) {
        gradient.push_back(static_cast<float>(info.row_offset * info.row_elements + j) / 10 - 1);
      }
      REQUIRE(shards.ApplyDense(i, Update(step, 1), gradient).ok());
    }
  };
  // Every variable whole, after two more steps.
  const auto finish = [&](const v1::JobPlan& plan, const std::string& restore_from,
                          std::uint64_t steps) {
    std::vector<std::vector<float>> all{std::vector<float>(4), std::vector<float>(1),
                                        std::vector<float>(33)};
    for (int ps = 0; ps < plan.ps_size(); ++ps) {
      const auto made =
          JobShards::Create(plan, static_cast<std::uint32_t>(ps), restore_from, pool).value();
      for (std::uint64_t step = plan.start_step() + 1; step <= steps; ++step) run_step(*made, step);
      for (std::uint32_t i = 0; i < made->shards().size(); ++i) {
        const ShardInfo& info = made->shards()[i];
        const auto values = Read(*made, i, static_cast<std::size_t>(info.rows * info.row_elements));
        std::copy(values.begin(), values.end(),
                  all[info.variable].begin() + info.row_offset * info.row_elements);
      }
    }
    return all;
  };

  v1::CheckpointManifest manifest;
  manifest.set_step(3);
  auto plan = Plan(variables, adam, before);
  for (std::uint32_t ps = 0; ps < before; ++ps) {
    const auto made = JobShards::Create(plan, ps, "", pool).value();
    for (std::uint64_t step = 1; step <= 3; ++step) run_step(*made, step);
    const auto report = made->Save(3, folder.path(), storage::RealFileSystem()).value();
    CHECK(report.file().name() == fmt::format("ps-{}-of-{}.safetensors", ps, before));
    *manifest.add_files() = report.file();
    manifest.mutable_slices()->MergeFrom(report.slices());
  }
  REQUIRE(storage::Commit(folder.path(), manifest).ok());
  const auto expected = finish(plan, "", 5);

  auto resumed = Plan(variables, adam, after);
  resumed.set_view(2);
  resumed.set_start_step(3);

  CHECK(finish(resumed, folder.path(), 5) == expected);
}

TEST_CASE("a checkpoint restores onto any number of servers to the same bits",
          "[ps][unit][spec][SHV-21][SHV-22]") {
  for (const std::uint32_t before : {1, 2, 3, 5}) {
    for (const std::uint32_t after : {1, 2, 3, 5}) SaveAndRestore(before, after);
  }
}

TEST_CASE_METHOD(Fixture, "a checkpoint of another model or step is refused by name",
                 "[ps][unit]") {
  muster::testing::TempFolder folder;
  const auto shards = Make(Plan({Variable("w", {4})}, Sgd(1)));
  const auto report = shards->Save(0, folder.path(), storage::RealFileSystem()).value();
  v1::CheckpointManifest manifest;
  *manifest.add_files() = report.file();
  *manifest.mutable_slices() = report.slices();
  REQUIRE(storage::Commit(folder.path(), manifest).ok());
  const auto message = [&](const v1::JobPlan& plan) {
    const auto made = JobShards::Create(plan, 0, folder.path(), pool);
    CHECK(made.status().code() == StatusCode::kInvalidArgument);
    return Message(made.status());
  };

  CHECK_THAT(message(Plan({Variable("v", {4})}, Sgd(1))), Contains("no tensor v"));
  CHECK_THAT(message(Plan({Variable("w", {2, 2})}, Sgd(1))), Contains("w has another shape"));
  auto later = Plan({Variable("w", {4})}, Sgd(1));
  later.set_start_step(5);
  CHECK_THAT(message(later), Contains("is of step 0"));
  auto adam = Sgd(1);
  adam.set_kind(v1::OPTIMIZER_KIND_ADAM);
  CHECK_THAT(message(Plan({Variable("w", {4})}, adam)), Contains("w/slot/exp_avg"));
  CHECK(JobShards::Create(later, 0, "", pool).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE_METHOD(Fixture, "malformed plans are refused", "[ps][unit]") {
  const auto good = Plan({Variable("w", {4})}, Sgd(1), 2);
  const auto refused = [&](const std::function<void(v1::JobPlan&)>& change) {
    v1::JobPlan plan = good;
    change(plan);
    const auto made = JobShards::Create(plan, 0, "", pool);
    CHECK(made.status().code() == StatusCode::kInvalidArgument);
    return Message(made.status());
  };
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->mutable_shards(1)->set_rows(1); }),
             Contains("3 of 4 rows"));
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->mutable_shards(1)->set_row_offset(1); }),
             Contains("2 rows from 1, after others to 2"));
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->mutable_shards(1)->set_ps_index(2); }),
             Contains("ps:2"));
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->set_shape(0, -4); }),
             Contains("dimension 0 is -4"));
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->set_dtype(v1::DTYPE_FLOAT64); }),
             Contains("only float32"));
  CHECK_THAT(refused([](auto& p) { p.mutable_variables(0)->set_name("w/slot/z"); }),
             Contains("/slot/"));
  CHECK_THAT(refused([](auto& p) { *p.add_variables() = p.variables(0); }), Contains("twice"));
  CHECK_THAT(refused([](auto& p) { p.mutable_optimizer()->set_learning_rate(-1); }),
             Contains("optimizer.learning_rate is -1"));
  CHECK_THAT(refused([](auto& p) { p.clear_ps(); }), Contains("0 servers"));
}

TEST_CASE_METHOD(Fixture, "a job larger than memory is refused before it is made", "[ps][unit]") {
  const auto made =
      JobShards::Create(Plan({Variable("w", {1 << 30, 1 << 20})}, Sgd(1)), 0, "", pool);

  CHECK(made.status().code() == StatusCode::kResourceExhausted);
  CHECK_THAT(Message(made.status()), Contains("MiB left"));
}

// Property: integer gradients with learning rate 1 give the exact sum of each closure's gradient,
// however pushes are repeated, reordered, raced and superseded.
TEST_CASE_METHOD(Fixture, "every closure is applied exactly once in any interleaving",
                 "[ps][unit]") {
  constexpr std::uint64_t kClosures = 400;
  constexpr std::size_t kFloats = 37;
  const auto gradient_of = [](std::uint64_t closure) {
    std::vector<float> gradient(kFloats);
    for (std::size_t i = 0; i < kFloats; ++i) {
      gradient[i] = static_cast<float>((closure * 7 + i * 3) % 11) - 5;
    }
    return gradient;
  };
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    const auto shards = Make(Plan({Variable("w", {kFloats, 1})}, Sgd(1)));
    std::atomic<std::uint64_t> applied{0};
    std::atomic<bool> torn{false};
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(seed * 10 + t);
        // Each thread pushes each closure, in an order of its own, by attempts of its own.
        std::vector<std::uint64_t> order;
        for (std::uint64_t c = 1; c <= kClosures; ++c) order.push_back(c);
        std::shuffle(order.begin(), order.end(), random);
        for (const std::uint64_t closure : order) {
          const std::uint64_t attempt = 1 + random() % 4;
          const auto gradient = gradient_of(closure);
          const auto outcome = shards->ApplyDense(0, Update(closure, attempt), gradient);
          if (outcome.ok() && *outcome == ApplyOutcome::kApplied) ++applied;
          if (!outcome.ok() && outcome.status().code() != StatusCode::kAborted) torn = true;
          std::vector<float> values(kFloats);
          if (!shards->ReadDense(0, values).ok()) torn = true;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();

    CHECK(applied == kClosures);
    CHECK_FALSE(torn);
    std::vector<float> expected(kFloats);
    for (std::uint64_t c = 1; c <= kClosures; ++c) {
      const auto gradient = gradient_of(c);
      for (std::size_t i = 0; i < kFloats; ++i) expected[i] -= gradient[i];
    }
    CHECK(Read(*shards, 0, kFloats) == expected);
    CHECK(VersionOf(*shards, 0) == kClosures);
  }
}

TEST_CASE_METHOD(Fixture, "a reader sees whole updates only", "[ps][unit]") {
  constexpr std::size_t kFloats = 300'000;
  const auto shards = Make(Plan({Variable("w", {kFloats})}, Sgd(1)));
  std::atomic<bool> done{false};
  std::atomic<bool> torn{false};
  std::thread reader([&] {
    std::vector<float> values(kFloats);
    while (!done) {
      const std::uint64_t version = shards->ReadDense(0, values).value();
      const float expected = -static_cast<float>(version);
      if (std::any_of(values.begin(), values.end(), [&](float v) { return v != expected; })) {
        torn = true;
      }
    }
  });

  const std::vector<float> ones(kFloats, 1);
  for (std::uint64_t c = 1; c <= 50; ++c) REQUIRE(shards->ApplyDense(0, Update(c, 1), ones).ok());
  done = true;
  reader.join();

  CHECK_FALSE(torn);
}

}  // namespace
}  // namespace muster::ps
