// An MLP on Fashion-MNIST, and what one plain libtorch loop makes of it: what training by several
// is compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <zlib.h>

#include "common/telemetry/log.h"
#include "strategy/base/torch.h"

namespace muster::testing::fashion {

inline constexpr std::int64_t kExamples = 1024;
inline constexpr std::int64_t kBatch = 16;

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  MlpImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(784, 16));
    out = register_module("out", torch::nn::Linear(16, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out->forward(torch::relu(hidden->forward(x)));
  }
  torch::nn::Linear hidden = nullptr;
  torch::nn::Linear out = nullptr;
};

struct Examples {
  torch::Tensor images;
  torch::Tensor labels;
};

inline constexpr char kFolder[] = "/usr/share/datasets/fashion-mnist/";

// The bytes of a compressed IDX file behind its header; empty: it is not there.
inline std::vector<std::uint8_t> ReadIdx(const std::string& name, std::size_t header,
                                         std::size_t bytes) {
  const gzFile file = gzopen((kFolder + name).c_str(), "rb");
  if (file == nullptr) return {};
  std::vector<std::uint8_t> all(header + bytes);
  const int got = gzread(file, all.data(), static_cast<unsigned>(all.size()));
  gzclose(file);
  if (got != static_cast<int>(all.size())) return {};
  return {all.begin() + static_cast<std::ptrdiff_t>(header), all.end()};
}

// Whether this machine has them.
inline bool Here() { return !ReadIdx("t10k-labels-idx1-ubyte.gz", 8, kExamples).empty(); }

// Real ones where this machine has them, else as many of the same shape that can be told apart, and
// a warning.
inline const Examples& AllExamples() {
  static const Examples all = [] {
    auto images = ReadIdx("t10k-images-idx3-ubyte.gz", 16, kExamples * 784);
    auto labels = ReadIdx("t10k-labels-idx1-ubyte.gz", 8, kExamples);
    if (!images.empty() && !labels.empty()) {
      return Examples{
          torch::from_blob(images.data(), {kExamples, 784}, torch::kByte).to(torch::kDouble) / 255,
          torch::from_blob(labels.data(), {kExamples}, torch::kByte).to(torch::kLong)};
    }
    log::Warning("no Fashion-MNIST in {}: its place is taken by images that are made up", kFolder);
    torch::manual_seed(0);
    const torch::Tensor label = torch::randint(10, {kExamples}, torch::kLong);
    const torch::Tensor kinds = torch::rand({10, 784}, torch::kDouble);
    return Examples{
        kinds.index_select(0, label) * 0.5 + torch::rand({kExamples, 784}, torch::kDouble) * 0.5,
        label};
  }();
  return all;
}

// What one run is made of, whoever makes it.
struct Course {
  std::uint64_t seed;
  torch::ScalarType type;
  int steps;
  torch::Tensor order = {};

  std::shared_ptr<MlpImpl> Begin() {
    torch::manual_seed(seed);
    auto net = std::make_shared<MlpImpl>();
    net->to(type);
    std::vector<torch::Tensor> epochs;
    for (std::int64_t rows = 0; rows < steps * kBatch; rows += kExamples) {
      epochs.push_back(torch::randperm(kExamples));
    }
    order = torch::cat(epochs);
    return net;
  }
  Examples Rows(int step, std::int64_t begin, std::int64_t count) const {
    const torch::Tensor rows = order.narrow(0, step * kBatch + begin, count);
    return {AllExamples().images.index_select(0, rows).to(type),
            AllExamples().labels.index_select(0, rows)};
  }
};

template <class Torch, class Options>
std::vector<double> PlainLosses(Course course, const Options& options) {
  const auto net = course.Begin();
  Torch optimizer(net->parameters(), options);
  std::vector<double> losses;
  for (int step = 0; step < course.steps; ++step) {
    const Examples batch = course.Rows(step, 0, kBatch);
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(net->forward(batch.images), batch.labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

}  // namespace muster::testing::fashion
