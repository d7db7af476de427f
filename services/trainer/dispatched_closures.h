// Closures that run on the job's executors: a dispatch::Driver, and the coordinator's word on who
// is there, over its pipe.
//
// A report says how far steps may have been begun before they are, so that whoever takes this
// driver's place knows what it must do first.
//
// Threading: one thread uses it; another of its own takes the pipe's messages.
// Lifetime: that of the process, as start and pipe.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "program/driver_links.h"

#include "common/base/mutex.h"
#include "common/base/step_rule.h"
#include "services/trainer/closure_story.h"
#include "services/trainer/closures.h"
#include "services/trainer/driver_pipe.h"

namespace muster::trainer {

class DispatchedClosures final : public Closures {
 public:
  DispatchedClosures(const v1::ProgramStart& start, DriverPipe& pipe,
                     const v1::OpenJobReply& opened);

  Status Schedule(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last,
                  std::uint64_t buffers) override;
  Result<std::vector<v1::ClosureResult>> Take(Millis limit) override;
  void StopGiving() override;
  bool stands_still() override;
  std::size_t workers() override { return links_.driver().counts().workers; }
  bool stop_requested() const override { return stop_; }
  v1::ModelReport Position() override;
  v1::ModelReport Report() override;

 private:
  struct Pending {
    v1::Closure closure;
    dispatch::RemoteValue value;
  };

  void Listen();
  void OnPace(const v1::ModelPace& pace);
  // What the coordinator says, and StopGiving().
  void SetPace() MUSTER_REQUIRES(pace_mutex_);
  void OnVerdict(const v1::ExecutorVerdict& verdict);
  // Takes what has ended from the front.
  Status TakeEnded(std::vector<v1::ClosureResult>& results);
  void Count(const v1::ClosureResult& result);
  // The error that the driver has raised, as people read it.
  Status Failed(const Status& raised);
  void SendReport();

  DriverPipe& pipe_;
  const StepRule steps_;
  const std::uint32_t second_runs_;
  std::atomic<bool> stop_{false};
  std::deque<Pending> pending_;
  ClosureId next_;  // by the driver's count
  std::uint64_t scheduled_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t reported_done_ = 0;
  TimePoint reported_at_;
  std::uint64_t drained_ = 0;  // the pace's number
  std::map<Incarnation, v1::ExecutorWork> work_;

  ClosureStory story_;

  Mutex pace_mutex_;
  v1::ModelPace pace_ MUSTER_GUARDED_BY(pace_mutex_);
  bool stopping_ MUSTER_GUARDED_BY(pace_mutex_) = false;

  program::internal::DriverLinks links_;
  std::thread listener_;
};

}  // namespace muster::trainer
