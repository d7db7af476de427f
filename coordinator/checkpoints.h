// Checkpoint directories of a job, seen from the coordinator: which one to go back to, making and
// committing new ones. Everything here touches disks, so answers come later, on the strand.
//
// Threading: one strand. Lifetime: the Offload outlives it; answers may come after a job has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "coordinator/offload.h"
#include "muster/v1/checkpoint.pb.h"
#include "muster/v1/cluster.pb.h"

namespace muster::coordinator {

class Checkpoints {
 public:
  struct Refusal {
    std::string directory;
    std::uint64_t step = 0;
    std::string why;
  };
  struct Found {
    // Empty: there is none, so the job begins at step 0.
    std::string directory;
    std::uint64_t step = 0;
    // Newer ones that are damaged.
    std::vector<Refusal> refused;
    // Of an archive's module, when the checkpoint holds any.
    v1::TensorSet buffers;
  };
  struct Committed {
    std::uint64_t bytes = 0;
    // What retention has left, newest first.
    std::vector<std::string> kept;
  };

  virtual ~Checkpoints() = default;
  // Is this a checkpoint that the job may go on from? Asked on any thread.
  using IsOurs = std::function<bool(const v1::CheckpointManifest&)>;
  // The newest committed checkpoint below `root` whose every byte is as it was written. Those in
  // `refused` are passed over. kFailedPrecondition: `root` holds checkpoints of another job's spec.
  virtual void FindNewest(const std::string& root, IsOurs ours,
                          const std::set<std::string>& refused,
                          std::function<void(Result<Found>)> then) = 0;
  // Moves all checkpoints below `root` into a folder of its own there, where nobody looks for them;
  // its path, empty when there were none.
  virtual void SetAside(const std::string& root, std::function<void(Result<std::string>)> then) = 0;
  // An empty directory for the step, in place of whatever had its name.
  virtual void Prepare(const std::string& root, std::uint64_t step,
                       std::function<void(Result<std::string>)> then) = 0;
  // What an archive's module holds beside its variables, into files of their own; one report for
  // each file, none where there is nothing. Errors of storage::WriteSafetensors().
  virtual void WriteValues(const std::string& directory, v1::ModelValues values,
                           std::function<void(Result<std::vector<v1::SaveReport>>)> then) = 0;
  // The manifest is the commit point. Then retention: `keep` committed ones stay.
  virtual void Commit(const std::string& root, const std::string& directory,
                      v1::CheckpointManifest manifest, std::uint32_t keep,
                      std::function<void(Result<Committed>)> then) = 0;
  virtual void ReadManifest(const std::string& directory,
                            std::function<void(Result<v1::CheckpointManifest>)> then) = 0;
  // Removes what a failed save has left.
  virtual void Discard(const std::string& directory) = 0;
};

// On the coordinator's file system, by common/storage.
class DiskCheckpoints : public Checkpoints {
 public:
  explicit DiskCheckpoints(Offload& offload) : offload_(offload) {}
  void FindNewest(const std::string& root, IsOurs ours, const std::set<std::string>& refused,
                  std::function<void(Result<Found>)> then) override;
  void SetAside(const std::string& root, std::function<void(Result<std::string>)> then) override;
  void Prepare(const std::string& root, std::uint64_t step,
               std::function<void(Result<std::string>)> then) override;
  void WriteValues(const std::string& directory, v1::ModelValues values,
                   std::function<void(Result<std::vector<v1::SaveReport>>)> then) override;
  void Commit(const std::string& root, const std::string& directory,
              v1::CheckpointManifest manifest, std::uint32_t keep,
              std::function<void(Result<Committed>)> then) override;
  void ReadManifest(const std::string& directory,
                    std::function<void(Result<v1::CheckpointManifest>)> then) override;
  void Discard(const std::string& directory) override;

 private:
  Offload& offload_;
};

// "step-000000000400" -> 400; 0 for another name.
std::uint64_t StepOfDirectory(const std::string& directory);

}  // namespace muster::coordinator
