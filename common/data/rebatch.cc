#include "common/data/rebatch.h"

#include <algorithm>

#include "common/base/words.h"

namespace muster::data {

Status CheckShard(const Shard& shard) {
  if (shard.workers < 1) {
    return InvalidArgument("{} workers; at least one is wanted", shard.workers);
  }
  if (shard.index < 0 || shard.index >= shard.workers) {
    return InvalidArgument("worker {} of {}; 0 to {} is allowed", shard.index, shard.workers,
                           shard.workers - 1);
  }
  return Ok();
}

Result<InputContext> InputContext::Create(int num_pipelines, int pipeline_id,
                                          int num_replicas_in_sync) {
  MUSTER_TRY(CheckShard({.workers = num_pipelines, .index = pipeline_id}));
  if (num_replicas_in_sync < 0) {
    return InvalidArgument("{} replicas in sync; 0 and more are allowed", num_replicas_in_sync);
  }
  return InputContext(num_pipelines, pipeline_id, num_replicas_in_sync);
}

Result<std::int64_t> InputContext::PerReplicaBatchSize(std::int64_t global_batch_size) const {
  if (global_batch_size < 0 || num_replicas_in_sync_ == 0 ||
      global_batch_size % num_replicas_in_sync_ != 0) {
    return InvalidArgument("a global batch of {} is not divisible by {} in sync", global_batch_size,
                           Counted(num_replicas_in_sync_, "replica"));
  }
  return global_batch_size / num_replicas_in_sync_;
}

std::string InputContext::ToString() const {
  return fmt::format("tf.distribute.InputContext(input pipeline id {}, total: {})", pipeline_id_,
                     num_pipelines_);
}

Result<std::vector<std::int64_t>> RebatchSizes(std::int64_t global_batch, const Shard& shard,
                                               int replicas_per_worker) {
  MUSTER_TRY(CheckShard(shard));
  constexpr std::int64_t kMostReplicas = 1 << 20;
  const std::int64_t replicas = std::int64_t{shard.workers} * replicas_per_worker;
  if (replicas_per_worker < 1 || replicas > kMostReplicas) {
    return InvalidArgument("replicas_per_worker is {} on {}; 1 to {} in all are allowed",
                           replicas_per_worker, Counted(shard.workers, "worker"), kMostReplicas);
  }
  if (global_batch < 1) {
    return InvalidArgument("a global batch of {}; at least 1 is wanted", global_batch);
  }
  // Replica n of all takes base[n] in the first step. A worker's list begins with its own replicas
  // and goes on with the others', because the next step's pieces are counted on from there.
  const std::int64_t larger = global_batch % replicas;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(replicas), global_batch / replicas);
  for (std::int64_t n = 0; n < larger; ++n) ++sizes[static_cast<std::size_t>(n)];
  std::rotate(sizes.begin(), sizes.begin() + std::int64_t{shard.index} * replicas_per_worker,
              sizes.end());
  return sizes;
}

Result<std::vector<std::int64_t>> EvenSplit(std::int64_t batch, int pieces) {
  if (pieces < 1 || batch < 0) {
    return InvalidArgument(
        "cannot cut a batch of {} into {}; 0 and more into at least 1 is allowed", batch, pieces);
  }
  const std::int64_t most = batch / pieces + (batch % pieces == 0 ? 0 : 1);
  std::vector<std::int64_t> sizes;
  for (int n = 0; n < pieces; ++n) {
    sizes.push_back(std::min(most, batch));
    batch -= sizes.back();
  }
  return sizes;
}

Result<ShardChoice> ChooseSharding(AutoShardPolicy policy, const Shard& shard,
                                   const PipelineFacts& facts) {
  MUSTER_TRY(CheckShard(shard));
  if (policy == AutoShardPolicy::kOff) return ShardChoice{};
  if (policy == AutoShardPolicy::kHint) {
    return ShardChoice{.by = facts.has_placeholder ? ShardBy::kPlaceholder : ShardBy::kNothing};
  }
  if (shard.workers == 1) return ShardChoice{};
  if (policy == AutoShardPolicy::kData) return ShardChoice{.by = ShardBy::kData};
  if (facts.has_file_names) return ShardChoice{.by = ShardBy::kFile};
  if (policy == AutoShardPolicy::kAuto) {
    return ShardChoice{
        .by = ShardBy::kData, .fell_back = true, .hider_of_files = facts.hider_of_files};
  }
  if (!facts.hider_of_files.empty()) {
    return NotFound(
        "sharding by file over {} workers is not possible through {}, which needs all elements in "
        "order; shard by data instead",
        shard.workers, facts.hider_of_files);
  }
  return NotFound(
      "sharding by file over {} workers, but no reader with file names was found in the pipeline; "
      "shard by data instead",
      shard.workers);
}

Status CheckEnoughElements(std::int64_t elements, const Shard& shard) {
  MUSTER_TRY(CheckShard(shard));
  if (elements == 0 || elements >= shard.workers) return Ok();
  return InvalidArgument(
      "there aren't enough elements in this source for each worker to have one: {} for {} workers",
      elements, shard.workers);
}

}  // namespace muster::data
