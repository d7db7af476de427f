// Metrics that every replica counts for itself and that are read as one: ON_READ SUM variables, in
// float64.
//
//   auto scope = strategy.scope();
//   Mean loss("loss");
//   Accuracy accuracy;
//   strategy.run([&](const Batch& batch) { ...; accuracy.update(logits, batch.labels); }, batches);
//   accuracy.result();   // of all replicas: what one process would have counted
//
// Metrics belong to the strategy in whose scope they were made; copies are the same metric.
// update() counts in replicas (under a strategy of one device, and under none, anywhere); across
// replicas it is INVALID_ARGUMENT, for there is no replica to count it.
// result() is 0 when nothing was counted. Inside run() all replicas must ask for it
// together. Weights have the shape of the first axes of the values, or one element.
//
// Threading: any thread, replicas at the same time; a result() beside an update() may see a part of
// it.
#pragma once

#include <string>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/variables/variable.h"

namespace muster {

class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }
  double result() const;
  // Inside run(): this replica's part alone.
  void reset() const;
  // What it is made of, for checkpoints.
  const std::vector<Variable>& variables() const { return variables_; }

 protected:
  struct Sum {
    const char* name;
    std::vector<std::int64_t> sizes;
  };
  Metric(std::string name, const std::vector<Sum>& sums);
  void add(std::size_t sum, const torch::Tensor& value) const;
  virtual double compute(const std::vector<torch::Tensor>& sums) const = 0;

 private:
  std::string name_;
  std::vector<Variable> variables_;
};

// The weighted mean of all values: sum(values * weights) / sum(weights).
class Mean : public Metric {
 public:
  explicit Mean(std::string name = "mean");
  void update(const torch::Tensor& values, const torch::Tensor& weights = {}) const;
  void update(double value, double weight = 1) const;

 protected:
  double compute(const std::vector<torch::Tensor>& sums) const override;
};

// The share of predictions that are right. Classes: predictions [..., classes] with integer labels
// [...], right when the first of the largest is the label. Binary: as many predictions as labels,
// right when `prediction > threshold` equals `label > 0.5`.
//   INVALID_ARGUMENT: other shapes.
class Accuracy : public Mean {
 public:
  // The default threshold is for logits; 0.5 is for probabilities.
  explicit Accuracy(std::string name = "accuracy", double threshold = 0);
  void update(const torch::Tensor& predictions, const torch::Tensor& labels,
              const torch::Tensor& weights = {}) const;

 private:
  double threshold_;
};

// Area under the ROC curve, of scores in 4096 buckets of equal width; ties within a bucket count
// half. Labels above 0.5 are positive. 0 without positives or without negatives, as Keras answers.
//   INVALID_ARGUMENT: not as many predictions as labels.
class AUC : public Metric {
 public:
  // Logits are put through a sigmoid; probabilities are taken as they are.
  explicit AUC(std::string name = "auc", bool from_logits = true);
  void update(const torch::Tensor& predictions, const torch::Tensor& labels,
              const torch::Tensor& weights = {}) const;

 protected:
  double compute(const std::vector<torch::Tensor>& sums) const override;

 private:
  bool from_logits_;
};

}  // namespace muster
