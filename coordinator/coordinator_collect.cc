// Checkpoints that nobody goes on from: who asks names them, and what they take, or removes them.
//
// Each root is looked at in its own lane, behind what its job has asked for before, so that a save
// and a removal never meet. What a job needs that runs, or that may be submitted again, stays.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/storage/file_system.h"
#include "coordinator/coordinator.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

// Less than who asks has patience for: a folder that hangs is named by then.
constexpr Millis kCollectLimit{570'000};

// The same for all ways to write a folder's path.
std::string Spelled(const std::string& folder) {
  return (std::filesystem::path(folder) / "").lexically_normal().string();
}

}  // namespace

struct Coordinator::Collecting {
  // By root.
  std::map<std::string, Checkpoints::Sweep> sweeps;
  std::map<std::string, std::string> jobs;
  std::set<std::string> silent;
  v1::CollectCheckpointsReply reply;
  std::function<void(Result<v1::CollectCheckpointsReply>)> then;

  void Answer() {
    if (!then) return;
    for (const std::string& root : silent) {
      v1::CollectCheckpointsReply::Folder& folder = *reply.add_folders();
      folder.set_directory(root);
      folder.set_job(jobs[root]);
      folder.set_failure("it has not answered: is its file system there?");
    }
    std::ranges::sort(*reply.mutable_folders(), {},
                      &v1::CollectCheckpointsReply::Folder::directory);
    std::exchange(then, nullptr)(std::move(reply));
  }
};

// Jobs may have one folder, one after another: what one needs that has not ended is what counts.
std::map<std::string, Checkpoints::Sweep> Coordinator::SweepsOf(const Job* only,
                                                                bool finished) const {
  std::map<std::string, Checkpoints::Sweep> sweeps;
  std::set<std::string> running;
  const std::set<std::string> live = LiveJobs();
  for (const auto& [number, one] : jobs_) {
    const ModelJob* const job = one->AsModel();
    if (job == nullptr || running.contains(job->CheckpointRoot())) continue;
    const std::string root = job->CheckpointRoot();
    Checkpoints::Sweep sweep{.root = root, .cluster_id = parts_.journal.cluster_id()};
    for (const v1::CheckpointInfo& info : job->checkpoints()) {
      if (!info.refused().empty()) sweep.refused.insert(info.directory());
    }
    if (!job->ended()) {
      running.insert(root);
      sweep.keep = KeptCheckpoints(job->record().job().spec());
      sweep.saving = job->SavingStep();
      sweep.why = fmt::format("older than the {} that checkpoint.keep says", sweep.keep);
    } else {
      // One that was stopped or has failed goes on from the newest when it is submitted again.
      const bool done = job->record().job().state() == v1::JOB_STATE_SUCCEEDED;
      sweep.keep = done && finished ? 0 : 1;
      // Who else had it may go on there, too.
      if (const auto before = sweeps.find(root); before != sweeps.end()) {
        sweep.keep = std::max(sweep.keep, before->second.keep);
      }
      sweep.verify = true;
      sweep.why = "its job has ended";
      sweep.live = live;
    }
    sweeps[root] = std::move(sweep);
  }
  if (only != nullptr) {
    const std::string root = only->CheckpointRoot();
    std::erase_if(sweeps, [&root](const auto& sweep) { return sweep.first != root; });
  }
  return sweeps;
}

// One job's folder, or all that there are: jobs' that are known, and, once the disk has listed
// them, folders of jobs that are forgotten. Whoever asks has an answer within kCollectLimit.
void Coordinator::CollectCheckpoints(
    const v1::CollectCheckpointsRequest& request,
    std::function<void(Result<v1::CollectCheckpointsReply>)> then) {
  const Job* only = nullptr;
  if (!request.job().empty()) {
    const Result<Job*> job = Find(request.job());
    if (!job.ok()) return then(job.status());
    if ((*job)->AsModel() == nullptr) {
      return then(FailedPrecondition(
          "job {} trains no model from a job file: its checkpoints are its own to remove",
          (*job)->id()));
    }
    only = *job;
  }
  auto collecting = std::make_shared<Collecting>();
  collecting->then = std::move(then);
  const auto look_at_jobs = [this, collecting, finished = request.finished(),
                             dry_run = request.dry_run()](const Job* of) {
    collecting->sweeps = SweepsOf(of, finished);
    for (auto& [root, sweep] : collecting->sweeps) sweep.dry_run = dry_run;
    for (const auto& [number, job] : jobs_) collecting->jobs[job->CheckpointRoot()] = job->id();
  };
  if (only != nullptr) {
    look_at_jobs(only);
    return CollectRoots(collecting);
  }
  // Below the folder that jobs have where they name none: those of jobs that are forgotten.
  const std::string& own = world_.options.checkpoints_directory;
  collecting->silent.insert(own);
  (void)parts_.scheduler.RunAfter(kCollectLimit, [collecting] { collecting->Answer(); });
  parts_.checkpoints.ListRoots(
      own, [this, here = lifeline_.Watch(), collecting, own, look_at_jobs,
            finished = request.finished(), dry_run = request.dry_run()](auto roots) {
        if (!here()) return;
        collecting->silent.erase(own);
        // Who asked has been told that the folder does not answer: nothing is removed behind that.
        if (!collecting->then) return;
        if (!roots.ok()) return std::exchange(collecting->then, nullptr)(roots.status());
        // Not before: others may have been submitted, or have begun to save, since.
        look_at_jobs(nullptr);
        const std::set<std::string> live = LiveJobs();
        std::set<std::string> known;
        for (const auto& [root, job] : collecting->jobs) known.insert(Spelled(root));
        for (const std::string& root : *roots) {
          if (known.contains(Spelled(root))) continue;
          collecting->jobs[root] = root.substr(root.rfind('/') + 1);
          collecting->sweeps[root] = {.root = root,
                                      .cluster_id = parts_.journal.cluster_id(),
                                      .keep = finished ? std::size_t{0} : std::size_t{1},
                                      .verify = true,
                                      .why = "its job is forgotten",
                                      .live = live,
                                      .dry_run = dry_run};
        }
        CollectRoots(collecting);
      });
}

// Each folder is swept beside the others; the answer names those that have said nothing in time.
void Coordinator::CollectRoots(const std::shared_ptr<Collecting>& collecting) {
  for (const auto& [root, sweep] : collecting->sweeps) collecting->silent.insert(root);
  if (collecting->silent.empty()) return collecting->Answer();
  (void)parts_.scheduler.RunAfter(kCollectLimit, [collecting] { collecting->Answer(); });
  for (const auto& [root, sweep] : collecting->sweeps) {
    parts_.checkpoints.Collect(sweep, [this, here = lifeline_.Watch(), collecting, root = root,
                                       dry_run = sweep.dry_run](auto swept) {
      if (!here()) return;
      collecting->silent.erase(root);
      const std::string& job = collecting->jobs[root];
      const auto add = [&](const std::string& directory) -> auto& {
        v1::CollectCheckpointsReply::Folder& folder = *collecting->reply.add_folders();
        folder.set_directory(directory);
        folder.set_job(job);
        return folder;
      };
      if (!swept.ok()) add(root).set_failure(Message(swept.status()));
      std::set<std::string> gone;
      for (const Checkpoints::Swept& one :
           swept.ok() ? *swept : std::vector<Checkpoints::Swept>()) {
        auto& folder = add(one.directory);
        folder.set_bytes(one.bytes);
        folder.set_why(one.why);
        if (!one.failure.ok()) {
          folder.set_failure(Message(one.failure));
          continue;
        }
        gone.insert(one.directory);
        collecting->reply.set_bytes(collecting->reply.bytes() + one.bytes);
      }
      if (!dry_run) {
        for (const auto& [number, one] : jobs_) {
          if (one->CheckpointRoot() == root) one->story().ForgetCheckpoints(gone);
        }
      }
      if (collecting->silent.empty()) collecting->Answer();
    });
  }
}

}  // namespace muster::coordinator
