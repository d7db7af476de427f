// A launched job whose processes come and go one by one (LaunchSpec.elastic): between MIN and MAX
// of them, each on a worker of its own. One that ends is replaced alone; a worker that comes later
// gets one; the others train on meanwhile (run_elastic), and find each other by a file that this
// job keeps up to date (common/cluster/worker_book.h).
//
// A process has a *place*, which is its number in the job, and a launch of its own on its worker. A
// place is vacant, and may be given away, only when its process has ended for certain: its worker
// says so, or another process is that worker now. The process of a lost worker may live, and train
// with others that this coordinator does not see; its place stays, and another one is taken.
//
// Invariant: a launch's number is on disk before its worker hears of it, and is never used again.
// Threading and lifetime: see Job.
//
// The class stands in two files: elastic_job.cc (from the beginning to the end, and what people
// see), elastic_processes.cc (the places, their workers and processes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/launched_job.h"

namespace muster::coordinator {

class ElasticJob final : public LaunchedJob {
 public:
  ElasticJob(World& world, StoredJob stored) : LaunchedJob(world, std::move(stored)) {}

  // --- See Job.
  bool OnLaunchEvent(const Member& member, const v1::LaunchEvent& event) override;
  void OnClusterDraining() override;
  void OnLost(const Member& member) override;
  bool Occupies(const TaskId& worker) const override;

 private:
  struct Place {
    enum class Stage {
      kVacant,     // nobody; or what became of who was there last
      kPreparing,  // its worker fetches files and claims an address
      kReady,
      kStarting,
      kRunning,
      kLost,  // with its worker; it may live
    };
    Stage stage = Stage::kVacant;
    TaskId worker;
    // None: its worker has not said yet, to this coordinator, that it runs.
    SessionId session;
    std::string hostname;
    std::string address;
    LaunchNumber launch = {};
    std::uint32_t pid = 0;
    TimePoint began;
    // How who was there last has ended; lost: how its worker was.
    std::string how;
    // Its worker has said that it runs, and was not lost since, nor was the coordinator.
    bool heard = false;
    // It is one too many, and asked to end.
    bool leaving = false;

    // It is, or will be, one of the processes.
    bool live() const { return stage != Stage::kVacant && stage != Stage::kLost; }
    bool listed() const { return stage >= Stage::kReady; }
  };
  using Stage = Place::Stage;

  // elastic_job.cc
  std::vector<std::string> Missing() const override;
  void Begin() override;
  void Leave() override;
  void GoOnAfterRestart() override;
  bool HasProcesses() const override;
  void DescribeWorker(const TaskId& worker, v1::TaskState& state) const override;
  std::size_t Least() const;
  std::size_t Most() const;
  // The places' states, as people see them, into the row.
  void Show();
  // How many are there, and who is waited for, as the job's state.
  void SayState();
  // "worker:3 (on worker:1 of host)".
  std::string NameOf(std::size_t place) const;
  // The job goes on as it is, is replenished, or has come to its end.
  void GoOn();
  void Conclude();

  // elastic_processes.cc
  void OnArrival(const Member& member, const Arrival& arrival) override;
  std::size_t Live() const;
  // Whether the policy lets a process that failed have a successor.
  bool Replaces() const;
  // Whether an ended process gets one now.
  bool MayFill() const;
  bool IsBeyondHope() const;
  // Takes places for workers that have none, up to MAX.
  void Fill();
  void FillAfter(Millis pause);
  std::vector<const Member*> Choose() const;
  // The place of that launch; nothing: it has gone.
  Place* Find(LaunchNumber launch);
  std::size_t NumberOf(const Place& place) const;
  // Its worker, if that is there in the same session.
  const Member* WorkerOf(const Place& place) const;
  void SendPrepare(LaunchNumber number);
  void OnPrepared(LaunchNumber number, const Result<v1::CommandResult>& result);
  // Starts the processes that are ready; the first ones begin all together.
  void StartReady();
  // `book`: of all that are ready or run, the same for each of those that start.
  void SendStart(Place& place, const std::string& book);
  void OnStarted(LaunchNumber number, const Status& status);
  void NoteBegun();
  // Its worker cannot run it.
  // `is_there`: its worker is, and says so itself.
  void LeaveOut(Place& place, const Status& why, bool is_there = false);
  std::string Book() const;
  // Tells those that run who may be there now; `alone`: the one on that worker, which may have
  // missed what the others were told.
  void SendBook(const TaskId* alone = nullptr);
  void TellOfEnds();
  v1::LaunchProcess ProcessOf(const Place& place) const;
  void OnExited(const Member& member, Place& place, const v1::LaunchEvent& end);
  void NoteFailure(const Place& place, const v1::LaunchEvent& end);
  // For certain.
  void Vacate(Place& place, const std::string& how);
  void SendStop(const Place& place, Millis grace);
  void BeginEnding(Millis grace) override;
  // The job fails with the first of these when all have ended, whichever coordinator sees it.
  void WillFail(const Status& cause);
  bool fails() const { return record().has_failure(); }
  // Places whose workers are only made ready are vacant again: nothing is to begin there any more.
  void GiveUpUnstarted();
  void LetOneGo();
  void AwaitNews(const Place& place, SessionId session);
  void OnAdoptLimit();

  std::vector<Place> places_;
  // A process has been started.
  bool began_ = false;
  // A process has ended with 0: what they were to do is done, and nobody is replaced.
  bool complete_ = false;
  // A process has come too late: while others are there, who have done it all, none is started.
  bool late_ = false;
  bool ending_ = false;
  // Processes that failed soon after their start, one after another.
  std::uint32_t failures_ = 0;
  TimePoint not_before_;
  // Ends were told of, and are again no sooner; some wait for that.
  TimePoint told_until_;
  bool tells_ = false;
};

}  // namespace muster::coordinator
