// Who gets which elements: the arithmetic of batches over workers and replicas.
//
// A global batch of G elements is spread over W workers with R replicas each. A replica's piece may
// be empty: it still takes part in the step, with a batch of no examples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/auto_shard_policy.h"

namespace muster::data {

// Which of how many workers.
struct Shard {
  int workers = 1;
  int index = 0;
};
//   kInvalidArgument: no worker, or an index that is not one of theirs.
[[nodiscard]] Status CheckShard(const Shard& shard);

// What a function that makes input is told of its place.
class InputContext {
 public:
  //   kInvalidArgument: no pipeline, an id that is not one of theirs, or fewer than no replicas.
  static Result<InputContext> Create(int num_pipelines, int pipeline_id, int num_replicas_in_sync);

  [[nodiscard]] int num_pipelines() const { return num_pipelines_; }
  [[nodiscard]] int pipeline_id() const { return pipeline_id_; }
  [[nodiscard]] int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  //   kInvalidArgument: the batch is negative, or not divisible by the replicas.
  [[nodiscard]] Result<std::int64_t> PerReplicaBatchSize(std::int64_t global_batch_size) const;
  // tf.distribute.InputContext(input pipeline id 1, total: 3)
  [[nodiscard]] std::string ToString() const;

 private:
  InputContext(int pipelines, int id, int replicas)
      : num_pipelines_(pipelines), pipeline_id_(id), num_replicas_in_sync_(replicas) {}

  int num_pipelines_;
  int pipeline_id_;
  int num_replicas_in_sync_;
};

// Rebatch, for a batch size that is known: the sizes that the worker's stream is cut into, over and
// over; each of its replicas takes the next piece. In a step all replicas of all workers take G
// elements together, and no two pieces differ by more than one. Cuts do not care where one input
// batch ends and the next begins.
//   kInvalidArgument: as CheckShard, no replica, or a batch without elements.
[[nodiscard]] Result<std::vector<std::int64_t>> RebatchSizes(std::int64_t global_batch,
                                                             const Shard& shard,
                                                             int replicas_per_worker);
// The even split, for a batch size that is not known beforehand, and after sharding by data: each
// batch by itself into n pieces of ceil(batch / n), the last ones short or empty.
//   kInvalidArgument: no pieces, or a negative batch.
[[nodiscard]] Result<std::vector<std::int64_t>> EvenSplit(std::int64_t batch, int pieces);
enum class ShardBy { kNothing, kFile, kData, kPlaceholder };

// What is known of a pipeline when its sharding is chosen.
struct PipelineFacts {
  bool has_file_names = false;      // a reader whose file names are themselves a stream
  std::string hider_of_files = {};  // the step behind which there is one, out of reach; or empty
  bool has_placeholder = false;
};
struct ShardChoice {
  ShardBy by = ShardBy::kNothing;
  // AUTO wanted files and there are none, or this step hides them: worth one warning.
  bool fell_back = false;
  std::string hider_of_files = {};
  // By file: workers from this index on have none to read; -1: not known.
  std::int64_t files = -1;
};
//   kNotFound: policy FILE, several workers, and no file names.   As CheckShard.
[[nodiscard]] Result<ShardChoice> ChooseSharding(AutoShardPolicy policy, const Shard& shard,
                                                 const PipelineFacts& facts);

// Whether a source of this many elements can be sharded by data.
//   kInvalidArgument: it has some, but fewer than workers.   As CheckShard.
[[nodiscard]] Status CheckEnoughElements(std::int64_t elements, const Shard& shard);

}  // namespace muster::data
