// The arithmetic of reductions over replicas, on plain tensors.
#pragma once

#include <optional>
#include <vector>

#include "common/base/dtype.h"
#include "device/place.h"
#include "strategy/base/options.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// Sum or mean of tensors of equal shape, element by element; of the axes too when they are given
// (then shapes may differ along them). Sums are made in the order of `values`, on all threads of
// current_crew(); float16 and bfloat16 in float32; MEAN of integers is float64. Differentiable.
// Several values, some of them on a GPU or to go to one, are added on this thread's device.
//   INVALID_ARGUMENT as in Strategy::reduce(); an op that is neither; bool.
torch::Tensor reduce_tensors(ReduceOp op, const std::vector<torch::Tensor>& values,
                             const Axes& axes);

// Joined along `axis`, on this thread's device as above. INVALID_ARGUMENT: ranks differ, sizes
// differ off the axis, scalars, an axis that is negative or no axis of theirs.
torch::Tensor gather_tensors(const std::vector<torch::Tensor>& values, int axis);
// The check alone; `shapes` of all replicas.
void check_gather(const std::vector<std::vector<std::int64_t>>& shapes, int axis);

// Reduces `values` on the buffers themselves: results[d] gets what reduce_tensors() returns.
// False, and nothing done, where that is not possible (GPUs, types without kernels, gradients,
// shapes that differ): reduce_tensors() knows what to do or say.
bool reduce_buffers(ReduceOp op, const std::vector<torch::Tensor>& values,
                    const std::vector<device::Place>& devices, std::vector<torch::Tensor>& results);

// sum / count: of integers in float64.
torch::Tensor mean_of(const torch::Tensor& sum, double count);
// INVALID_ARGUMENT: neither SUM nor MEAN.
void check_op(ReduceOp op);
// Absent: no type that collectives/ knows (complex, quantised).
std::optional<DType> dtype_of(torch::ScalarType type);
torch::ScalarType scalar_type_of(DType type);
// What values of a type are added in: float32 for float16 and bfloat16, else the type itself.
torch::ScalarType sum_type(torch::ScalarType type);
// The same where the sum is to be divided: int64 for integers.
torch::ScalarType mean_sum_type(torch::ScalarType type);

}  // namespace muster::internal
