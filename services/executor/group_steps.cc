// Steps that executors of several workers make together (docs/decisions/0014): all have the
// variables, each computes its part of the batch, and the gradients of all are added up. The first
// member of the group has the closures and leads; the others follow what it broadcasts.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/trouble.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/local_steps.h"
#include "services/executor/seats.h"
#include "services/executor/steps.h"
#include "worker/engine/runtime.h"

namespace muster::executor {
namespace {

using std::chrono::steady_clock;

// What the leader broadcasts, and the step's number or the generation.
enum : std::int64_t { kTrain = 1, kSwitch = 2 };
using Order = std::array<std::int64_t, 2>;

// The leader may have nothing to do for long: the job waits, or is being saved.
constexpr std::chrono::hours kIdle{1};
// A closure that comes while the next group forms waits so long, then goes back to the driver.
constexpr std::chrono::seconds kPatience{5};
// When its group is over a member says so, unless the coordinator knows within this time.
constexpr std::chrono::milliseconds kKnown{500};

class GroupSteps final : public Steps {
 public:
  GroupSteps(const v1::ExecutorStart& start, const std::vector<data::ColumnInfo>& columns,
             BatchReader& batches, std::unique_ptr<Seats> seats, std::function<void()> on_over)
      : steps_(start, columns),
        has_variables_(steps_.has_variables()),
        batches_(batches),
        seats_(std::move(seats)),
        on_over_(std::move(on_over)) {
    steps_.set_on_computed([this] { part_step_ = 0; });
    follower_ = std::thread([this, threads = start.threads()] { Follow(threads); });
  }
  ~GroupSteps() override {
    seats_->Stop();
    follower_.join();
  }

  Result<v1::MetricSums> Train(std::uint64_t step, Attempt attempt, const data::Element& batch,
                               engine::StepTimes& times) override {
    const MutexLock lock(mutex_);
    const TimePoint until = steady_clock::now() + kPatience;
    for (;;) {
      MUSTER_TRY(Lead(until));
      MUSTER_TRY_ASSIGN(const std::uint64_t done, steps_.Done());
      Status told = Ok();
      if (step == done + 1 && seat_.group != nullptr) told = Tell({kTrain, AsNumber(step)});
      if (told.ok()) {
        auto sums = steps_.Train(step, attempt, batch, times);
        if (sums.ok() || step != done + 1 || seat_.group == nullptr) return sums;
        told = sums.status();
      }
      if (!IsTransient(told.code())) return told;
      End(told);
    }
  }

  Result<v1::MetricSums> Evaluate(const std::string& label, const data::Element& batch,
                                  engine::StepTimes& times) override {
    const MutexLock lock(mutex_);
    MUSTER_TRY(Lead(steady_clock::now() + kPatience));
    return steps_.Evaluate(label, batch, times);
  }

  v1::ModelValues Values(bool frozen) const override {
    const MutexLock lock(mutex_);
    return steps_.Values(frozen);
  }
  Status EvaluateWith(const v1::TensorSet& buffers) override {
    const MutexLock lock(mutex_);
    return steps_.EvaluateWith(buffers);
  }
  Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory) override {
    const MutexLock lock(mutex_);
    MUSTER_TRY(Lead(steady_clock::now() + kPatience));
    return steps_.Save(step, directory);
  }
  Result<std::uint64_t> Done() const override {
    const MutexLock lock(mutex_);
    return steps_.Done();
  }

  std::string group_address() const override { return seats_->address(); }
  Result<v1::GroupReport> Join(const v1::JoinGroup& request) override {
    MUSTER_TRY(seats_->Form(request));
    v1::GroupReport report;
    report.set_has_variables(has_variables_.load());
    return report;
  }
  Part part() const override { return {.step = part_step_, .number = part_number_}; }

 private:
  static std::int64_t AsNumber(std::uint64_t number) { return static_cast<std::int64_t>(number); }

  Status Tell(Order order) MUSTER_REQUIRES(mutex_) {
    return seat_.group->Broadcast(std::as_writable_bytes(std::span(order)), 0, kStepWithin);
  }

  // Takes the newest seat, between two steps, and is ready to make the next with its members.
  Status Lead(TimePoint until) MUSTER_REQUIRES(mutex_) {
    for (;;) {
      if (seat_.generation != Generation() && over_.ok() && !seats_->HasNewer(seat_.generation)) {
        return LeadsNow();
      }
      auto next = seats_->Newer(seat_.generation, std::min(until, steady_clock::now() + kKnown));
      if (!next.ok() && !over_.ok()) on_over_();
      if (!next.ok()) next = seats_->Newer(seat_.generation, until);
      if (!next.ok()) return over_.ok() ? next.status() : Annotate(over_, Message(next.status()));
      if (seat_.group != nullptr && over_.ok() && seat_.rank == 0) {
        (void)Tell({kSwitch, AsNumber(next->generation.value())});
      }
      seat_ = *std::move(next);
      over_ = Ok();
      MUSTER_TRY(LeadsNow());
      const Status met = Meet();
      if (met.ok()) return met;
      if (!IsTransient(met.code())) return met;
      End(met);
    }
  }
  // The seat's group is over, by this.
  void End(const Status& why) MUSTER_REQUIRES(mutex_) {
    Say(why);
    over_ = why;
  }
  Status LeadsNow() const MUSTER_REQUIRES(mutex_) {
    if (seat_.rank == 0) return Ok();
    return Unavailable("another worker leads generation {}", seat_.generation);
  }

  Status Meet() MUSTER_REQUIRES(mutex_) { return steps_.Meet(seat_.group.get(), seat_.generation); }

  // The thread that takes part in groups that another member leads.
  void Follow(std::uint32_t threads) {
    engine::SetThreads(threads);
    Generation last;
    while (const std::optional<Seats::Seat> seat = seats_->Newer(last)) {
      last = seat->generation;
      if (seat->rank == 0) continue;
      const Status status = Serve(*seat);
      if (status.ok()) continue;
      Say(status);
      // This tells the others of an error of its own.
      seat->group->Abort(status);
      if (!seats_->Newer(last, steady_clock::now() + kKnown).ok()) on_over_();
    }
  }

  // Until the leader goes on with others, or the group is over.
  Status Serve(const Seats::Seat& seat) {
    {
      const MutexLock lock(mutex_);
      if (seat_.generation > seat.generation) return Ok();
      seat_ = seat;
      over_ = Ok();
      MUSTER_TRY(Meet());
    }
    for (;;) {
      Order order{};
      MUSTER_TRY(seat.group->Broadcast(std::as_writable_bytes(std::span(order)), 0, kIdle));
      if (order[0] == kSwitch) return Ok();
      const auto step = static_cast<std::uint64_t>(order[1]);
      const OwnPart own(*this, step);
      MUSTER_TRY(ReadBatch(step));
      const MutexLock lock(mutex_);
      // It leads a later one meanwhile.
      if (seat_.generation != seat.generation) return Ok();
      engine::StepTimes times;
      MUSTER_TRY(steps_.Train(step, Attempt(), *batch_, times).status());
    }
  }

  // While it lives, or until the part is computed, it is seen that this member has one: the others
  // wait for it and cannot tell whether it gets on.
  class OwnPart {
   public:
    OwnPart(GroupSteps& steps, std::uint64_t step) : steps_(steps) {
      // In this order: a new number without a step is a part that has been computed.
      steps_.part_step_ = step;
      ++steps_.part_number_;
    }
    ~OwnPart() { steps_.part_step_ = 0; }
    OwnPart(const OwnPart&) = delete;
    OwnPart& operator=(const OwnPart&) = delete;

   private:
    GroupSteps& steps_;
  };

  // A step that is made again has the batch that it had; the next one is read meanwhile.
  Status ReadBatch(std::uint64_t step) {
    if (batch_step_ != step) {
      MUSTER_TRY_ASSIGN(batch_, batches_.Take(step));
      batch_step_ = step;
    }
    batches_.Request(step + 1);
    return Ok();
  }

  static void Say(const Status& status) { fmt::print(stderr, "group: {}\n", Message(status)); }

  mutable Mutex mutex_;  // held while a step is made
  LocalSteps steps_ MUSTER_GUARDED_BY(mutex_);
  const std::atomic<bool>& has_variables_;
  BatchReader& batches_;
  const std::unique_ptr<Seats> seats_;
  const std::function<void()> on_over_;
  Seats::Seat seat_ MUSTER_GUARDED_BY(mutex_);
  // By which the seat's group has ended, as far as this member knows.
  Status over_ MUSTER_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> part_step_{0};
  std::atomic<std::uint64_t> part_number_{0};
  // The follower's thread's.
  std::optional<data::Element> batch_;
  std::uint64_t batch_step_ = 0;
  std::thread follower_;
};

}  // namespace

Result<std::unique_ptr<Steps>> OpenGroupSteps(const v1::ExecutorStart& start,
                                              const std::vector<data::ColumnInfo>& columns,
                                              BatchReader& batches, std::function<void()> on_over) {
  MUSTER_TRY_ASSIGN(std::unique_ptr<Seats> seats, Seats::Open(start.start()));
  std::unique_ptr<Steps> steps;
  MUSTER_TRY(Guarded([&] {
    steps =
        std::make_unique<GroupSteps>(start, columns, batches, std::move(seats), std::move(on_over));
  }));
  return steps;
}

}  // namespace muster::executor
