// Checkpoint directories of a job, seen from the coordinator: which one to go back to, making and
// committing new ones. Everything here touches disks, so answers come later, on the strand; a
// folder that hangs holds up nobody but who asked for it. (An error that is none of those named is
// the disk's own: storage::FileSystem.)
//
// Threading: one strand. Lifetime: the LaneOffload outlives it; answers may come after a job has
// ended.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
  // Folders of checkpoints that were set aside and stay, below one root.
  static constexpr std::size_t kKeptAside = 3;
  struct Aside {
    // Empty: there was nothing to move.
    std::string directory;
    // Older ones.
    std::vector<std::string> removed;
    // Why one of those could not be removed; the next time tries again.
    Status retention;
  };
  struct Found {
    // Empty: there is none, so the job begins at step 0.
    std::string directory;
    std::uint64_t step = 0;
    // Whose it was when it was saved.
    std::string job_id;
    std::uint64_t bytes = 0;
    // Newer ones that are damaged.
    std::vector<Refusal> refused;
    // Those of an archive's module, when the checkpoint holds any.
    v1::TensorSet buffers;
    // The folder was another cluster's, which is gone: the sentence to tell.
    std::string taken_over;
  };
  struct Committed {
    std::uint64_t bytes = 0;
    // What retention has left, newest first; none when the folder could not be listed.
    std::optional<std::vector<std::string>> kept;
    // Why old ones could not be removed.
    Status retention;
  };
  // A job that wants a folder for itself.
  struct Claimant {
    // Its mark; where the coordinator runs is filled in.
    v1::CheckpointOwner mark;
    // Jobs of its cluster that have not ended: what belongs to others of them is free.
    std::set<std::string> live;
  };
  struct Search {
    std::string root;
    // Whether this is a checkpoint that the job may go on from. Asked on any thread.
    std::function<bool(const v1::CheckpointManifest&)> ours;
    // Passed over.
    std::set<std::string> refused;
    // What the journal lists, oldest first. With any, an empty folder is not what it was.
    std::vector<std::string> known;
    Claimant claimant;
    // Every byte is read. False: the variables are not, nor asked whether they are whole.
    bool verify = true;
  };

  // What may go below one root.
  struct Sweep {
    std::string root;
    // This cluster's. A folder that another one has claimed is left alone.
    std::string cluster_id;
    // So many of the newest stay, those in `refused` not counted.
    std::size_t keep = 0;
    std::set<std::string> refused = {};
    // Every byte of those that stay is looked at; one that is damaged does not count.
    bool verify = false;
    // A step that is being saved.
    std::optional<std::uint64_t> saving = {};
    // What has just been saved: it stays, and counts.
    std::string saved = {};
    // Why others may go: "job words has ended".
    std::string why = {};
    // Jobs of the cluster whose folder it is not: one that they have claimed is left alone, however
    // its path was written.
    std::set<std::string> live = {};
    bool dry_run = false;
  };
  struct Swept {
    std::string directory;
    std::uint64_t bytes = 0;
    std::string why;
    // Why it is still there.
    Status failure;
  };

  virtual ~Checkpoints() = default;
  // Whether a job may have this folder, and could write there. Makes nothing.
  // kFailedPrecondition: another's (named), or it cannot be written.
  virtual void Look(const std::string& root, const Claimant& claimant,
                    std::function<void(Status)> then) = 0;
  // Claims the folder, then the newest committed checkpoint in it whose every byte is as it was
  // written. kFailedPrecondition: it is another's, or holds checkpoints of another job's spec; with
  // nothing known: it cannot be written. Anything else: it cannot be read now, or what is known is
  // not there; nothing is concluded from that.
  virtual void FindNewest(const Search& search, std::function<void(Result<Found>)> then) = 0;
  // Moves all checkpoints below `root` into a folder of its own there, where nobody looks for them,
  // and removes the oldest of such folders beyond kKeptAside. kFailedPrecondition: the folder is
  // another's.
  virtual void SetAside(const std::string& root, const Claimant& claimant,
                        std::function<void(Result<Aside>)> then) = 0;
  // An empty directory for the step, in place of whatever had its name. kFailedPrecondition: the
  // folder has become another's.
  virtual void Prepare(const std::string& root, std::uint64_t step, const Claimant& claimant,
                       std::function<void(Result<std::string>)> then) = 0;
  // What an archive's module holds beside its variables, into files of their own; one report for
  // each file, none where there is nothing. Errors of storage::WriteSafetensors().
  virtual void WriteValues(const std::string& directory, v1::ModelValues values,
                           std::function<void(Result<std::vector<v1::SaveReport>>)> then) = 0;
  // The manifest is the commit point: an error means that there is no checkpoint. Then retention:
  // `keep` committed ones stay, `damaged` ones not counted.
  virtual void Commit(const std::string& root, const std::string& directory,
                      v1::CheckpointManifest manifest, std::uint32_t keep,
                      const std::set<std::string>& damaged,
                      std::function<void(Result<Committed>)> then) = 0;
  virtual void ReadManifest(const std::string& directory,
                            std::function<void(Result<v1::CheckpointManifest>)> then) = 0;
  // Removes what nobody goes on from, and what interrupted saves have left. An error: nothing was
  // concluded, and nothing removed.
  virtual void Collect(const Sweep& sweep,
                       std::function<void(Result<std::vector<Swept>>)> then) = 0;
  // Folders below this one: of jobs, known or not. A missing one has none.
  virtual void ListRoots(const std::string& folder,
                         std::function<void(Result<std::vector<std::string>>)> then) = 0;
  // Removes what a failed save has left.
  virtual void Discard(const std::string& directory) = 0;
  // The job has ended: the folder is free for others.
  virtual void Release(const std::string& root, const v1::CheckpointOwner& mark) = 0;
};

// On the coordinator's file system, by common/storage.
class DiskCheckpoints : public Checkpoints {
 public:
  explicit DiskCheckpoints(LaneOffload& offload) : offload_(offload) {}
  void Look(const std::string& root, const Claimant& claimant,
            std::function<void(Status)> then) override;
  void FindNewest(const Search& search, std::function<void(Result<Found>)> then) override;
  void SetAside(const std::string& root, const Claimant& claimant,
                std::function<void(Result<Aside>)> then) override;
  void Prepare(const std::string& root, std::uint64_t step, const Claimant& claimant,
               std::function<void(Result<std::string>)> then) override;
  void WriteValues(const std::string& directory, v1::ModelValues values,
                   std::function<void(Result<std::vector<v1::SaveReport>>)> then) override;
  void Commit(const std::string& root, const std::string& directory,
              v1::CheckpointManifest manifest, std::uint32_t keep,
              const std::set<std::string>& damaged,
              std::function<void(Result<Committed>)> then) override;
  void ReadManifest(const std::string& directory,
                    std::function<void(Result<v1::CheckpointManifest>)> then) override;
  void Collect(const Sweep& sweep, std::function<void(Result<std::vector<Swept>>)> then) override;
  void ListRoots(const std::string& folder,
                 std::function<void(Result<std::vector<std::string>>)> then) override;
  void Discard(const std::string& directory) override;
  void Release(const std::string& root, const v1::CheckpointOwner& mark) override;

 private:
  LaneOffload& offload_;
};

}  // namespace muster::coordinator
