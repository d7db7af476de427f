// How a dataset is spread over replicas and workers.
//
// Threading: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace muster {

class InputLink;

enum class InputReplicationMode : std::uint8_t {
  kPerWorker,   // one dataset a worker, whose elements go to its replicas in turn
  kPerReplica,  // a dataset for each replica; only from a function
};

struct InputOptions {
  // Elements are copied to their replica's device ahead of the step. Default: yes; false leaves
  // them in the host's memory (CPU:0).
  std::optional<bool> experimental_fetch_to_device = std::nullopt;
  InputReplicationMode experimental_replication_mode = InputReplicationMode::kPerWorker;
  // The dataset's own buffers lie on the replica's device: PER_REPLICA alone, and instead of
  // fetching (INVALID_ARGUMENT).
  bool experimental_place_dataset_on_device = false;
  // What is read ahead of the step for each replica. 0: nothing before it is asked for.
  int experimental_per_replica_buffer_size = 1;
};

// What a function that makes a dataset is told of its place.
class InputContext {
 public:
  // INVALID_ARGUMENT: no pipeline, an id that is not one of theirs, fewer than no replicas.
  explicit InputContext(int num_input_pipelines = 1, int input_pipeline_id = 0,
                        int num_replicas_in_sync = 1);

  int num_input_pipelines() const { return num_input_pipelines_; }
  int input_pipeline_id() const { return input_pipeline_id_; }
  int num_replicas_in_sync() const { return num_replicas_in_sync_; }
  // INVALID_ARGUMENT: not divisible by the replicas.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  // "tf.distribute.InputContext(input pipeline id 1, total: 3)"
  std::string to_string() const;

 private:
  int num_input_pipelines_;
  int input_pipeline_id_;
  int num_replicas_in_sync_;
};

// Which of how many workers reads. The default: this process is the only one, or one of the
// strategy's processes.
struct InputWorkers {
  int count = 1;
  // In sync, over all workers; 0: the strategy's own, times `count`.
  int replicas = 0;
  int index = 0;
  // Where workers with finite data agree whether some of them still has some. Needed for several;
  // the workers' first iterators belong together, their second ones, and so on.
  std::shared_ptr<InputLink> link = nullptr;
  // Longest wait for the other workers in one step.
  std::chrono::milliseconds patience = std::chrono::minutes(10);
};

}  // namespace muster
