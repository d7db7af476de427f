// sample(): each element is the next one of an input that is drawn by weight.
#include <algorithm>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/data/pipeline/nodes.h"

namespace muster::data {
namespace {

// A draw in [0, 1) chooses one of those that are left, by weight.
std::size_t Choose(const std::vector<double>& weights, double draw) {
  double total = 0;
  for (const double weight : weights) total += weight;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    draw -= weights[i] / total;
    if (draw < 0) return i;
  }
  return last;
}

class Sample final : public NodeIterator {
 public:
  Sample(std::vector<std::unique_ptr<NodeIterator>> inputs, std::vector<double> weights,
         std::uint64_t seed, bool stop_on_empty)
      : inputs_(std::move(inputs)),
        weights_(std::move(weights)),
        random_(seed),
        stop_on_empty_(stop_on_empty) {}

  Item Next() override {
    while (Goes()) {
      const std::size_t chosen = Draw();
      MUSTER_TRY_ASSIGN(std::optional<Element> one, inputs_[chosen]->Next());
      if (one) return one;
      LeaveOut(chosen);
    }
    return std::nullopt;
  }

  Result<std::int64_t> Skip(std::int64_t count) override {
    std::int64_t passed = 0;
    while (passed < count && Goes()) {
      const std::size_t chosen = Draw();
      MUSTER_TRY_ASSIGN(const std::int64_t one, inputs_[chosen]->Skip(1));
      passed += one;
      if (one == 0) LeaveOut(chosen);
    }
    return passed;
  }

 private:
  bool Goes() const {
    return std::any_of(weights_.begin(), weights_.end(), [](double w) { return w > 0; });
  }
  std::size_t Draw() { return Choose(weights_, static_cast<double>(random_() >> 11) * 0x1p-53); }
  // It has ended, and is not asked again.
  void LeaveOut(std::size_t input) {
    if (stop_on_empty_) std::fill(weights_.begin(), weights_.end(), 0.0);
    weights_[input] = 0;
  }

  const std::vector<std::unique_ptr<NodeIterator>> inputs_;
  std::vector<double> weights_;
  std::mt19937_64 random_;
  const bool stop_on_empty_;
};

class SampleNode final : public Node {
 public:
  SampleNode(std::vector<NodePtr> inputs, Pipeline::SampleOptions options, std::uint64_t drawn)
      : Node(std::move(inputs)), options_(std::move(options)), drawn_(drawn) {}

  NodeKind kind() const override { return NodeKind::kSample; }
  std::string Describe() const override {
    return fmt::format("sample(weights=[{}]{}{})", fmt::join(options_.weights, ", "),
                       options_.seed ? fmt::format(", seed={}", *options_.seed) : "",
                       options_.stop_on_empty ? ", until one has ended" : "");
  }
  ElementSpec spec() const override {
    const ElementSpec first = input().spec();
    for (const NodePtr& one : inputs()) {
      if (one->spec() != first) return std::nullopt;
    }
    return first;
  }
  std::int64_t cardinality() const override {
    const bool endless = std::all_of(inputs().begin(), inputs().end(), [](const NodePtr& one) {
      return one->cardinality() == kInfinite;
    });
    return endless ? kInfinite : kUnknownCardinality;
  }
  std::optional<std::uint64_t> drawn_seed() const override {
    if (options_.seed) return std::nullopt;
    return drawn_;
  }
  NodePtr WithInputs(std::vector<NodePtr> inputs) const override {
    return MakeSample(std::move(inputs), options_, drawn_);
  }
  Result<std::unique_ptr<NodeIterator>> MakeIterator(
      const IteratorContext& context) const override {
    std::vector<std::unique_ptr<NodeIterator>> all;
    for (const NodePtr& one : inputs()) {
      MUSTER_TRY_ASSIGN(all.emplace_back(), one->MakeIterator(context));
    }
    const std::uint64_t seed = options_.seed ? *options_.seed : SeedOf(*this, context);
    return std::make_unique<Sample>(std::move(all), options_.weights, seed, options_.stop_on_empty);
  }

 private:
  const Pipeline::SampleOptions options_;
  const std::uint64_t drawn_;
};

}  // namespace

NodePtr MakeSample(std::vector<NodePtr> inputs, Pipeline::SampleOptions options,
                   std::uint64_t drawn) {
  return std::make_shared<SampleNode>(std::move(inputs), std::move(options), drawn);
}

}  // namespace muster::data
