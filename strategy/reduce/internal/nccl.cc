#include "strategy/reduce/internal/nccl.h"

#include "common/base/words.h"
#include "strategy/base/internal/raise.h"
#include "strategy/values/internal/reduction.h"

#ifdef MUSTER_NCCL
// libtorch's own communicators, one for each list of cards, and its current streams: what it has
// queued for these tensors comes first, what it queues next comes after.
#include <torch/csrc/cuda/nccl.h>
#endif

namespace muster::internal {

#ifdef MUSTER_NCCL

namespace {

// int32 is reduced on one device, as everywhere (cross_device_ops_for()).
bool Sums(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
    case torch::kFloat64:
    case torch::kInt64:
    case torch::kInt8:
    case torch::kUInt8:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool nccl_in_build() { return true; }

bool nccl_all_reduce(ReduceOp op, const std::vector<torch::Tensor>& values,
                     std::vector<torch::Tensor>& results) {
  const torch::ScalarType type = values[0].scalar_type();
  const torch::ScalarType wide = sum_type(type);
  if (!Sums(wide)) return false;
  if (op == ReduceOp::kMean && torch::isIntegralType(type, /*includeBool=*/true)) return false;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> inputs;
  for (const torch::Tensor& value : values) {
    if (!value.is_cuda() || value.layout() != torch::kStrided || value.scalar_type() != type ||
        !value.sizes().equals(values[0].sizes())) {
      return false;
    }
    inputs.push_back(value.detach().to(wide).contiguous());
  }
  results.clear();
  for (const torch::Tensor& input : inputs) {
    results.push_back(torch::empty(input.sizes(), input.options()));
  }
  try {
    if (inputs[0].numel() > 0) torch::cuda::nccl::all_reduce(inputs, results);
  } catch (const c10::Error& error) {
    raise(Unavailable("all-reduce by NCCL over {}: {}", Counted(inputs.size(), "card"),
                      error.what_without_backtrace()));
  }
  for (torch::Tensor& result : results) {
    if (op == ReduceOp::kMean) result.div_(static_cast<std::int64_t>(values.size()));
    result = result.to(type);  // itself, but for narrow types
  }
  return true;
}

#else

bool nccl_in_build() { return false; }

bool nccl_all_reduce(ReduceOp, const std::vector<torch::Tensor>&, std::vector<torch::Tensor>&) {
  return false;
}

#endif

}  // namespace muster::internal
