// Steps under a strategy that keeps the variables in this process: every replica computes its part
// of the batch on its own device and thread, gradients are summed, and each copy of a variable is
// updated by the parameter servers' own rules. Other processes may have parts of the same steps:
// the members of a group, which all have the same variables.
//
// With `deterministic` a batch is always cut into kLogicalShards parts, and their gradients are
// summed pair by pair in one fixed order, whatever the number of devices and of processes: the same
// bits on any.
//
// Threading: one thread makes and uses it. Includes libtorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "common/base/job_limits.h"
#include "services/executor/local_variables.h"
#include "services/executor/replica_source.h"
#include "services/executor/steps.h"
#include "strategy/core/strategy.h"

namespace muster::executor {

class LocalSteps final : public Steps {
 public:
  // The errors of OpenLocalSteps(), as exceptions.
  LocalSteps(const v1::ExecutorStart& start, const std::vector<data::ColumnInfo>& columns);

  // With other members: an error of the group (UNAVAILABLE, ABORTED, DEADLINE_EXCEEDED) leaves the
  // step undone, or ready to be done when these find together again (Meet()). Any other error ends
  // the group for all members.
  Result<v1::MetricSums> Train(std::uint64_t step, Attempt attempt, const data::Element& batch,
                               engine::StepTimes& times) override;
  // On this process's replicas alone.
  Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                  engine::StepTimes& times) override;
  v1::ModelValues Values(bool frozen) const override;
  Status EvaluateWith(const v1::TensorSet& buffers) override;
  Result<std::uint64_t> Done() const override;
  Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory) override;

  // Steps from now on are made with these members, who all make the call; `generation` is the
  // group's. Null: by this process alone. They agree on the last step: one that some have finished,
  // or that all who had taken part hold the sums of, is done everywhere afterwards; who has no
  // variables, or older ones, is given them.
  //   UNAVAILABLE: no member has the variables. Else the group's errors.
  Status Meet(collectives::Group* group, Generation generation);
  // Called in each step with other members when all parts here are computed, on one thread, before
  // it waits for theirs.
  void set_on_computed(std::function<void()> on_computed) { on_computed_ = std::move(on_computed); }
  // False: it began without (StartExecutor.joins), or a member was lost while they were given.
  // To be read by any thread.
  const std::atomic<bool>& has_variables() const { return has_variables_; }

 private:
  // A part's examples; no rows where the batch does not reach.
  struct Slice {
    int part = 0;
    std::int64_t rows = 0;
    data::Element batch;
  };
  struct PartRange {
    int begin = 0;
    int end = 0;
  };
  // The sums of a step that every member of its group has, perhaps: all have voted or none has.
  struct Pending {
    std::uint64_t step = 0;
    PartResult sums;
  };

  // Calls body(replica, part's slice) for each of its parts, on its replica's thread, and adds up
  // what comes back in the order of parts. Times are those of the first replica.
  using Body = std::function<Result<v1::MetricSums>(std::size_t replica, const Slice& slice,
                                                    engine::StepTimes& times)>;
  Result<v1::MetricSums> OnParts(const data::Element& batch, int parts, int first_replica,
                                 int all_replicas, engine::StepTimes& times, const Body& body);
  PartRange PartsOf(int replica, int parts, int replicas) const;
  int parts() const { return deterministic_ ? kShards : members() * replicas_; }
  int members() const { return group_ == nullptr ? 1 : group_->size(); }
  int first_replica() const { return group_ == nullptr ? 0 : group_->rank() * replicas_; }
  // Called by one thread for all replicas: the sums of all members, which nobody uses before all
  // have them.
  PartResult Gathered(std::uint64_t step, std::vector<PartResult> parts);
  void Finish(std::uint64_t step, const v1::MetricSums& sums);
  void FinishPending();
  void TakeVariables(collectives::Group& group, int donor, bool takes, std::uint64_t step);

  static constexpr int kShards = static_cast<int>(job_limits::kLogicalShards);

  const std::unique_ptr<Strategy> strategy_;
  const bool deterministic_;
  const int replicas_;
  const int threads_;
  ModelVariables ids_;
  std::vector<std::unique_ptr<engine::Model>> models_;
  std::unique_ptr<LocalVariables> variables_;
  std::vector<std::unique_ptr<ReplicaSource>> sources_;
  std::function<void()> on_computed_;
  collectives::Group* group_ = nullptr;
  // That of the last group that all of its members have met in.
  Generation generation_;
  std::atomic<bool> has_variables_;
  std::uint64_t done_;
  std::optional<Pending> pending_;
  // Variables have begun to change.
  bool updating_ = false;
  bool broken_ = false;
  std::deque<std::pair<std::uint64_t, v1::MetricSums>> results_;
};

}  // namespace muster::executor
