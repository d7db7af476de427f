// The shards of one job that live on this parameter server: values, optimizer slots, and which
// closures have been applied. One object is one view of the job; a new view is a new object.
//
// Invariant: each closure is applied at most once to each shard, whatever the attempt; a reader
// sees whole updates only. A push and its mark are one step under the shard's lock.
//
// Where the plan bounds how far closures may run ahead (StepPlan), who reads or pushes for one asks
// Missing() first. In synchronous training a push is only staged; the sum of a step's gradients is
// applied when a closure of a later step, or whoever reads for none, comes: by then every closure
// of the step has ended, so that one which runs again has read the same values wherever it was
// interrupted. Memory for it: a gradient for each closure of a step at most.
//
// Threading: any thread; each shard has a reader-writer lock of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/shard.h"

namespace muster::v1 {
class AdoptReport;
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
class StepSignal;

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

  virtual const std::string& job_id() const = 0;
  virtual ViewId view() const = 0;
  // In the order of (variable, row_offset); a shard's index here is its name on the wire.
  virtual std::span<const ShardInfo> shards() const = 0;

  // The lowest closure that must be applied here before `closure` (0: of none, which waits for
  // nothing) may read or change the shard; nullopt: none. Applies the step that is over for it.
  virtual std::optional<ClosureId> Missing(std::uint32_t shard, ClosureId closure) {
    (void)shard, (void)closure;
    return std::nullopt;
  }
  // Says when Missing() may have changed; null: it never does.
  virtual StepSignal* step_signal() { return nullptr; }

  // Copies the whole shard; returns its version: the number of closures that are applied.
  virtual Result<std::uint64_t> ReadDense(std::uint32_t shard, std::span<float> into) const = 0;
  // Copies rows, local ids in [0, rows), into [ids.size(), row_elements]. kOutOfRange: a bad id.
  virtual Result<std::uint64_t> ReadRows(std::uint32_t shard, std::span<const std::int64_t> ids,
                                         std::span<float> into) const = 0;

  // Applies a closure's gradient: lr and step come from the closure number. kInvalidArgument: the
  // size is wrong. kAborted: a later attempt of this closure has been seen. Closure 0: refused.
  // kUnavailable: the closure is too far above the watermark (window of 65,536), or Missing() says
  // that it has to wait.
  virtual Result<ApplyOutcome> ApplyDense(std::uint32_t shard, PushId id,
                                          std::span<const float> gradient) = 0;
  // ids unique, local. No ids: only the mark is made, also on a shard that is no embedding; ids of
  // one are refused (kInvalidArgument).
  virtual Result<ApplyOutcome> ApplyRows(std::uint32_t shard, PushId id,
                                         std::span<const std::int64_t> ids,
                                         std::span<const float> gradients) = 0;
  // Sets values before the first closure. kFailedPrecondition: one has been applied.
  virtual Status Assign(std::uint32_t shard, std::span<const float> value) = 0;

  // Writes values and slots at the cut after closure `step` as one safetensors file, synced. No
  // lock is held while `files` works, so a disk that does not answer holds up nobody who pulls or
  // pushes; needs one piece of 4 MiB of memory. A shard that is changed before its last piece has
  // been copied ends the save: kFailedPrecondition, and nothing is left behind. So does a cut in
  // the middle of a synchronous step.
  // See SaveVariables in proto/muster/v1/cluster.proto for the other errors.
  virtual Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory,
                                      storage::FileSystem& files) = 0;

  virtual void Report(v1::PsReport& report) const = 0;
  // The same without what it says of each shard: takes no lock, so that it waits for no update.
  virtual void ReportTotals(v1::PsReport& report) const = 0;
  // What gradients of steps that are not over take.
  virtual std::uint64_t staged_bytes() const { return 0; }

  // Refuses attempts below this one from now on, and says what is applied; see AdoptVariables in
  // proto/muster/v1/cluster.proto.
  virtual void Adopt(Attempt least_attempt, v1::AdoptReport& report) = 0;
};

}  // namespace muster::ps
