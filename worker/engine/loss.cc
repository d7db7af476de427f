#include "worker/engine/loss.h"

#include <cmath>

#include <fmt/ranges.h>

#include "common/base/suggest.h"
#include "common/base/words.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/job_spec.pb.h"
#include "worker/engine/metrics.h"
#include "worker/engine/script_error.h"
#include "worker/engine/tensors.h"

namespace muster::engine {
namespace {

std::vector<std::string> NamesOf(const std::vector<data::ColumnInfo>& columns) {
  std::vector<std::string> names;
  for (const data::ColumnInfo& column : columns) names.push_back(column.name);
  return names;
}

std::string UnknownColumn(std::string_view what, const std::string& name,
                          const std::vector<data::ColumnInfo>& columns) {
  const std::vector<std::string> names = NamesOf(columns);
  return fmt::format("{} \"{}\" is no column of the data{}; columns: {}", what, name,
                     DidYouMean(name, names), Joined(names));
}

// [batch] from [batch] or [batch, 1].
Result<at::Tensor> Flat(const at::Tensor& tensor, std::string_view what) {
  if (tensor.dim() == 1) return tensor;
  if (tensor.dim() == 2 && tensor.size(1) == 1) return tensor.reshape({-1});
  return InvalidArgument("{} is {}; wanted [batch] or [batch, 1]", what, Describe(tensor));
}

Status SameBatch(const at::Tensor& output, const at::Tensor& label) {
  if (output.dim() > 0 && label.dim() > 0 && output.size(0) == label.size(0)) return Ok();
  return InvalidArgument("forward returns {} but the label is {}: the first dimension is the batch",
                         Describe(output), Describe(label));
}

}  // namespace

// Compiles the user's function, if it has one, and holds label and metrics against the columns.
std::unique_ptr<Loss> Loss::Create(const v1::JobSpec& spec,
                                   const std::vector<data::ColumnInfo>& columns,
                                   std::vector<std::string>& problems) {
  const std::size_t before = problems.size();
  auto loss = std::make_unique<Loss>();
  loss->label_name_ = spec.loss().label();
  for (const int metric : spec.metrics()) {
    loss->accuracy_ |= metric == v1::METRIC_ACCURACY;
    loss->auc_ |= metric == v1::METRIC_AUC;
  }
  const bool has_function = !spec.loss().function().empty();
  if (has_function == (spec.loss().kind() != v1::LOSS_KIND_UNSPECIFIED)) {
    problems.push_back("loss: give exactly one of kind and function");
    return nullptr;
  }
  if (has_function) {
    loss->kind_ = Kind::kFunction;
    loss->source_ = spec.loss().function();
    auto function = CompileLoss(loss->source_);
    if (!function.ok()) {
      problems.push_back(Message(function.status()));
    } else {
      loss->function_ = *std::move(function);
      const auto& arguments = loss->function_->arguments();
      for (std::size_t i = 1; i < arguments.size(); ++i) {
        if (data::FindColumn(columns, arguments[i].name) == nullptr &&
            !arguments[i].default_value) {
          problems.push_back(UnknownColumn("loss function: argument", arguments[i].name, columns));
        }
      }
    }
    if ((loss->accuracy_ || loss->auc_) && loss->label_name_.empty()) {
      problems.push_back("metrics accuracy and auc need loss.label, the column with the target");
    }
  } else {
    loss->kind_ = spec.loss().kind() == v1::LOSS_KIND_BCE_WITH_LOGITS ? Kind::kBceWithLogits
                  : spec.loss().kind() == v1::LOSS_KIND_MSE           ? Kind::kMse
                                                                      : Kind::kSoftmaxCrossEntropy;
    if (loss->label_name_.empty()) problems.push_back("loss.label: the column with the target");
  }
  if (!loss->label_name_.empty()) {
    const data::ColumnInfo* label = data::FindColumn(columns, loss->label_name_);
    if (label == nullptr) {
      problems.push_back(UnknownColumn("loss.label", loss->label_name_, columns));
    } else if (label->dtype == DType::kString) {
      problems.push_back(fmt::format("loss.label \"{}\" is {}; a label is a number",
                                     loss->label_name_, Describe(*label)));
    }
  }
  if (loss->accuracy_ && loss->kind_ == Kind::kMse) {
    problems.push_back("metric accuracy: loss mse predicts no class; leave it out");
  }
  if (loss->auc_ && (loss->kind_ == Kind::kMse || loss->kind_ == Kind::kSoftmaxCrossEntropy)) {
    problems.push_back("metric auc: needs loss bce_with_logits, which scores one class");
  }
  return problems.size() == before ? std::move(loss) : nullptr;
}

std::vector<std::string> Loss::columns() const {
  std::vector<std::string> names;
  if (!label_name_.empty()) names.push_back(label_name_);
  if (function_ == nullptr) return names;
  const auto& arguments = function_->arguments();
  for (std::size_t i = 1; i < arguments.size(); ++i) names.push_back(arguments[i].name);
  return names;
}

Result<at::Tensor> Loss::Compute(const at::IValue& output, const data::Element& batch) {
  examples_ = batch.columns.empty() || batch.columns[0].info.shape.empty()
                  ? 0
                  : batch.columns[0].info.shape[0];
  output_ = at::Tensor();
  label_ = at::Tensor();
  if (kind_ == Kind::kFunction) return Function(output, batch);
  if (!output.isTensor()) {
    return InvalidArgument("forward returns {}; this loss needs one tensor", output.tagKind());
  }
  output_ = output.toTensor();
  if (!output_.is_floating_point()) {
    return InvalidArgument("forward returns {}; the loss needs floating point", Describe(output_));
  }
  if (output_.scalar_type() != at::kFloat) output_ = output_.to(at::kFloat);
  const data::Column* column = batch.Find(label_name_);
  if (column == nullptr) return InvalidArgument("the batch has no column \"{}\"", label_name_);
  const at::Tensor label = View(*column);
  MUSTER_TRY(SameBatch(output_, label));
  switch (kind_) {
    case Kind::kSoftmaxCrossEntropy:
      return Softmax(label);
    case Kind::kBceWithLogits:
      return Binary(label);
    default:
      return Squared(label);
  }
}

// Keeps the labels as classes for the metrics. Each is looked at first: libtorch would not say
// which example has a wrong one.
Result<at::Tensor> Loss::Softmax(const at::Tensor& label) {
  if (output_.dim() != 2) {
    return InvalidArgument("forward returns {}; softmax_cross_entropy needs [batch, classes]",
                           Describe(output_));
  }
  MUSTER_TRY_ASSIGN(label_, Flat(label, "label \"" + label_name_ + "\""));
  const std::int64_t classes = output_.size(1);
  if (at::isFloatingType(label_.scalar_type())) {
    const at::Tensor given = label_.to(at::kDouble).contiguous();
    const auto* values = given.data_ptr<double>();
    for (std::int64_t i = 0; i < given.numel(); ++i) {
      if (values[i] == std::trunc(values[i])) continue;
      return InvalidArgument(
          "label \"{}\" is {} (example {} of the batch); softmax_cross_entropy needs whole "
          "numbers, 0 to {}",
          label_name_, values[i], i, classes - 1);
    }
  }
  label_ = label_.to(at::kLong).contiguous();
  const auto* labels = label_.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < label_.numel(); ++i) {
    if (labels[i] < 0 || labels[i] >= classes) {
      return InvalidArgument(
          "label \"{}\" is {} (example {} of the batch), but forward returns {} classes: labels "
          "are 0 to {}",
          label_name_, labels[i], i, classes, classes - 1);
    }
  }
  classes_ = true;
  return at::cross_entropy_loss(output_, label_);
}

Result<at::Tensor> Loss::Binary(const at::Tensor& label) {
  MUSTER_TRY_ASSIGN(output_, Flat(output_, "what forward returns"));
  MUSTER_TRY_ASSIGN(label_, Flat(label, "label \"" + label_name_ + "\""));
  label_ = label_.to(at::kFloat).contiguous();
  const auto* labels = label_.data_ptr<float>();
  for (std::int64_t i = 0; i < label_.numel(); ++i) {
    if (!(labels[i] >= 0.0f && labels[i] <= 1.0f)) {
      return InvalidArgument(
          "label \"{}\" is {} (example {} of the batch); bce_with_logits needs "
          "0 to 1",
          label_name_, labels[i], i);
    }
  }
  classes_ = false;
  return at::binary_cross_entropy_with_logits(output_, label_);
}

Result<at::Tensor> Loss::Squared(const at::Tensor& label) {
  label_ = label.to(at::kFloat);
  if (label_.numel() == output_.numel() && label_.dim() != output_.dim()) {
    // [batch] against [batch, 1]
    if (auto flat = Flat(output_, ""); flat.ok() && label_.dim() == 1) output_ = *flat;
    if (auto flat = Flat(label_, ""); flat.ok() && output_.dim() == 1) label_ = *flat;
  }
  if (label_.sizes() != output_.sizes()) {
    return InvalidArgument("forward returns {} but label \"{}\" is {}; mse needs the same shape",
                           Describe(output_), label_name_, Describe(label_));
  }
  return at::mse_loss(output_, label_);
}

// Calls the user's function with the output and the columns it names; keeps what metrics need.
Result<at::Tensor> Loss::Function(const at::IValue& output, const data::Element& batch) {
  if (output.isTensor()) output_ = output.toTensor();
  std::vector<at::IValue> values{output};
  const auto& arguments = function_->arguments();
  // The metrics read what forward has returned, not what the function makes of it in place.
  if (output.isTensor() && arguments[0].written) values[0] = output.toTensor().clone();
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const data::Column* column = batch.Find(arguments[i].name);
    if (column == nullptr) {
      if (arguments[i].default_value) {
        values.push_back(*arguments[i].default_value);
        continue;
      }
      return InvalidArgument("the batch has no column \"{}\"", arguments[i].name);
    }
    const at::Tensor view = View(*column);
    values.emplace_back(arguments[i].written ? view.clone() : view);
  }
  at::IValue result;
  try {
    result = function_->Call(std::move(values));
  } catch (...) {
    return CurrentException(kLossFunction, source_);
  }
  if (!result.isTensor() || result.toTensor().numel() != 1 ||
      !result.toTensor().is_floating_point()) {
    return InvalidArgument("loss function: returns {}; wanted the mean over the batch, one number",
                           result.isTensor() ? Describe(result.toTensor()) : result.tagKind());
  }
  MUSTER_TRY(PrepareFunctionMetrics(batch));
  return result.toTensor().reshape({});
}

Status Loss::PrepareFunctionMetrics(const data::Element& batch) {
  if (!accuracy_ && !auc_) return Ok();
  const data::Column* column = batch.Find(label_name_);
  if (column == nullptr || !output_.defined()) {
    return InvalidArgument("metrics accuracy and auc need forward to return one tensor");
  }
  MUSTER_TRY_ASSIGN(label_, Flat(View(*column), "label \"" + label_name_ + "\""));
  MUSTER_TRY(SameBatch(output_, label_));
  output_ = output_.to(at::kFloat);
  classes_ = output_.dim() == 2 && output_.size(1) > 1;
  if (!classes_) {
    MUSTER_TRY_ASSIGN(output_, Flat(output_, "what forward returns"));
  } else if (auc_) {
    return InvalidArgument("forward returns {}; metric auc needs one score for each example",
                           Describe(output_));
  }
  label_ = label_.to(classes_ ? at::kLong : at::kFloat).contiguous();
  return Ok();
}

void Loss::AddMetrics(double loss, bool scores, v1::MetricSums& sums) const {
  sums.set_examples(sums.examples() + static_cast<std::uint64_t>(examples_));
  sums.set_loss_sum(sums.loss_sum() + loss * static_cast<double>(examples_));
  if (!accuracy_ && !(auc_ && scores)) return;
  const at::Tensor output = output_.detach().contiguous();
  const auto n = static_cast<std::size_t>(label_.numel());
  const float* values = output.data_ptr<float>();
  if (accuracy_) {
    const std::uint64_t correct = classes_ ? CountArgmax(values, label_.data_ptr<std::int64_t>(), n,
                                                         static_cast<std::size_t>(output.size(1)))
                                           : CountSigns(values, label_.data_ptr<float>(), n);
    sums.set_correct(sums.correct() + correct);
  }
  if (auc_ && scores) AddScores(values, label_.data_ptr<float>(), n, sums);
}

}  // namespace muster::engine
