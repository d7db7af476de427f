// A small job, its batches, and what tests ask of the steps that are made of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/data/pipeline/element_ops.h"
#include "common/storage/checkpoint.h"
#include "coordinator/plan.h"
#include "muster/v1/checkpoint.pb.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/steps.h"
#include "tests/support/catch.h"

namespace muster::executor {

inline constexpr auto kOneDevice = v1::STRATEGY_KIND_ONE_DEVICE;
inline constexpr auto kMirrored = v1::STRATEGY_KIND_MIRRORED;
inline constexpr auto kCentral = v1::STRATEGY_KIND_CENTRAL_STORAGE;
inline constexpr std::int64_t kRows = 50;
inline constexpr std::int64_t kBatch = 12;

// A regression with a hidden layer, and an embedding of ids.
inline v1::JobSpec Spec(v1::StrategyKind kind, std::uint32_t devices, bool deterministic = false) {
  v1::JobSpec spec;
  spec.set_name("job");
  auto& parameters = *spec.mutable_model()->mutable_parameters();
  for (const auto& [name, rows, columns] :
       {std::tuple("w1", 7, 16), std::tuple("w2", 16, 1), std::tuple("b", 16, 0)}) {
    parameters[name].add_shape(rows);
    if (columns != 0) parameters[name].add_shape(columns);
  }
  spec.mutable_model()->set_forward(
      "def forward(self, x, emb):\n"
      "    hidden = torch.tanh(torch.addmm(self.b, torch.cat([x, emb], 1), self.w1))\n"
      "    return torch.mm(hidden, self.w2)\n");
  v1::EmbeddingSpec& embedding = (*spec.mutable_embeddings())["emb"];
  embedding.set_feature("id");
  embedding.set_rows(kRows);
  embedding.set_dim(3);
  embedding.set_combiner(v1::COMBINER_SUM);
  spec.mutable_loss()->set_kind(v1::LOSS_KIND_MSE);
  spec.mutable_loss()->set_label("y");
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAM);
  spec.mutable_optimizer()->set_learning_rate(0.01);
  spec.set_batch_size(kBatch);
  spec.set_steps(1'000);
  spec.set_seed(5);
  spec.mutable_strategy()->set_kind(kind);
  spec.mutable_strategy()->set_devices(devices);
  spec.mutable_strategy()->set_deterministic(deterministic);
  return spec;
}

inline std::vector<data::ColumnInfo> Columns() {
  return {{"x", DType::kFloat32, {-1, 4}},
          {"id", DType::kInt64, {-1, 2}},
          {"y", DType::kFloat32, {-1, 1}}};
}

// A function of the step alone, as a job's batches are.
inline data::Element Batch(std::uint64_t step, std::int64_t rows = kBatch) {
  std::mt19937 random(static_cast<unsigned>(step));
  const auto n = static_cast<std::size_t>(rows);
  std::vector<float> x(n * 4), y(n);
  std::vector<std::int64_t> ids(n * 2);
  for (float& value : x) value = static_cast<float>(random() % 1000) / 500 - 1;
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 20);
  for (std::size_t i = 0; i < n; ++i)
    y[i] = x[4 * i] * x[4 * i + 1] + 0.1f * static_cast<float>(ids[2 * i]);
  return {.columns = {data::MakeColumn<float>("x", {rows, 4}, x),
                      data::MakeColumn<std::int64_t>("id", {rows, 2}, ids),
                      data::MakeColumn<float>("y", {rows, 1}, y)}};
}

inline v1::ExecutorStart StartOf(const v1::JobSpec& spec, std::uint64_t start_step = 0,
                                 const std::string& restore_from = "") {
  v1::JobRecord record;
  *record.mutable_job()->mutable_spec() = spec;
  record.mutable_job()->set_id("job-1");
  record.set_training_examples(100);
  v1::ExecutorStart start;
  start.set_threads(2);
  *start.mutable_start()->mutable_spec() = spec;
  auto plan = coordinator::MakePlan(record, {});
  CAPTURE(ToString(plan.status()));
  REQUIRE(plan.ok());
  plan->set_start_step(start_step);
  *start.mutable_start()->mutable_plan() = *plan;
  start.mutable_start()->set_restore_from(restore_from);
  return start;
}

inline std::unique_ptr<Steps> Open(const v1::JobSpec& spec, std::uint64_t start_step = 0,
                                   const std::string& restore_from = "") {
  auto steps = OpenLocalSteps(StartOf(spec, start_step, restore_from), Columns());
  CAPTURE(ToString(steps.status()));
  REQUIRE(steps.ok());
  return *std::move(steps);
}

inline double LossOf(Steps& steps, std::uint64_t step, const data::Element& batch) {
  engine::StepTimes times;
  const auto sums = steps.Train(step, Attempt(1), batch, times);
  CAPTURE(step, ToString(sums.status()));
  REQUIRE(sums.ok());
  return sums->loss_sum() / static_cast<double>(sums->examples());
}

// Mean losses of steps first..last; every fifth batch is a partial one.
inline std::vector<double> Losses(Steps& steps, std::uint64_t first, std::uint64_t last) {
  std::vector<double> losses;
  for (std::uint64_t step = first; step <= last; ++step) {
    losses.push_back(LossOf(steps, step, Batch(step, step % 5 == 0 ? 3 : kBatch)));
  }
  return losses;
}

// As the coordinator does it.
inline std::string SaveAndCommit(Steps& steps, std::uint64_t step, const std::string& directory) {
  const auto report = steps.Save(step, directory);
  CAPTURE(ToString(report.status()));
  REQUIRE(report.ok());
  v1::CheckpointManifest manifest;
  *manifest.add_files() = report->file();
  *manifest.mutable_slices() = report->slices();
  manifest.set_step(step);
  manifest.set_created_at("2026-01-01T00:00:00Z");
  REQUIRE(storage::Commit(directory, manifest).ok());
  return directory;
}

inline std::map<std::string, std::vector<float>> TensorsOf(Steps& steps, std::uint64_t step,
                                                           const std::string& directory) {
  const auto checkpoint = *storage::Checkpoint::Open(SaveAndCommit(steps, step, directory));
  std::map<std::string, std::vector<float>> tensors;
  for (const v1::TensorSlice& slice : checkpoint->manifest().slices()) {
    std::size_t n = 1;
    for (const std::int64_t size : slice.shape()) n *= static_cast<std::size_t>(size);
    std::vector<float>& values = tensors[slice.name()];
    values.resize(n);
    REQUIRE(checkpoint
                ->ReadRows(slice.name(), 0, slice.rows(), std::as_writable_bytes(std::span(values)))
                .ok());
  }
  return tensors;
}

}  // namespace muster::executor
