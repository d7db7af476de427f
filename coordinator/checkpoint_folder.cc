#include "coordinator/checkpoint_folder.h"

#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/storage/owner.h"

namespace muster::coordinator {
namespace {

// Who has the same host name and mount namespace sees the same folders and locks.
std::string Place() {
  std::array<char, 64> space{};
  (void)!readlink("/proc/self/ns/mnt", space.data(), space.size() - 1);
  return fmt::format("{} {}", HostName(), space.data());
}

v1::CheckpointOwner MarkOf(const Checkpoints::Claimant& claimant) {
  v1::CheckpointOwner mark = claimant.mark;
  mark.set_hostname(HostName());
  mark.set_place(Place());
  return mark;
}

Status CannotWrite(const std::string& root, int cause) {
  return FailedPrecondition(
      "the checkpoint folder {} cannot be written on host {}: {}; change checkpoint.directory or "
      "its permissions",
      root, HostName(), std::generic_category().message(cause));
}

// Nobody holds the lock of its state directory, or that is gone. When in doubt: false.
bool CoordinatorIsGone(const v1::CheckpointOwner& owner) {
  const std::string& state = owner.state_directory();
  const int fd = open((state + "/lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT && !state.empty();
  const bool gone = flock(fd, LOCK_SH | LOCK_NB) == 0;
  close(fd);
  return gone;
}

enum class Standing { kFree, kOurs, kStale };

struct Judgement {
  Standing standing = Standing::kFree;
  std::string tell;
};

// kFailedPrecondition: another's.
Result<Judgement> Judge(const std::string& root, const v1::CheckpointOwner& mark,
                        const Checkpoints::Claimant& claimant) {
  Result<std::optional<v1::CheckpointOwner>> read = storage::ReadOwner(root);
  if (read.status().code() == StatusCode::kDataLoss) {
    return FailedPrecondition("{}", Message(read.status()));
  }
  if (!read.ok()) return read.status();
  if (!*read) return Judgement{};
  const v1::CheckpointOwner& owner = **read;
  if (storage::SameJob(owner, mark)) return Judgement{Standing::kOurs, ""};
  if (owner.cluster_id() == mark.cluster_id()) {
    if (!claimant.live.contains(owner.job_id())) return Judgement{Standing::kStale, ""};
    return FailedPrecondition(
        "checkpoint.directory {} belongs to job {} of this cluster, which has not ended: give this "
        "job a checkpoint.directory of its own, or wait for that one's end",
        root, owner.job_id());
  }
  // Where another database has taken the place of its own, it will not come back either.
  const bool replaced = owner.state_directory() == mark.state_directory();
  if (owner.place() == mark.place() && (replaced || CoordinatorIsGone(owner))) {
    return Judgement{
        Standing::kStale,
        fmt::format(
            "the checkpoint folder {} was taken over from job {} of a cluster that no "
            "longer runs (state directory {}): started again, it will be refused the folder",
            root, owner.job_id(), owner.state_directory())};
  }
  return FailedPrecondition(
      "checkpoint.directory {} belongs to job {} of another cluster (its coordinator: host {}, "
      "state "
      "directory {}) since {}: give this job a checkpoint.directory of its own, or end that job. "
      "If "
      "that cluster is gone for good, remove {}/{} and submit again",
      root, owner.job_id(), owner.hostname(), owner.state_directory(), owner.since(), root,
      storage::kOwnerName);
}

// The folder itself, or the nearest one above that there is.
Result<std::string> NearestFolder(const std::string& root) {
  std::string at = root;
  while (true) {
    MUSTER_TRY_ASSIGN(const bool there, storage::RealFileSystem().Exists(at));
    if (there) return at;
    at = storage::ParentOf(at);
  }
}

}  // namespace

Status RequireWritable(const std::string& root) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  const int cause = error ? error.value() : access(root.c_str(), W_OK | X_OK) != 0 ? errno : 0;
  return cause == 0 ? Ok() : CannotWrite(root, cause);
}

Result<std::string> Claim(const std::string& root, const Checkpoints::Claimant& claimant) {
  const v1::CheckpointOwner mark = MarkOf(claimant);
  // Somebody may be faster: then it is judged again, once.
  for (const bool last : {false, true}) {
    MUSTER_TRY_ASSIGN(const Judgement judgement, Judge(root, mark, claimant));
    switch (judgement.standing) {
      case Standing::kOurs:
        return judgement.tell;
      case Standing::kStale:
        MUSTER_TRY(storage::TakeOverFolder(root, mark));
        return judgement.tell;
      case Standing::kFree:
        const Status claimed = storage::ClaimFolder(root, mark);
        if (claimed.ok()) return judgement.tell;
        if (claimed.code() != StatusCode::kAlreadyExists || last) return claimed;
    }
  }
  return Aborted("{} changes hands too fast", root);
}

Result<std::string> ClaimIfPossible(const std::string& root,
                                    const Checkpoints::Claimant& claimant) {
  Result<std::string> claimed = Claim(root, claimant);
  if (!claimed.ok() && claimed.status().code() != StatusCode::kFailedPrecondition) return "";
  return claimed;
}

Status LookAt(const std::string& root, const Checkpoints::Claimant& claimant) {
  const Result<std::string> nearest = NearestFolder(root);
  if (!nearest.ok()) return FailedPrecondition("{}", Message(nearest.status()));
  std::error_code ignored;
  if (!std::filesystem::is_directory(*nearest, ignored)) return CannotWrite(root, ENOTDIR);
  if (access(nearest->c_str(), W_OK | X_OK) != 0) return CannotWrite(root, errno);
  if (*nearest != root) return Ok();
  MUSTER_TRY(Judge(root, MarkOf(claimant), claimant).status());
  // Permissions do not tell of a disk that is full or broken.
  std::string probe = root + "/muster-probe-XXXXXX";
  const int fd = mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0) return CannotWrite(root, errno);
  const int cause = write(fd, "x", 1) != 1 || fsync(fd) != 0 ? errno : 0;
  close(fd);
  (void)unlink(probe.c_str());
  return cause == 0 ? Ok() : CannotWrite(root, cause);
}

}  // namespace muster::coordinator
