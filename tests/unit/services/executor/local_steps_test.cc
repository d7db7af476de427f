// Steps under the strategies of one machine: the same numbers on any number of devices, the same as
// the parameter servers' kernels give, saved and restored.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <stdexcept>

#include "common/data/batch_source.h"
#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/executor.pb.h"
#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "ps/server/ps_server.h"
#include "services/executor/evaluation.h"
#include "services/executor/replica_source.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/tpu/tpu_system.h"
#include "strategy/train/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/executor/steps_fixture.h"

namespace muster::executor {
namespace {

TEST_CASE("mirrored and central storage make the steps of one device", "[executor][unit]") {
  using Kind = v1::OptimizerKind;
  const auto optimizer = GENERATE(Kind::OPTIMIZER_KIND_SGD, Kind::OPTIMIZER_KIND_MOMENTUM,
                                  Kind::OPTIMIZER_KIND_ADAGRAD, Kind::OPTIMIZER_KIND_ADAM,
                                  Kind::OPTIMIZER_KIND_ADAMW, Kind::OPTIMIZER_KIND_FTRL);
  CAPTURE(v1::OptimizerKind_Name(optimizer));
  const auto losses = [&](v1::StrategyKind kind, std::uint32_t devices) {
    v1::JobSpec spec = Spec(kind, devices);
    spec.mutable_optimizer()->set_kind(optimizer);
    return Losses(*Open(spec), 1, 20);
  };
  const std::vector<double> one = losses(kOneDevice, 1);
  for (const auto& [kind, devices] :
       {std::pair(kMirrored, 1), {kMirrored, 2}, {kMirrored, 5}, {kCentral, 2}}) {
    CAPTURE(v1::StrategyKind_Name(kind), devices);
    const std::vector<double> other = losses(kind, static_cast<std::uint32_t>(devices));
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(other[i] - one[i]) <= 1e-5 * std::max(1.0, one[i]));
    }
  }
}

TEST_CASE("deterministic: the same bits on any number of devices", "[executor][unit]") {
  v1::JobSpec spec = Spec(kOneDevice, 1, true);
  // Random numbers, too, belong to the part and not to the device.
  const std::string dropout =
      "    return torch.mm(torch.dropout(hidden, 0.25, self.training), self.w2)\n";
  std::string forward = spec.model().forward();
  forward = forward.substr(0, forward.find("    return")) + dropout;
  spec.mutable_model()->set_forward(forward);
  const testing::TempFolder folder;
  const auto run = [&](v1::StrategyKind kind, std::uint32_t devices) {
    spec.mutable_strategy()->set_kind(kind);
    spec.mutable_strategy()->set_devices(devices);
    const auto steps = Open(spec);
    auto losses = Losses(*steps, 1, 60);
    const std::string saved = folder / fmt::format("{}-{}", static_cast<int>(kind), devices);
    std::filesystem::remove_all(saved);
    return std::pair(losses, TensorsOf(*steps, 60, saved));
  };
  const auto one = run(kOneDevice, 1);
  for (const auto& [kind, devices] :
       {std::pair(kMirrored, 2), {kMirrored, 3}, {kMirrored, 8}, {kCentral, 4}, {kOneDevice, 1}}) {
    CAPTURE(v1::StrategyKind_Name(kind), devices);
    const auto other = run(kind, static_cast<std::uint32_t>(devices));
    CHECK((other.first == one.first));
    CHECK((other.second == one.second));
  }
}

TEST_CASE("one device makes the same steps as a parameter server and one worker, bit for bit",
          "[executor][unit]") {
  v1::JobSpec spec = Spec(kOneDevice, 1);
  const testing::TempFolder folder;
  const auto local = Open(spec);
  // The same job with a parameter server in this process.
  ps::PsServer::Options options;
  options.unix_directory = folder / "ps";
  std::filesystem::create_directory(options.unix_directory);
  options.token = "a-token";
  options.host_id = *net::HostId();
  const auto server = *ps::PsServer::Start(std::move(options));
  v1::ExecutorStart start = StartOf(spec);
  start.set_host_id(*net::HostId());
  v1::JobPlan& plan = *start.mutable_start()->mutable_plan();
  plan.set_job_id("job-7");
  plan.set_job_number(7);
  plan.set_view(1);
  plan.set_epoch(1);
  for (v1::VariableLayout& variable : *plan.mutable_variables()) {
    variable.add_shards()->set_rows(variable.shape(0));
  }
  *plan.add_ps()->mutable_data() = server->endpoint();
  ps::ApplyPool pool(0);
  const auto shards = ps::JobShards::Create(plan, 0, "", pool);
  REQUIRE(shards.ok());
  server->Publish(JobNumber(7), *shards);
  start.mutable_start()->mutable_program()->set_key(net::JobKey("a-token", "job-7", Epoch()));
  const auto remote = OpenPsSteps(start, Columns());
  CAPTURE(ToString(remote.status()));
  REQUIRE(remote.ok());
  CHECK((Losses(*local, 1, 40) == Losses(**remote, 1, 40)));
}

TEST_CASE("a job goes on from its checkpoint as if nothing had happened", "[executor][unit]") {
  const testing::TempFolder folder;
  const v1::JobSpec spec = Spec(kMirrored, 2);
  const auto whole = Open(spec);
  (void)Losses(*whole, 1, 12);
  const std::string saved = SaveAndCommit(*whole, 12, folder / "step-12");
  const std::vector<double> rest = Losses(*whole, 13, 30);

  const auto resumed = Open(spec, 12, saved);
  CHECK((Losses(*resumed, 13, 30) == rest));
  CHECK((TensorsOf(*resumed, 30, folder / "a") == TensorsOf(*whole, 30, folder / "b")));

  // On other devices, under another strategy: the same tensors begin.
  const auto central = Open(Spec(kCentral, 3), 12, saved);
  CHECK((TensorsOf(*central, 12, folder / "c") ==
         TensorsOf(*Open(spec, 12, saved), 12, folder / "d")));
}

TEST_CASE("a program restores what a job has saved, and the other way round", "[executor][unit]") {
  const testing::TempFolder folder;
  const v1::JobSpec spec = Spec(kMirrored, 2);
  const auto steps = Open(spec);
  (void)Losses(*steps, 1, 3);
  const auto tensors = TensorsOf(*steps, 3, folder / "job");

  MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});
  {
    const Scope scope = strategy.scope();
    Checkpoint checkpoint;
    (void)checkpoint.restore(folder / "job");
    CHECK(checkpoint.step() == 3);
    for (const auto& [name, values] : tensors) {
      const Variable variable = checkpoint.create(name, 0.0);
      const torch::Tensor value = variable.component(2).value();
      REQUIRE(static_cast<std::size_t>(value.numel()) == values.size());
      CHECK(std::equal(values.begin(), values.end(), value.data_ptr<float>()));
      if (name == "w1") variable.assign(torch::ones({7, 16}));
    }
    checkpoint.save(folder / "program", 3);
  }
  const auto again = Open(spec, 3, folder / "program");
  auto expected = tensors;
  std::ranges::fill(expected.at("w1"), 1.0f);
  CHECK((TensorsOf(*again, 3, folder / "again") == expected));
}

TEST_CASE("a checkpoint of another optimizer, step or shape is refused by name",
          "[executor][unit]") {
  const testing::TempFolder folder;
  v1::JobSpec spec = Spec(kMirrored, 2);
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  const std::string saved = SaveAndCommit(*Open(spec), 0, folder / "sgd");
  const auto refusal = [&](const v1::JobSpec& other, std::uint64_t step) {
    const auto steps = OpenLocalSteps(StartOf(other, step, saved), Columns());
    return std::pair(steps.status().code(), Message(steps.status()));
  };
  const auto adam = refusal(Spec(kMirrored, 2), 0);
  CHECK(adam.first == StatusCode::kInvalidArgument);
  CHECK(adam.second.find("has no tensor b/slot/exp_avg; it is of another model or optimizer") !=
        std::string::npos);
  CHECK(refusal(spec, 4).second.find("is of step 0") != std::string::npos);
  (*spec.mutable_embeddings())["emb"].set_rows(60);
  CHECK(refusal(spec, 0).second.find("tensor emb has shape [50, 3] in the checkpoint, wanted "
                                     "[60, 3]") != std::string::npos);
}

TEST_CASE("a step is made once and in its order", "[executor][unit]") {
  const testing::TempFolder folder;
  const auto steps = Open(Spec(kMirrored, 2));
  const double first = LossOf(*steps, 1, Batch(1));
  engine::StepTimes times;
  CHECK(steps->Train(3, Attempt(1), Batch(3), times).status().code() == StatusCode::kUnavailable);
  const auto before = TensorsOf(*steps, 1, folder / "a");
  CHECK(LossOf(*steps, 1, Batch(1)) == first);
  CHECK((TensorsOf(*steps, 1, folder / "b") == before));
  CHECK(steps->Save(2, folder / "c").status().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("an error on one device alone is the step's error, nothing hangs", "[executor][unit]") {
  const auto steps = Open(Spec(kMirrored, 3));
  data::Element batch = Batch(1);
  std::vector<float> y(kBatch, 1.0f);
  y.back() = std::numeric_limits<float>::quiet_NaN();
  batch.columns[2] = data::MakeColumn<float>("y", {kBatch, 1}, y);
  engine::StepTimes times;
  const Status status = steps->Train(1, Attempt(1), batch, times).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("step 1") != std::string::npos);
  CHECK(Message(status).find("column \"y\"") != std::string::npos);
}

TEST_CASE("variables of which some may have been updated are not saved", "[executor][unit]") {
  const testing::TempFolder folder;
  const auto steps = Open(Spec(kMirrored, 2));
  (void)LossOf(*steps, 1, Batch(1));
  data::Element batch = Batch(2);
  const std::vector<float> y(kBatch, std::numeric_limits<float>::infinity());
  batch.columns[2] = data::MakeColumn<float>("y", {kBatch, 1}, y);
  engine::StepTimes times;
  REQUIRE_FALSE(steps->Train(2, Attempt(1), batch, times).ok());

  const auto saved = steps->Save(1, folder / "step-1");

  CHECK(saved.status().code() == StatusCode::kFailedPrecondition);
  CHECK_FALSE(std::filesystem::exists(folder / "step-1"));
}

TEST_CASE("whatever a step throws is a status", "[executor][unit]") {
  const auto thrown = [](const auto& what) { return Guarded([&] { throw what; }); };

  CHECK(thrown(std::bad_alloc()).code() == StatusCode::kResourceExhausted);
  CHECK(Message(thrown(std::length_error("too long"))).find("too long") != std::string::npos);
  CHECK(thrown(std::length_error("too long")).code() == StatusCode::kInternal);
  CHECK(thrown(7).code() == StatusCode::kInternal);
}

TEST_CASE("evaluation on several devices sees every example once", "[executor][unit]") {
  const auto one = Open(Spec(kOneDevice, 1));
  const auto three = Open(Spec(kMirrored, 3));
  engine::StepTimes times;
  for (const std::int64_t rows : {1, 2, 10}) {
    const auto a = one->Evaluate("batch", Batch(4, rows), times);
    const auto b = three->Evaluate("batch", Batch(4, rows), times);
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    CHECK(b->examples() == static_cast<std::uint64_t>(rows));
    CHECK(b->loss_sum() == Approx(a->loss_sum()).epsilon(1e-5));
  }
}

TEST_CASE("a checkpoint is evaluated alone, each example once, whatever strategy has saved it",
          "[executor][unit]") {
  const testing::TempFolder folder;
  v1::JobSpec spec = Spec(kMirrored, 2);
  spec.clear_embeddings();
  spec.clear_model();
  v1::ParameterSpec& w = (*spec.mutable_model()->mutable_parameters())["w"];
  w.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_CONSTANT);
  w.mutable_initializer()->set_scale(2);
  spec.mutable_model()->set_forward("def forward(self, x):\n    return self.w * x\n");
  v1::CsvData& csv = *spec.mutable_evaluation()->mutable_data()->mutable_csv();
  csv.add_files(folder / "held-out.csv");
  for (const char* column : {"x", "y"}) (*csv.mutable_columns())[column];
  std::ofstream file(folder / "held-out.csv");
  file << "x,y\n";
  double squares = 0;
  for (int i = 0; i < 10; ++i) {
    file << i << "," << 3 * i << "\n";
    squares += i * i;
  }
  file.close();
  spec.mutable_evaluation()->set_batch_size(4);
  const std::vector<data::ColumnInfo> columns{{"x", DType::kFloat32, {-1}},
                                              {"y", DType::kFloat32, {-1}}};
  const v1::ExecutorStart start = StartOf(spec);
  auto steps = OpenLocalSteps(start, columns);
  CAPTURE(ToString(steps.status()));
  REQUIRE(steps.ok());
  const std::string saved = SaveAndCommit(**steps, 0, folder / "step-0");

  v1::ToExecutor message;
  message.set_cache_directory(folder / "cache");
  message.set_threads(1);
  v1::EvaluateCheckpoint& evaluate = *message.mutable_evaluate();
  *evaluate.mutable_spec() = spec;
  *evaluate.mutable_plan() = start.start().plan();
  evaluate.mutable_plan()->add_ps()->set_index(0);  // its servers are not asked
  evaluate.set_directory(saved);
  std::vector<std::uint64_t> told;
  const auto result =
      EvaluateCheckpoint(message, [&](std::uint64_t batches) { told.push_back(batches); });

  CAPTURE(ToString(result.status()));
  REQUIRE(result.ok());
  CHECK(result->examples() == 10);
  CHECK(result->loss() == Approx(squares / 10));
  CHECK((told == std::vector<std::uint64_t>{0, 1, 2, 3}));

  evaluate.set_directory(folder / "gone");
  CHECK(EvaluateCheckpoint(message, [](std::uint64_t) {}).status().code() == StatusCode::kNotFound);
}

// The job of examples/fashion_mirrored.yaml, 200 steps.
constexpr char kFashion[] = "/usr/share/datasets/fashion-mnist/";

std::vector<double> FashionLosses(v1::StrategyKind kind, std::uint32_t devices, bool deterministic,
                                  std::uint64_t seed, std::uint64_t steps,
                                  const std::string& cache) {
  v1::JobSpec spec = Spec(kind, devices, deterministic);
  if (kind == v1::STRATEGY_KIND_TPU) spec.mutable_strategy()->set_topology("2x2x1x2");
  spec.clear_embeddings();
  spec.clear_model();
  auto& parameters = *spec.mutable_model()->mutable_parameters();
  for (const auto& [name, rows, columns] : {std::tuple("w1", 784, 64), std::tuple("w2", 64, 10),
                                            std::tuple("b1", 64, 0), std::tuple("b2", 10, 0)}) {
    parameters[name].add_shape(rows);
    if (columns != 0) parameters[name].add_shape(columns);
  }
  spec.mutable_model()->set_forward(
      "def forward(self, image):\n"
      "    pixels = torch.flatten((image.float() / 255.0 - 0.286) / 0.353, 1)\n"
      "    hidden = torch.relu(torch.addmm(self.b1, pixels, self.w1))\n"
      "    return torch.addmm(self.b2, hidden, self.w2)\n");
  spec.mutable_loss()->set_kind(v1::LOSS_KIND_SOFTMAX_CROSS_ENTROPY);
  spec.mutable_loss()->set_label("label");
  spec.mutable_optimizer()->set_learning_rate(0.001);
  spec.set_seed(seed);
  spec.set_batch_size(128);
  auto& columns = *spec.mutable_data()->mutable_idx()->mutable_columns();
  columns["image"].add_files(std::string(kFashion) + "train-images-idx3-ubyte.gz");
  columns["label"].add_files(std::string(kFashion) + "train-labels-idx1-ubyte.gz");
  auto source = data::BatchSource::Open(
      spec.data(), {.cache_directory = cache, .seed = seed, .batch_size = 128, .shuffle = true});
  REQUIRE(source.ok());
  auto opened = OpenLocalSteps(StartOf(spec), (*source)->columns());
  CAPTURE(ToString(opened.status()));
  REQUIRE(opened.ok());
  std::vector<double> losses;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    losses.push_back(LossOf(**opened, step, *(*source)->Batch(step)));
  }
  return losses;
}

TEST_CASE("Fashion-MNIST on an emulated 2x2x1x2 is one device's, bit for bit, when deterministic",
          "[executor][unit]") {
  const testing::TempFolder folder;
  const std::string cache = folder / "cache";
  std::filesystem::create_directory(cache);
  for (const std::uint64_t seed : {1, 2}) {
    CAPTURE(seed);
    const auto exact = FashionLosses(kOneDevice, 1, true, seed, 200, cache);
    CHECK(exact.back() < exact.front());
    CHECK((FashionLosses(v1::STRATEGY_KIND_TPU, 0, true, seed, 200, cache) == exact));
  }
  shutdown_tpu_system();
}

TEST_CASE(
    "Fashion-MNIST on 1, 2 and 4 devices: 1e-5 over 20 steps, and bit for bit over 200 when "
    "deterministic",
    "[executor][unit]") {
  const testing::TempFolder folder;
  const std::string cache = folder / "cache";
  std::filesystem::create_directory(cache);
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    CAPTURE(seed);
    const auto one = FashionLosses(kOneDevice, 1, false, seed, 20, cache);
    const auto exact = FashionLosses(kOneDevice, 1, true, seed, 200, cache);
    CHECK(exact.back() < exact.front());
    double worst = 0;
    for (const std::uint32_t devices : {2, 4}) {
      CAPTURE(devices);
      const auto many = FashionLosses(kMirrored, devices, false, seed, 20, cache);
      for (std::size_t i = 0; i < one.size(); ++i) {
        worst = std::max(worst, std::abs(many[i] - one[i]));
      }
      if (devices == 4 || seed == 1) {
        CHECK((FashionLosses(kMirrored, devices, true, seed, 200, cache) == exact));
      }
    }
    CAPTURE(worst);
    CHECK(worst <= 1e-5);
  }
}

}  // namespace
}  // namespace muster::executor
