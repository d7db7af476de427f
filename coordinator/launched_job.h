// What jobs that run processes of a command have in common, whether these begin and end together
// (launch_job.h) or come and go one by one (elastic_job.h): they have neither driver nor view, and
// their workers keep what they run while no coordinator is there.
//
// Threading and lifetime: see Job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/fitness.h"
#include "coordinator/job.h"

namespace muster::coordinator {

class LaunchedJob : public Job {
 public:
  // --- See Job.
  void OnExecutorEvent(const Member&, const v1::ExecutorEvent&) override {}
  void OnDriverExit(Incarnation, bool, const std::string&) override {}
  void OnDriverMessage(Incarnation, const v1::FromProgram&) override {}
  Incarnation driver() const override { return Incarnation(); }
  std::string driver_task() const override { return "worker:0"; }
  // Processes go on without a coordinator.
  bool Settled() const override { return true; }
  bool MayLeave(const Member& member) const override {
    return phase_ != Phase::kBegun || !Occupies(member.task);
  }
  void GiveUpCut(const std::string&) override {}
  bool Uses(const TaskId&, ViewId) const override { return false; }

 protected:
  LaunchedJob(World& world, StoredJob stored) : Job(world, std::move(stored)) {}

  // --- What differs between the two.
  // There is something to stop.
  virtual bool HasProcesses() const = 0;
  // Asks all processes to end, and kills those that have not in time.
  virtual void BeginEnding(Millis grace) = 0;

  // --- What they use.
  std::string Forget(bool anew) override;
  const v1::LaunchSpec& launch() const { return story_.spec().launch(); }
  // Whether it begins now, which takes workers that are `enough`; then its plan is the next view's.
  // Else it is tried again soon.
  bool BeginsOn(bool enough);
  // Names another launch of this job; never used again. Its high half is the epoch.
  LaunchNumber NextNumber();
  // Whether a coordinator before this one has begun processes. Else the job waits for its tasks.
  bool HasBegunBefore();
  // A coordinator before this one was asked to stop it: its processes have what is left of their
  // time.
  void GoOnStopping();
  // What processes have to end from now on, where some are asked to.
  Millis GraceLeft() const;
  // A worker cannot run it, for no passing reason: people are told once. When it is asked again.
  Millis NoteUnfit(const TaskId& worker, const Status& why);
  // What process `number` is told of its place. `workers`: TF_CONFIG's list or map of addresses.
  // `hosts`: where each of those that are known is, by number.
  v1::LaunchProcess ProcessAt(std::size_t number, const std::string& workers,
                              const std::map<std::size_t, std::string>& hosts,
                              std::size_t world_size) const;

  // The newest launch's.
  LaunchNumber number_;
  Fitness fitness_;
  // So often were processes asked to end: they have the time that was given the last time.
  std::uint64_t endings_ = 0;

 private:
  std::string MakeDo() override { return {}; }
  std::string Checking() const override { return "a worker on each host looks for the command"; }
  Status TakeCheck(const CheckOutcome&) override { return Ok(); }
  void LetGo() override;
  void BeginStop(Millis grace) override;
  // The processes run without a coordinator, and may be saving what they have.
  bool MaySaveYet() const override { return BegunInRow(); }
  bool BegunInRow() const;
  void EndWithin(Millis limit);
  std::string AfterRestart() const override;
  void OnTaskDraining(const TaskId&) override {}
  Story::Fields CloseProgress() override;

  std::uint32_t launches_started_ = 0;
  // Until then processes may end, where the job is being stopped: the row's stop_until_ms is for
  // the coordinator after this one alone, since a host's clock may be set.
  std::optional<TimePoint> stop_until_;
};

}  // namespace muster::coordinator
