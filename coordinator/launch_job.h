// A job that runs processes of one command on workers of the cluster (LaunchSpec), wired to each
// other by their environment alone: TF_CONFIG, RANK, WORLD_SIZE, MASTER_ADDR and their like.
//
// A launch begins in two rounds, so that no process starts before every address is known: workers
// are readied and claim addresses, then they start their processes. All processes of a launch begin
// and end together. The first that fails is the job's cause; the others are asked to end, and the
// policy says whether another launch begins, under another number, at other addresses.
//
// Workers keep a launch while no coordinator is there. One that is started again asks nothing: it
// waits for its workers to register, and to tell what became of each process.
//
// Invariant: a launch's number is of this job and never used again (its high half is the epoch); it
// is on disk before any worker hears of it.
// Threading and lifetime: see Job.
//
// The class stands in two files: launch_job.cc (from the beginning to the end), launch_processes.cc
// (the workers and the processes on them).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/launched_job.h"

namespace muster::coordinator {

class LaunchJob final : public LaunchedJob {
 public:
  LaunchJob(World& world, StoredJob stored) : LaunchedJob(world, std::move(stored)) {}

  // --- See Job.
  bool OnLaunchEvent(const Member& member, const v1::LaunchEvent& event) override;
  void OnClusterDraining() override;
  void OnLost(const Member& member) override;
  bool Occupies(const TaskId& worker) const override;

 private:
  enum class Stage {
    kIdle,
    kPreparing,
    kStarting,
    kRunning,
    kEnding,    // one has failed, or the job is stopped: the others are asked to end
    kAdopting,  // begun by a coordinator before this one; its workers tell what is left
  };
  // One process; its place in the vector is its rank.
  struct Rank {
    TaskId worker;
    // None: its worker has not said yet, to this coordinator, that it runs.
    SessionId session;
    std::string hostname;
    std::string address;
    // How it ended.
    std::optional<v1::LaunchEvent> end;
    // Its worker is gone, and how.
    std::string lost;
    std::uint32_t pid = 0;
    // Its worker was asked to end it, and has not said in time that it has.
    bool silent = false;
    // It has ended well, and all that run wait for it to join their group.
    bool awaited = false;

    bool settled() const { return end.has_value() || !lost.empty() || silent; }
    bool failed() const {
      return awaited || !lost.empty() || (end && !(end->exit_code() == 0 && end->signal() == 0));
    }
  };

  // launch_job.cc
  std::vector<std::string> Missing() const override;
  void Begin() override;
  void Leave() override;
  std::string Forget(bool anew) override;
  void GoOnAfterRestart() override;
  bool HasProcesses() const override {
    return stage_ != Stage::kIdle && stage_ != Stage::kPreparing;
  }
  void DescribeWorker(const TaskId& worker, v1::TaskState& state) const override;
  std::uint32_t PerWorker() const;
  // The processes' states, as people see them, into the row.
  void Show();
  // All have ended, or are lost with their workers.
  void Conclude();
  void ConcludeFailure(const Rank& cause);
  // The rank that is to blame: one whose worker was lost, else the first that failed unasked.
  const Rank* Cause() const;
  bool MayBeginAnew(const Rank& cause) const;
  std::string NameOf(const Rank& rank) const;
  std::string EndOf(const Rank& rank) const;

  // launch_processes.cc
  void OnArrival(const Member& member, const Arrival& arrival) override;
  // Which workers run it; empty: too few are fit.
  std::vector<const Member*> Choose() const;
  void SendPrepare();
  void OnPrepared(const TaskId& worker, const Result<v1::CommandResult>& result);
  // `worker` cannot take part: another launch begins soon, without it if `why` is not the cluster's
  // trouble (IsTransient) or comes from a worker that is there.
  void LeaveOut(const TaskId& worker, const Status& why, bool is_there = false);
  void SendStart();
  void OnStarted(const TaskId& worker, const Status& status);
  // `addresses`: all of them, as a list; `hosts`: by rank.
  v1::LaunchProcess ProcessOf(std::size_t rank, const std::string& addresses,
                              const std::map<std::size_t, std::string>& hosts) const;
  void BeginEnding(Millis grace) override;
  void SendStop(const Member& worker, Millis grace);
  // Moves on, if all have started, one has failed, or all are settled.
  void Evaluate();
  void OnAdopted();
  // A worker has come to a coordinator that was started again, and may have what one before it
  // began there, or not.
  void AwaitNews(const TaskId& worker, SessionId session);
  // Processes whose workers have said nothing of them until now are lost.
  void OnAdoptLimit();
  bool AllSettled() const;
  // Some have ended well, others run: looks whether these wait for them, who will not come.
  void WatchTheRest();
  void LookAtTheRest(int seen);
  bool TheRestWaits() const;
  // The workers that run it, and are there.
  std::vector<const Member*> Workers() const;

  Stage stage_ = Stage::kIdle;
  std::vector<Rank> ranks_;
  std::string master_;
  // Answers that are awaited.
  std::size_t waiting_ = 0;
  // The launch of which it is looked whether the rest waits.
  LaunchNumber watched_;
  // A process of it was asked to end by its worker, which leaves.
  bool preempted_ = false;
  // The coordinator before this one ended in order, maybe with the whole cluster.
  bool cluster_ended_ = false;
};

}  // namespace muster::coordinator
