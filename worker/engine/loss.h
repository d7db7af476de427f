// The loss of a job and the sums of its metrics. Internal: includes libtorch.
//
// Threading: the thread that made it. Compute() throws libtorch's exceptions; Model catches them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"
#include "worker/engine/network.h"

namespace muster::v1 {
class JobSpec;
class MetricSums;
}  // namespace muster::v1

namespace muster::engine {

class Loss {
 public:
  // Everything wrong is added to `problems`; the result is then null.
  static std::unique_ptr<Loss> Create(const v1::JobSpec& spec,
                                      const std::vector<data::ColumnInfo>& columns,
                                      std::vector<std::string>& problems);

  // Columns that it reads.
  std::vector<std::string> columns() const;

  // The mean loss over the batch, a scalar that autograd can follow.
  //   kInvalidArgument: the output's or the label's shape or type does not suit the loss, or a
  //   label is out of range (which example).
  Result<at::Tensor> Compute(const at::IValue& output, const data::Element& batch);

  // Adds this batch: examples, loss, and the job's metrics (the AUC only with `scores`). Call it
  // after Compute() for the same batch.
  void AddMetrics(double loss, bool scores, v1::MetricSums& sums) const;

 private:
  enum class Kind { kSoftmaxCrossEntropy, kBceWithLogits, kMse, kFunction };

  Result<at::Tensor> Softmax(const at::Tensor& label);
  Result<at::Tensor> Binary(const at::Tensor& label);
  Result<at::Tensor> Squared(const at::Tensor& label);
  Result<at::Tensor> Function(const at::IValue& output, const data::Element& batch);
  // A user's function: metrics as for softmax when the output has classes, else as for BCE.
  Status PrepareFunctionMetrics(const data::Element& batch);

  Kind kind_ = Kind::kSoftmaxCrossEntropy;
  std::string source_;
  std::string label_name_;
  std::unique_ptr<ScriptFunction> function_;
  bool accuracy_ = false;
  bool auc_ = false;

  // What the last Compute() had: outputs and labels in the form that the metrics read.
  at::Tensor output_;
  at::Tensor label_;
  std::int64_t examples_ = 0;
  bool classes_ = false;
};

}  // namespace muster::engine
