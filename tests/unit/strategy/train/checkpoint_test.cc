// Checkpoints of variables.
#include "strategy/train/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "common/storage/checkpoint.h"
#include "muster/v1/checkpoint.pb.h"
#include "strategy/train/internal/saved_state.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/logged.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the vocabulary of these tests

Variable plain(InitialValue value) { return Variable::create("plain", std::move(value)); }

// What a file holds under "v", read by a plain variable.
double saved(const std::string& directory) {
  const Variable v = plain(0.0);
  Checkpoint({{"v", v}}).restore(directory).assert_consumed();
  return number(v);
}

void save(const Variable& v, const std::string& directory) {
  Checkpoint({{"v", v}}).save(directory);
}

void restore(const Variable& v, const std::string& directory) {
  Checkpoint({{"v", v}}).restore(directory).assert_consumed();
}

TEST_CASE("an ON_WRITE variable is saved once and restored to all components", "[spec][CKP-01]") {
  TempFolder directory;
  for (const int n : {1, 2, 3}) {
    MirroredStrategy mirrored(cpus(n));
    CentralStorageStrategy central(cpus(n));
    OneDeviceStrategy one("CPU:1");
    for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &central, &one}) {
      for (const auto aggregation : {kNone, kSum, kMean, kFirst}) {
        const Variable v = on_write(*strategy, 2.0, aggregation);
        const auto scope = strategy->scope();
        save(v, directory / "a");
        CHECK(saved(directory / "a") == 2.0);

        save(plain(3.0), directory / "b");
        restore(v, directory / "b");
        CHECK(numbers(v) == times(v.size(), 3.0));
      }
    }
  }
}

TEST_CASE("an ON_READ SUM variable is saved as its sum and spread when restored",
          "[spec][CKP-02][CKP-03]") {
  TempFolder directory;
  MirroredStrategy strategy(cpus(2));
  const auto filled = [&](double first, double second) {
    const Variable v = on_read(strategy, 0.0, kSum);
    strategy.run([&] { v.assign(id() == 0 ? first : second); });
    return v;
  };
  save(filled(1.5, 2), directory / "a");
  CHECK(saved(directory / "a") == 3.5);
  const Variable other = on_read(strategy, 9.0, kSum);
  restore(other, directory / "a");
  CHECK(numbers(other) == times(2, 1.75));

  const Variable v = filled(3, 4);
  Checkpoint checkpoint({{"v", v}});
  checkpoint.save(directory / "b");
  strategy.run([&] { v.assign(id() + 100); });
  checkpoint.restore(directory / "b");
  CHECK(numbers(v) == times(2, 3.5));
}

TEST_CASE("an ON_READ MEAN variable is saved as its mean", "[spec][CKP-04]") {
  TempFolder directory;
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_read(strategy, 0.0, kMean);
  strategy.run([&] { v.assign(3 + id()); });
  save(v, directory.path());
  CHECK(saved(directory.path()) == 3.5);
  restore(v, directory.path());
  CHECK(numbers(v) == times(2, 3.5));
}

TEST_CASE("a plain value restored to ON_READ variables", "[spec][CKP-05]") {
  TempFolder directory;
  save(plain(3.5), directory.path());
  MirroredStrategy strategy(cpus(2));
  const Variable sum = on_read(strategy, 0.0, kSum);
  const Variable mean = on_read(strategy, 0.0, kMean);
  const Variable none = on_read(strategy, 0.0, kNone);
  for (const Variable& v : {sum, mean, none}) restore(v, directory.path());
  CHECK(numbers(sum) == times(2, 1.75));
  CHECK(numbers(mean) == times(2, 3.5));
  CHECK(numbers(none) == times(2, 3.5));
  CHECK(throws(ErrorCode::kInvalidArgument, "Could not convert from VariableAggregation.NONE",
               [&] { save(none, directory / "none"); }));
}

TEST_CASE("a file has one entry for each variable, whatever the number of replicas",
          "[spec][CKP-06]") {
  for (const int n : {1, 2, 4}) {
    TempFolder directory;
    MirroredStrategy strategy(cpus(n));
    const Variable w = on_write(strategy, torch::ones({2, 3}), kNone);
    const Variable r = on_read(strategy, ints(5), kSum);
    Checkpoint({{"w", w}, {"r", r}}).save(directory.path());

    const auto manifest = storage::ReadManifest(directory.path());
    REQUIRE(manifest.ok());
    CHECK(manifest->slices_size() == 2);
    CHECK(manifest->files_size() == 1);
  }
}

TEST_CASE("a variable that is created after the restore begins with the saved value",
          "[spec][CKP-07]") {
  TempFolder directory;
  save(plain(3.5), directory.path());
  MirroredStrategy strategy(cpus(2));
  Checkpoint checkpoint;
  const RestoreStatus status = checkpoint.restore(directory.path());
  CHECK(status.unused() == std::vector<std::string>{"v"});
  int calls = 0;
  const InitialValue initial([&] { return ++calls, torch::zeros({}); });

  const auto scope = strategy.scope();
  const Variable sum =
      checkpoint.create("v", initial, {.synchronization = kOnRead, .aggregation = kSum});

  CHECK(calls == 0);
  CHECK(numbers(sum) == times(2, 1.75));
  status.assert_consumed();
  // One that the file does not hold is initialised as usual, and reported.
  CHECK(number(checkpoint.create("w", initial)) == 0);
  CHECK(calls == 1);
  CHECK(status.unmatched() == std::vector<std::string>{"w"});
  CHECK(throws(ErrorCode::kFailedPrecondition, "no value for 1 of the variables: w",
               [&] { status.assert_existing_matched(); }));

  Checkpoint in_replicas;
  in_replicas.restore(directory.path());
  const auto made = strategy.run([&] { return in_replicas.create("v", initial); });
  CHECK(numbers(made[0]) == times(2, 3.5));
  Checkpoint tracks_later;
  tracks_later.restore(directory.path());
  const Variable later = Variable::create("x", 1.0);
  tracks_later.track("v", later);
  CHECK(numbers(later) == times(2, 3.5));
}

TEST_CASE("a save in the background holds the values of the moment", "[spec][CKP-10]") {
  TempFolder directory;
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 0.0, kNone);
  Checkpoint checkpoint({{"v", v}});

  v.assign(123);
  checkpoint.save_async(directory.path());
  v.assign(234);
  checkpoint.restore(directory.path());
  CHECK(numbers(v) == times(2, 123));
  v.assign(345);
  checkpoint.save_async(directory.path());
  v.assign(456);
  checkpoint.restore(directory.path());
  CHECK(numbers(v) == times(2, 345));

  // Its error comes with wait(), once.
  checkpoint.save_async("/proc/none/such");
  CHECK(code_of([&] { checkpoint.wait(); }) != ErrorCode::kOk);
  CHECK(code_of([&] { checkpoint.wait(); }) == ErrorCode::kOk);
}

TEST_CASE("types and shapes come back as they were", "[strategy][unit]") {
  TempFolder directory;
  MirroredStrategy strategy(cpus(2));
  std::map<std::string, Variable> variables;
  std::map<std::string, torch::Tensor> values;
  {
    const auto scope = strategy.scope();
    for (const auto type :
         {torch::kFloat, torch::kDouble, torch::kInt, torch::kLong, torch::kByte, torch::kBool,
          torch::kHalf, torch::kBFloat16, torch::kChar, torch::kShort}) {
      for (const auto& shape :
           std::vector<std::vector<std::int64_t>>{{}, {3}, {0}, {2, 0}, {0, 2}, {2, 3}}) {
        const std::string name = "v" + std::to_string(values.size());
        values[name] = torch::randint(0, 2, shape).to(type);
        variables[name] = Variable::create(name, values[name]);
      }
    }
  }
  Checkpoint checkpoint(variables);
  checkpoint.save(directory.path(), 17);
  for (const auto& [name, variable] : variables) variable.assign(torch::ones_like(values[name]));
  checkpoint.restore(directory.path()).assert_consumed();
  for (const auto& [name, variable] : variables) {
    CHECK(variable.value().equal(values[name]));
    CHECK(variable.component(1).value().equal(values[name]));
    CHECK(variable.dtype() == values[name].scalar_type());
  }
  CHECK(checkpoint.step() == 17);
}

TEST_CASE("a restore that fails changes nothing", "[strategy][unit]") {
  TempFolder directory;
  const Variable a = plain(1.0);
  const Variable b = plain(torch::ones({3}));
  Checkpoint checkpoint({{"a", a}, {"b", b}});
  checkpoint.save(directory / "good");
  Checkpoint({{"a", plain(5.0)}, {"b", plain(torch::ones({4}))}}).save(directory / "other");

  CHECK(throws(ErrorCode::kInvalidArgument, "tensor b of the checkpoint has shape [4], variable",
               [&] { checkpoint.restore(directory / "other"); }));
  CHECK(number(a) == 1);
  CHECK(code_of([&] { checkpoint.restore(directory / "none"); }) == ErrorCode::kNotFound);
  CHECK(code_of([&] { checkpoint.track("a", b); }) == ErrorCode::kAlreadyExists);
  MirroredStrategy strategy(cpus(2));
  CHECK(throws(ErrorCode::kFailedPrecondition, "requires cross-replica context",
               [&] { strategy.run([&] { checkpoint.save(directory / "in"); }); }));
}

TEST_CASE("a checkpoint of a type that a variable cannot hold changes nothing",
          "[strategy][unit]") {
  TempFolder directory;
  Checkpoint({{"a", plain(5.0)}, {"b", plain(torch::ones({2}))}}).save(directory / "floats");
  const Variable a = plain(1.0);
  const Variable b = plain(torch::zeros({2}, torch::kLong));
  Checkpoint checkpoint({{"a", a}, {"b", b}});

  CHECK(throws(ErrorCode::kInvalidArgument, "tensor b of the checkpoint is Float, which variable",
               [&] { checkpoint.restore(directory / "floats"); }));
  CHECK(number(a) == 1);

  Checkpoint later({{"a", a}});
  later.restore(directory / "floats");
  CHECK(code_of([&] { later.track("b", b); }) == ErrorCode::kInvalidArgument);
  later.track("b", plain(torch::zeros({2})));  // it has not been taken for the other one
}

TEST_CASE("a value is not restored to a variable without one whose type cannot hold it",
          "[strategy][unit]") {
  TempFolder directory;
  const Variable a = plain(5.0);
  Checkpoint({{"a", a}, {"v", plain(1.5)}}).save(directory / "floats");
  a.assign(1.0);
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  const VariableOptions typed{.dtype = torch::kLong, .initialize = false};
  const Variable v = Variable::create("v", 0, typed);
  Checkpoint both({{"a", a}, {"v", v}});
  CHECK(throws(ErrorCode::kInvalidArgument, "is Float, which variable v of Long cannot hold",
               [&] { both.restore(directory / "floats"); }));
  CHECK_FALSE(v.is_initialized());
  CHECK(number(a) == 1);
  Checkpoint creates;
  creates.restore(directory / "floats");
  CHECK(throws(ErrorCode::kInvalidArgument, "cannot be assigned Float",
               [&] { (void)creates.create("v", 0, typed); }));
}

TEST_CASE("whole numbers are not restored to a mean without a value, nor anything beside it",
          "[strategy][unit]") {
  TempFolder directory;
  const Variable a = plain(5.0);
  {
    const Variable whole = Variable::create("m", 7, VariableOptions{.dtype = torch::kLong});
    Checkpoint({{"a", a}, {"m", whole}}).save(directory / "whole");
  }
  a.assign(1.0);
  MirroredStrategy strategy(cpus(2));
  const auto scope = strategy.scope();
  const Variable mean =
      Variable::create("m", 0,
                       VariableOptions{.synchronization = VariableSynchronization::kOnRead,
                                       .aggregation = VariableAggregation::kMean,
                                       .initialize = false});
  Checkpoint both({{"a", a}, {"m", mean}});

  CHECK_THROWS_AS(both.restore(directory / "whole"), Error);
  CHECK_FALSE(mean.is_initialized());
  CHECK(number(a) == 1);
}

TEST_CASE("saves of several threads tell each its own error", "[strategy][unit]") {
  constexpr int kThreads = 4;
  constexpr int kSaves = 1000;
  TempFolder directory;
  Checkpoint checkpoint({{"v", plain(1.0)}});
  std::vector<int> own(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    const std::string file = directory / ("file-" + std::to_string(i));
    std::ofstream(file) << "no folder";
    threads.emplace_back([&checkpoint, &count = own[static_cast<std::size_t>(i)], file] {
      for (int n = 0; n < kSaves; ++n) {
        try {
          checkpoint.save(file + "/below");
        } catch (const Error& error) {
          if (error.message().find(file) != std::string::npos) ++count;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(own == std::vector<int>(kThreads, kSaves));
}

// Stands for what waits while it is saved: asks the checkpoint on another thread.
struct AskingState final : internal::SavedState {
  std::vector<std::string> Names() const override { return {"v/slot/asked"}; }
  std::map<std::string, torch::Tensor> Values() const override {
    step = std::async(std::launch::async, [this] { return checkpoint->step(); });
    answered = step.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
    return {};
  }
  void Check(const std::map<std::string, torch::Tensor>&) const override {}
  void Restore(const std::map<std::string, torch::Tensor>&) const override {}

  const Checkpoint* checkpoint = nullptr;
  mutable std::future<std::uint64_t> step;
  mutable bool answered = false;
};
struct AskingOptimizer {
  std::shared_ptr<const internal::SavedState> saved_state() const { return state; }
  std::shared_ptr<AskingState> state = std::make_shared<AskingState>();
};

TEST_CASE("a checkpoint answers while it waits for the values that it saves", "[strategy][unit]") {
  TempFolder directory;
  const AskingOptimizer optimizer;
  Checkpoint checkpoint({{"v", plain(1.0)}});
  optimizer.state->checkpoint = &checkpoint;
  checkpoint.track(optimizer);

  checkpoint.save(directory.path());

  CHECK(optimizer.state->answered);
}

TEST_CASE("a save that fails over a checkpoint leaves a whole one, however many have failed",
          "[strategy][unit]") {
  TempFolder directory;
  const Variable v = plain(1.0);
  save(v, directory.path());
  v.assign(2.0);
  save(v, directory.path());  // in the other file
  const std::string first = directory / "variables.safetensors";
  CHECK_FALSE(std::filesystem::exists(first));
  // As a save leaves it that was killed before its manifest.
  std::ofstream(first) << "half";
  v.assign(3.0);

  const std::string live = directory / "variables-2.safetensors";

  // Its file is written before the manifest: it must not be the one that the old manifest names.
  Checkpoint({{"v", v}}).save(directory.path());

  CHECK(saved(directory.path()) == 3);
  CHECK(std::filesystem::exists(first));
  CHECK_FALSE(std::filesystem::exists(live));
}

TEST_CASE("a manager keeps the newest checkpoints and passes over a damaged one",
          "[strategy][unit]") {
  TempFolder directory;
  MirroredStrategy strategy(cpus(2));
  const Variable v = on_write(strategy, 0.0, kNone);
  CheckpointManager manager(Checkpoint({{"v", v}}), directory.path(), 2);
  CHECK_FALSE(manager.latest_checkpoint().has_value());
  CHECK_FALSE(manager.restore_latest().has_value());

  std::vector<std::string> paths;
  for (const int step : {1, 2, 10}) {
    v.assign(step);
    paths.push_back(manager.save(static_cast<std::uint64_t>(step)));
  }
  CHECK(manager.checkpoints() == std::vector<std::string>{paths[1], paths[2]});
  CHECK(manager.latest_checkpoint() == paths[2]);
  v.assign(0);
  CHECK(manager.restore_latest() == paths[2]);
  CHECK(number(v) == 10);

  auto damaged = storage::RealFileSystem().Create(paths[2] + "/variables.safetensors");
  REQUIRE(damaged.ok());
  REQUIRE((*damaged)->Close().ok());
  CHECK(manager.restore_latest() == paths[1]);
  CHECK(number(v) == 2);
  std::filesystem::remove_all(paths[1]);
  const std::string said = log_of([&] { CHECK_FALSE(manager.restore_latest().has_value()); });
  CAPTURE(said);
  CHECK(said.find("checkpoint step-000000000010 is damaged and is not restored: " + paths[2]) !=
        std::string::npos);
  CHECK(code_of([&] { CheckpointManager(Checkpoint(), directory.path(), 0); }) ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("programs restore what jobs saved, and save what jobs go on from", "[strategy][unit]") {
  TempFolder directory;
  // As two parameter servers write it: rows of w apart, a slot beside them.
  const std::vector<float> low{1, 2, 3, 4};
  const std::vector<float> high{5, 6};
  v1::CheckpointManifest job;
  const auto add = [&](const std::string& file, const std::string& name, const std::string& key,
                       std::int64_t row, const std::vector<float>& data) {
    const std::int64_t rows_here = static_cast<std::int64_t>(data.size()) / 2;
    const std::vector<storage::TensorToWrite> tensors{
        {key, DType::kFloat32, {rows_here, 2}, std::as_bytes(std::span(data))}};
    const auto written = storage::WriteSafetensors(directory.path(), file, tensors);
    REQUIRE(written.ok());
    *job.add_files() = *written;
    v1::TensorSlice& slice = *job.add_slices();
    slice.set_name(name);
    slice.set_dtype(v1::DTYPE_FLOAT32);
    slice.add_shape(name == "w" ? 3 : rows_here);
    slice.add_shape(2);
    slice.set_row_offset(row);
    slice.set_rows(rows_here);
    slice.set_file(file);
    slice.set_key(key);
  };
  add("ps-0-of-2.safetensors", "w", "w@0", 0, low);
  add("ps-1-of-2.safetensors", "w", "w@2", 2, high);
  add("slots.safetensors", "w/slot/momentum", "w/slot/momentum", 0, high);
  job.set_job_id("job-1");
  job.set_spec_hash("abc");
  job.set_step(40);
  REQUIRE(storage::Commit(directory.path(), job).ok());

  MirroredStrategy strategy(cpus(2));
  const Variable w = on_write(strategy, torch::zeros({3, 2}), kNone);
  Checkpoint checkpoint({{"w", w}});
  const RestoreStatus status = checkpoint.restore(directory.path());
  CHECK(list(w.component(1)) == std::vector<double>{1, 2, 3, 4, 5, 6});
  status.assert_existing_matched();
  CHECK(
      throws(ErrorCode::kFailedPrecondition, "w/slot/momentum", [&] { status.assert_consumed(); }));
  CHECK(checkpoint.step() == 40);

  checkpoint.save(directory / "mine", 41);
  const auto manifest = storage::ReadManifest(directory / "mine");
  REQUIRE(manifest.ok());
  CHECK(manifest->job_id() == "job-1");
  CHECK(manifest->spec_hash() == "abc");
  CHECK(manifest->step() == 41);
  CHECK(storage::Verify(directory / "mine").ok());
}

}  // namespace
}  // namespace muster
