// muster-plain-loop: what `muster-bench train` compares a cluster with. The demo job's model and
// data in a plain libtorch training loop: one process, 2 threads, decoded images in memory.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "common/base/status.h"
#include "common/config/job_yaml/job_yaml.h"
#include "common/data/batch_source.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::bench {
namespace {

constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kClasses = 10;
constexpr int kWarmUpSteps = 50;

struct Examples {
  torch::Tensor images;  // uint8 [n, 28, 28]
  torch::Tensor labels;  // int64 [n]
};

Result<Examples> Decode(const v1::DataSpec& spec, const std::string& cache) {
  MUSTER_TRY_ASSIGN(const auto probe,
                    data::BatchSource::Open(spec, {.cache_directory = cache, .shuffle = false}));
  MUSTER_TRY_ASSIGN(
      const auto source,
      data::BatchSource::Open(spec, {.cache_directory = cache,
                                     .batch_size = static_cast<std::uint32_t>(probe->examples()),
                                     .shuffle = false}));
  MUSTER_TRY_ASSIGN(const data::Element all, source->Batch(1));
  const data::Column* const image = all.Find("image");
  const data::Column* const label = all.Find("label");
  if (image == nullptr || label == nullptr) {
    return InvalidArgument("the job has no columns named image and label");
  }
  const auto tensor = [](const data::Column& column) {
    return torch::from_blob(const_cast<std::byte*>(column.data), column.info.shape, torch::kUInt8)
        .clone();
  };
  return Examples{tensor(*image), tensor(*label).to(torch::kLong)};
}

double ExamplesPerSecond(const Examples& examples, const v1::JobSpec& spec, double seconds) {
  using Clock = std::chrono::steady_clock;
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(28 * 28, kHidden),
                              torch::nn::ReLU(), torch::nn::Linear(kHidden, kClasses));
  torch::optim::Adam optimizer(
      model->parameters(),
      torch::optim::AdamOptions(spec.optimizer().learning_rate())
          .betas({spec.optimizer().has_beta1() ? spec.optimizer().beta1() : 0.9, 0.999}));
  const auto batch = static_cast<std::int64_t>(spec.batch_size());
  const std::int64_t count = examples.labels.size(0);
  torch::Tensor order = torch::randperm(count);
  std::int64_t next = 0;
  std::int64_t steps = 0;
  auto start = Clock::now();
  while (true) {
    if (next + batch > count) {
      order = torch::randperm(count);
      next = 0;
    }
    const torch::Tensor rows = order.narrow(0, next, batch);
    next += batch;
    const torch::Tensor pixels =
        (examples.images.index_select(0, rows).to(torch::kFloat) / 255.0 - 0.286) / 0.353;
    optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        model->forward(pixels), examples.labels.index_select(0, rows));
    loss.backward();
    optimizer.step();
    ++steps;
    if (steps == kWarmUpSteps) start = Clock::now();
    const std::chrono::duration<double> spent = Clock::now() - start;
    if (steps > kWarmUpSteps && spent.count() >= seconds) {
      return static_cast<double>((steps - kWarmUpSteps) * batch) / spent.count();
    }
  }
}

Status Run(const std::string& job, double seconds, const std::string& cache) {
  MUSTER_TRY_ASSIGN(const config::JobFile file, config::LoadJobYaml(job));
  MUSTER_TRY_ASSIGN(const Examples examples, Decode(file.spec.data(), cache));
  at::set_num_threads(2);
  std::printf("%.1f\n", ExamplesPerSecond(examples, file.spec, seconds));
  return Ok();
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: muster-plain-loop JOB.yaml SECONDS CACHE_DIRECTORY\n", stderr);
    return 2;
  }
  const muster::Status status = muster::bench::Run(argv[1], std::atof(argv[2]), argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "muster-plain-loop: %s\n", muster::ToString(status).c_str());
  return 1;
}
