#include "strategy/train/metrics.h"

#include <fmt/format.h>

#include "common/messages/metric_sums.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/replica_context.h"
#include "strategy/train/loss.h"

namespace muster {
namespace {

constexpr auto kBuckets = static_cast<std::int64_t>(kAucBuckets);

[[noreturn]] void RaiseShapes(const std::string& name, const torch::Tensor& predictions,
                              const torch::Tensor& labels) {
  raise(InvalidArgument("metric {}: predictions of shape {} do not fit labels of shape {} ({})",
                        name, ShapeText(predictions), ShapeText(labels),
                        toString(labels.scalar_type())));
}

}  // namespace

Metric::Metric(std::string name, const std::vector<Sum>& sums) : name_(std::move(name)) {
  for (const Sum& sum : sums) {
    variables_.push_back(
        Variable::create(name_ + "/" + sum.name,
                         [sizes = sum.sizes] { return torch::zeros(sizes, torch::kFloat64); },
                         {.synchronization = VariableSynchronization::kOnRead,
                          .aggregation = VariableAggregation::kSum}));
  }
}

void Metric::add(std::size_t sum, const torch::Tensor& value) const {
  variables_[sum].assign_add(value, /*read_value=*/false);
}

double Metric::result() const {
  const torch::NoGradGuard no_grad;
  ReplicaContext* const replica = get_replica_context();
  std::vector<torch::Tensor> sums;
  for (const Variable& variable : variables_) {
    torch::Tensor sum = variable.value();
    const bool part = replica != nullptr && replica->num_replicas_in_sync() > 1 &&
                      variable.kind() == Variable::Kind::kSyncOnRead;
    if (part) sum = replica->all_reduce(ReduceOp::kSum, sum);
    sums.push_back(sum);
  }
  return compute(sums);
}

void Metric::reset() const {
  for (const Variable& variable : variables_) variable.assign(0, /*read_value=*/false);
}

Mean::Mean(std::string name) : Metric(std::move(name), {{"total", {}}, {"count", {}}}) {}

void Mean::update(const torch::Tensor& values, const torch::Tensor& weights) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor wide = values.to(torch::kFloat64);
  if (!weights.defined()) {
    add(0, wide.sum());
    add(1, torch::scalar_tensor(wide.numel(), torch::kFloat64));
    return;
  }
  const torch::Tensor each =
      internal::broadcast_weights(name().c_str(), weights.to(torch::kFloat64), wide);
  add(0, (wide * each).sum());
  add(1, each.sum());
}

void Mean::update(double value, double weight) const {
  update(torch::scalar_tensor(value, torch::kFloat64),
         torch::scalar_tensor(weight, torch::kFloat64));
}

double Mean::compute(const std::vector<torch::Tensor>& sums) const {
  const auto count = sums[1].item<double>();
  return count == 0 ? 0 : sums[0].item<double>() / count;
}

Accuracy::Accuracy(std::string name, double threshold)
    : Mean(std::move(name)), threshold_(threshold) {}

void Accuracy::update(const torch::Tensor& predictions, const torch::Tensor& labels,
                      const torch::Tensor& weights) const {
  const torch::NoGradGuard no_grad;
  const bool integers = torch::isIntegralType(labels.scalar_type(), /*includeBool=*/false);
  const bool classes =
      integers && predictions.dim() == labels.dim() + 1 && predictions.size(-1) > 1 &&
      predictions.sizes().slice(0, static_cast<std::size_t>(labels.dim())).equals(labels.sizes());
  if (classes) return Mean::update(predictions.argmax(-1) == labels, weights);
  if (predictions.numel() != labels.numel()) RaiseShapes(name(), predictions, labels);
  Mean::update((predictions.reshape(labels.sizes()) > threshold_) == (labels > 0.5), weights);
}

AUC::AUC(std::string name, bool from_logits)
    : Metric(std::move(name), {{"positive", {kBuckets}}, {"negative", {kBuckets}}}),
      from_logits_(from_logits) {}

void AUC::update(const torch::Tensor& predictions, const torch::Tensor& labels,
                 const torch::Tensor& weights) const {
  const torch::NoGradGuard no_grad;
  if (predictions.numel() != labels.numel()) RaiseShapes(name(), predictions, labels);
  torch::Tensor scores = predictions.reshape(labels.sizes()).to(torch::kFloat64);
  if (from_logits_) scores = scores.sigmoid();
  const torch::Tensor bucket =
      torch::nan_to_num(scores * kBuckets, 0).clamp(0, kBuckets - 1).to(torch::kLong).reshape({-1});
  const torch::Tensor each =
      weights.defined()
          ? internal::broadcast_weights(name().c_str(), weights.to(torch::kFloat64), scores)
          : torch::ones_like(scores);
  const torch::Tensor positive = (labels > 0.5).to(torch::kFloat64);
  const auto counts = [&](const torch::Tensor& of) {
    return torch::zeros({kBuckets}, torch::dtype(torch::kFloat64).device(of.device()))
        .index_add_(0, bucket, of.reshape({-1}));
  };
  add(0, counts(each * positive));
  add(1, counts(each * (1 - positive)));
}

double AUC::compute(const std::vector<torch::Tensor>& sums) const {
  const torch::Tensor up = sums[0].cpu().contiguous();
  const torch::Tensor down = sums[1].cpu().contiguous();
  return AreaUnderCurve({up.data_ptr<double>(), kAucBuckets},
                        {down.data_ptr<double>(), kAucBuckets});
}

}  // namespace muster
