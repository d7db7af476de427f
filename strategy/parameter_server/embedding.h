// Rows of a large table on parameter servers, and the gradient of those alone.
//
//   const auto rows = embedding_lookup(table, ids);
//   loss(rows, labels).backward();
//   const IndexedSlices gradient = embedding_gradient(table);
//   table.scatter_sub({gradient.values * rate, gradient.indices});
//
// Threading: as Variable.
#pragma once

#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/variables/variable.h"

namespace muster {

// The rows of `table` at `ids` (int32 or int64, of any shape): ids' sizes, then a row's. Each row
// is fetched once, all of one server together, and the table never as a whole.
//   INVALID_ARGUMENT: not on parameter servers, a scalar, or an id that is no row.
torch::Tensor embedding_lookup(const Variable& table, const torch::Tensor& ids);

// What backward() has found for the rows that were looked up since the last call, here: in this
// closure, or in the driver. Each row once, ascending; without values where nothing was.
//   INVALID_ARGUMENT: not on parameter servers.
IndexedSlices embedding_gradient(const Variable& table);

}  // namespace muster
