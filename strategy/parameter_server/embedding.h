// Rows of a large table on parameter servers, and the gradient of those alone.
//
//   const auto rows = embedding_lookup(table, ids);
//   loss(rows, labels).backward();
//   const IndexedSlices gradient = embedding_gradient(table);
//   table.scatter_sub({gradient.values * rate, gradient.indices});
//
// Threading: as Variable.
#pragma once

#include <cstdint>
#include <optional>

#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/variables/variable.h"

namespace muster {

// The rows of `table` at `ids` (int32 or int64, of any shape): ids' sizes, then a row's. Each row
// is fetched once, all of one server together, and the table never as a whole.
//   INVALID_ARGUMENT: not on parameter servers, a scalar, or an id that is no row.
torch::Tensor embedding_lookup(const Variable& table, const torch::Tensor& ids);

// What backward() has found since the last call for the rows that were looked up here: in this
// replica of this closure; outside run() in the closure, what its replicas have not asked for
// included; in the driver, on this thread. Each row once, ascending; without values where nothing
// was.
//   INVALID_ARGUMENT: not on parameter servers.
IndexedSlices embedding_gradient(const Variable& table);

enum class EmbeddingCombiner : std::uint8_t {
  kSum,
  kMean,   // divided by the sum of the weights
  kSqrtN,  // divided by the root of the sum of their squares
};

// Bags of ids, each as one combined row: bag i is ids[offsets[i]], ... up to the next bag's, as
// torch::nn::EmbeddingBag has them. An empty bag gives zeros. `weights`: one for each id;
// undefined: 1 each. Gradients are those of embedding_lookup(), and flow into the weights, too.
//   INVALID_ARGUMENT: as above; ids that are no list, offsets that are not int32 or int64, do not
//   begin at 0, go back or lie beyond the ids, weights of another size.
torch::Tensor embedding_lookup_sparse(const Variable& table, const torch::Tensor& ids,
                                      const torch::Tensor& offsets,
                                      const torch::Tensor& weights = {},
                                      EmbeddingCombiner combiner = EmbeddingCombiner::kMean);
// The same without ids below 0 and without those of weights of 0 or less. A bag that is empty then
// gets the row of `otherwise`, or zeros.
torch::Tensor safe_embedding_lookup_sparse(const Variable& table, const torch::Tensor& ids,
                                           const torch::Tensor& offsets,
                                           const torch::Tensor& weights = {},
                                           EmbeddingCombiner combiner = EmbeddingCombiner::kMean,
                                           std::optional<std::int64_t> otherwise = std::nullopt);

}  // namespace muster
