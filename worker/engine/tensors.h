// Columns as tensors. Internal: includes libtorch.
#pragma once

#include <string>

#include "common/data/element.h"
#include "common/torch/dtypes.h"
#include "worker/engine/torch.h"

namespace muster::engine {

// The column's memory as a tensor: no copy, and nobody may write into it.
at::Tensor View(const data::Column& column);
// "float32 [2, 10]".
std::string Describe(const at::Tensor& tensor);
// "int64 [batch, 26]": the first dimension is the batch, '?' stands for an unknown size.
std::string Describe(const data::ColumnInfo& column);

}  // namespace muster::engine
