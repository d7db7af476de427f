// Values of variables on disk, in the format that jobs write too (docs/formats/checkpoint.md): a
// program restores what a job has saved, and the other way round, on any number of devices.
//
//   Checkpoint checkpoint({{"w", w}, {"b", b}});
//   checkpoint.track(net);        // a distributed module: its parameters and buffers
//   checkpoint.track(optimizer);  // what it remembers of each parameter
//   CheckpointManager manager(checkpoint, "/data/checkpoints", 3);
//   manager.restore_latest();
//   ... manager.save(step);
//
// A file holds one tensor for each variable: the value of ON_WRITE, the aggregated value of ON_READ
// (a SUM is spread over the replicas when it is restored). What an optimizer remembers is there
// once, whatever the number of replicas, as "<parameter>/slot/<slot>".
//
// Under a strategy of several processes all of them make the same calls: the first one (the chief)
// writes, save() and wait() return on all when the checkpoint is there, or throw the chief's error,
// or that of who cannot read a value; and each reads for itself what is restored, from the folder
// that the chief has chosen: what one cannot read is an error of all.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strategy/variables/variable.h"

namespace muster {

class DistributedModuleBase;
namespace internal {
class SavedState;
struct TrackedValues;
}  // namespace internal

// Which job a checkpoint is of; a job goes on from those alone that carry its own spec's hash.
struct CheckpointJob {
  std::string id;
  std::string name;
  std::string spec_hash;
};

// What a restore has found so far: variables that are tracked later still get their values.
class RestoreStatus {
 public:
  // In the file, but no variable of that name is tracked; and the reverse. Sorted.
  std::vector<std::string> unused() const;
  std::vector<std::string> unmatched() const;
  // FAILED_PRECONDITION naming what unmatched() gives.
  const RestoreStatus& assert_existing_matched() const;
  // The same for both.
  const RestoreStatus& assert_consumed() const;

  struct Impl;
  explicit RestoreStatus(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<const Impl> impl_;
};

// Threading: any thread. Errors of calls that touch files: NOT_FOUND (no checkpoint there),
// DATA_LOSS (damaged), RESOURCE_EXHAUSTED (disk full); FAILED_PRECONDITION inside run().
// Lifetime: the destructor waits for a save that goes on; copies are the same checkpoint.
class Checkpoint {
 public:
  explicit Checkpoint(std::map<std::string, Variable> variables = {});

  // Adds a variable under the name that it has in files. After a restore() it gets its saved value
  // at once. ALREADY_EXISTS: another variable has that name.
  void track(const std::string& name, const Variable& variable);
  // All variables of a module, as `prefix` and their names in it.
  void track(const DistributedModuleBase& module, const std::string& prefix = {});
  // An optimizer, of a distributed module or a ServerOptimizer. In a restore it gets what the
  // checkpoint has for it; without any it is as before its first step. Counts of steps that a job's
  // checkpoint lacks are the checkpoint's step.
  //   ALREADY_EXISTS: another optimizer of parameters of these names.
  //   UNIMPLEMENTED: other than SGD, Adam, AdamW, Adagrad and RMSprop.
  template <class Optimizer>
    requires requires(const Optimizer& optimizer) { optimizer.saved_state(); }
  void track(const Optimizer& optimizer, const std::string& prefix = {}) {
    track_state(optimizer.saved_state(), prefix);
  }
  // Creates a variable and tracks it. After a restore() it begins with the saved value, and
  // `initial_value` is not asked for one.
  Variable create(const std::string& name, InitialValue initial_value,
                  const VariableOptions& options = {});

  // Writes all tracked variables into `directory`, which becomes a checkpoint when all is there.
  //   INVALID_ARGUMENT: an ON_READ variable without aggregation has no one value to save.
  void save(const std::string& directory, std::uint64_t step = 0) const;
  // Takes the values now and writes them meanwhile; wait(), the next save and a restore wait for
  // it, and throw its error.
  void save_async(const std::string& directory, std::uint64_t step = 0) const;
  void wait() const;

  // All tracked variables that are in the checkpoint get its values: all of them, or on an error
  // none. Saves from now on carry its job.
  //   INVALID_ARGUMENT: a tensor has another shape than its variable, or a type that does not
  //   convert to its (fractions to whole numbers), or is not what the optimizer remembers.
  RestoreStatus restore(const std::string& directory);

  // What the checkpoint says that was restored last.
  std::uint64_t step() const;
  CheckpointJob job() const;
  void set_job(CheckpointJob job);

  // For the code of strategy/.
  internal::TrackedValues tracked() const;

 private:
  friend class CheckpointManager;
  // With several processes what the first one says; else `text`.
  std::string said_by_first(const std::string& text) const;
  // Whether this process writes the files.
  bool writes() const;
  void track_state(const std::shared_ptr<const internal::SavedState>& state,
                   const std::string& prefix);

  std::shared_ptr<RestoreStatus::Impl> impl_;
};

// Checkpoints numbered by step below one folder, the newest `max_to_keep` of them.
class CheckpointManager {
 public:
  // INVALID_ARGUMENT: max_to_keep < 1.
  CheckpointManager(Checkpoint checkpoint, std::string directory, int max_to_keep);

  // The new checkpoint's folder. Older ones beyond the limit are deleted after it is committed.
  std::string save(std::uint64_t step) const;
  // Oldest first.
  std::vector<std::string> checkpoints() const;
  std::optional<std::string> latest_checkpoint() const;
  // The newest checkpoint that is not damaged, which the log says of others; nothing when there is
  // none.
  std::optional<std::string> restore_latest();

 private:
  Checkpoint checkpoint_;
  std::string directory_;
  int max_to_keep_;
};

}  // namespace muster
