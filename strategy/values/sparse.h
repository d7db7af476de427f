// Arithmetic of IndexedSlices, and of tensors beside them: what gradients go through on their way.
//
// A sparse COO tensor with one sparse dimension is IndexedSlices in another form: what takes the
// one takes the other. INVALID_ARGUMENT for other sparse tensors.
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <string>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"

namespace muster {

// Whether it is sparse. INVALID_ARGUMENT: with another number of sparse dimensions than one, or of
// another layout than COO.
bool is_slices(const torch::Tensor& tensor);
// No copies; an index may come twice.
IndexedSlices to_slices(const torch::Tensor& sparse);
torch::Tensor to_sparse(const IndexedSlices& slices);
// Rows of one index add up. INVALID_ARGUMENT, for both: without a dense_shape; an index, or rows,
// beyond it; indices that are no list of int32 or int64.
torch::Tensor to_dense(const IndexedSlices& slices);

// The sum. Slices are joined in order, duplicates kept: sparse stays sparse.
//   INVALID_ARGUMENT: no values, dense shapes or types that differ.
torch::Tensor aggregate(const std::vector<torch::Tensor>& values);
IndexedSlices aggregate(const std::vector<IndexedSlices>& values);

torch::Tensor divide_by(const torch::Tensor& value, int divisor);
IndexedSlices divide_by(const IndexedSlices& value, int divisor);

// A copy that shares nothing with the original. An absent dense_shape stays absent.
torch::Tensor copy_to_device(const torch::Tensor& value, const std::string& device);
IndexedSlices copy_to_device(const IndexedSlices& value, const std::string& device);

}  // namespace muster
