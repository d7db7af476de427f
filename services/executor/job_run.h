// One job and view on this worker: its data and its steps; runs closures.
//
// Threading: any thread; one call at a time works, but Expect() and Join() wait for none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "services/executor/batch_reader.h"
#include "services/executor/steps.h"

namespace muster::v1 {
class Closure;
class ClosureAssignment;
class ClosureResult;
class ExecutorStart;
class GetValues;
class GroupReport;
class Piece;
class ProbeData;
class ProbeReport;
class JobSpec;
class JoinGroup;
class SaveReport;
class SaveVariables;
class SetBuffers;
}  // namespace muster::v1

namespace muster::executor {

class JobRun {
 public:
  // Opens the data and the steps: with parameter servers when the plan has some.
  // `on_group_over`: as OpenGroupSteps() says.
  //   kInvalidArgument, kNotFound, kDataLoss: the user's error.  Else those of steps.h.
  static Result<std::unique_ptr<JobRun>> Open(const v1::ExecutorStart& start,
                                              std::function<void()> on_group_over);

  // This closure will be run soon: its batch is read meanwhile.
  void Expect(const v1::Closure& closure);
  //   kUnavailable, kAborted: a peer was lost, or what runs is of the past; it may run again. Else
  //   the user's error.
  Result<v1::ClosureResult> Run(const v1::ClosureAssignment& assignment, Attempt attempt);

  // The model's values, a piece after the other. kAborted: another job or view.
  // kFailedPrecondition: no snapshot, or one that ends before the offset.
  Result<v1::Piece> Values(const v1::GetValues& request);
  // For the evaluation closures that name this version. Errors of Model::EvaluateWith().
  Status SetBuffers(const v1::SetBuffers& request);
  // Steps::Save(). kAborted: another job or view.
  Result<v1::SaveReport> Save(const v1::SaveVariables& request);

  // Steps::Join(), beside a closure that runs. kAborted: another job or view.
  Result<v1::GroupReport> Join(const v1::JoinGroup& request);
  std::string group_address() const { return steps_->group_address(); }
  // Steps::part().
  Steps::Part part() const { return steps_->part(); }

  // Goes on under a later coordinator: refuses attempts below this from now on (kAborted), and says
  // Steps::Done() when none of them runs.
  Result<std::uint64_t> Adopt(Attempt least_attempt);

 private:
  JobRun() = default;
  Status Train(const v1::ClosureAssignment& assignment, Attempt attempt, v1::ClosureResult& result)
      MUSTER_REQUIRES(mutex_);
  Status Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result)
      MUSTER_REQUIRES(mutex_);
  // True: they are those that the closure wants, or come in time.
  bool AwaitBuffers(std::uint64_t version) MUSTER_REQUIRES(mutex_);

  std::string job_id_;
  ViewId view_;
  Incarnation number_;
  Mutex mutex_;
  std::unique_ptr<BatchReader> training_;
  std::unique_ptr<BatchReader> evaluation_;  // null without evaluation
  // Ends before the data that it reads.
  std::unique_ptr<Steps> steps_;
  // A serialized ModelValues, while it is fetched.
  std::string snapshot_ MUSTER_GUARDED_BY(mutex_);
  Attempt least_attempt_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t buffers_version_ MUSTER_GUARDED_BY(mutex_) = 0;
  Condition buffers_changed_;
};

// Opens the data on this host and counts. An error is this host's alone: its disk is full, it has
// too many files open.
Result<v1::ProbeReport> ProbeData(const v1::ProbeData& request, const std::string& cache_directory);

}  // namespace muster::executor
