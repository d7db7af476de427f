// The shards of one job that live on this parameter server: values, optimizer slots, and which
// closures have been applied. One object is one view of the job; a new view is a new object.
//
// Invariant: each closure is applied at most once to each shard, whatever the attempt; a reader
// sees whole updates only. A push and its mark are one step under the shard's lock. Threading: any
// thread; each shard has a reader-writer lock of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/shard.h"

namespace muster::v1 {
class CheckpointFile;
class JobPlan;
class PsReport;
class SaveReport;
}  // namespace muster::v1

namespace muster::storage {
class FileSystem;
}

namespace muster::ps {

class ApplyPool;

class JobShards {
 public:
  // Makes the shards that `plan` places on server `ps_index`, from their initializers or from the
  // committed checkpoint in `restore_from` (empty: none). The plan may place them differently from
  // the checkpoint.
  //   kDataLoss: the checkpoint is damaged.  kInvalidArgument: the plan is malformed.
  //   kResourceExhausted: memory. `pool` must outlive the result.
  static Result<std::shared_ptr<JobShards>> Create(const v1::JobPlan& plan, std::uint32_t ps_index,
                                                   const std::string& restore_from,
                                                   ApplyPool& pool);
  virtual ~JobShards() = default;

  virtual ViewId view() const = 0;
  // In the order of (variable, row_offset); a shard's index here is its name on the wire.
  virtual std::span<const ShardInfo> shards() const = 0;

  // Copies the whole shard; returns its version (number of updates applied).
  virtual Result<std::uint64_t> ReadDense(std::uint32_t shard, std::span<float> into) const = 0;
  // Copies rows, local ids in [0, rows), into [ids.size(), row_elements]. kOutOfRange: a bad id.
  virtual Result<std::uint64_t> ReadRows(std::uint32_t shard, std::span<const std::int64_t> ids,
                                         std::span<float> into) const = 0;

  // Applies a closure's gradient: lr and step come from the closure number. kInvalidArgument: the
  // size is wrong. kAborted: a later attempt of this closure has been seen. Closure 0: refused.
  // kUnavailable: the closure is too far above the watermark (window of 65,536).
  virtual Result<ApplyOutcome> ApplyDense(std::uint32_t shard, PushId id,
                                          std::span<const float> gradient) = 0;
  // ids unique, local. No ids: only the mark is made.
  virtual Result<ApplyOutcome> ApplyRows(std::uint32_t shard, PushId id,
                                         std::span<const std::int64_t> ids,
                                         std::span<const float> gradients) = 0;
  // Sets values before the first closure. kFailedPrecondition: one has been applied.
  virtual Status Assign(std::uint32_t shard, std::span<const float> value) = 0;

  // Writes values and slots at the cut after closure `step` as one safetensors file, synced. No
  // lock is held while `files` works, so a disk that does not answer holds up nobody who pulls or
  // pushes; needs one piece of 4 MiB of memory. A shard that is changed before its last piece has
  // been copied ends the save: kFailedPrecondition, and nothing is left behind.
  // See SaveVariables in proto/muster/v1/cluster.proto for the other errors.
  virtual Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory,
                                      storage::FileSystem& files) const = 0;

  virtual void Report(v1::PsReport& report) const = 0;
};

}  // namespace muster::ps
