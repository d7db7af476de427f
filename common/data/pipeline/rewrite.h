// Changes of a pipeline's graph that spread it over workers and replicas.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "common/data/pipeline/pipeline.h"
#include "common/data/rebatch.h"

namespace muster::data {

// Rows of every batch, by the spec's first dimension; -1: not known, or they differ.
std::int64_t StaticBatchSize(const Node& node);
// StaticBatchSize(), else the size of the batch step that is reached through steps that leave
// batches whole (take, prefetch, zip of equal sizes, repeat, ...); -1 when there is none, or behind
// a map.
std::int64_t InferBatchSize(const Node& node);

// Cuts global batches into one piece for each replica of worker `shard`: by RebatchSizes() when the
// batch size can be inferred, else each batch evenly.
//   kInvalidArgument: CheckShard()'s, no replicas, or elements without a batch dimension
//   ("Call the batch method ...", as far as the spec tells).
Result<Pipeline> RebatchForReplicas(const Pipeline& pipeline, const Shard& shard,
                                    int replicas_per_worker);

struct Sharded {
  Pipeline pipeline;
  ShardChoice choice;
  // By file or data: the step below the shard that has drawn its order. Workers that each build the
  // pipeline then share out different orders: some elements are read twice, some by nobody. Empty:
  // there is none.
  std::string drawn_order = {};
};
// Gives worker `shard` its part. FILE: shards the stream of file names of every branch, next to its
// source; DATA: shards the elements before a trailing prefetch, and splits batches evenly first
// where they were rebatched; HINT: fills in the placeholders; AUTO: FILE, else DATA. Without
// `policy`: the last options step's, else AUTO.
//   kNotFound: policy FILE and no reader of file names (or a step that hides it).  As CheckShard.
Result<Sharded> AutoShard(const Pipeline& pipeline, const Shard& shard,
                          std::optional<AutoShardPolicy> policy = std::nullopt);

// The same elements for an iterator that finds them by their number (Iterator::Seek): nothing is
// read ahead, computed for others or kept. Functions of maps must be pure, which nobody checks.
//   kInvalidArgument: a step whose elements only running it tells, named with the reason.
Result<Pipeline> Indexed(const Pipeline& pipeline);

}  // namespace muster::data
