#include "strategy/input/input_link.h"

#include <fmt/core.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/words.h"
#include "common/data/rebatch.h"
#include "strategy/base/internal/raise.h"

namespace muster {
namespace {

// The workers' n-th sessions.
class Meeting {
 public:
  Meeting(std::size_t workers, std::shared_ptr<std::atomic<std::int64_t>> rounds)
      : reports_(workers), left_(workers, false), rounds_(std::move(rounds)) {}

  InputLink::Report Agree(std::size_t worker, const InputLink::Report& mine,
                          std::chrono::steady_clock::time_point deadline) {
    const MutexLock lock(mutex_);
    const std::uint64_t round = round_;
    reports_[worker] = mine;
    if (Missing(false).empty()) {
      outcome_ = Outcome();
      for (auto& report : reports_) report.reset();
      ++round_;
      if (rounds_) ++*rounds_;
      changed_.notify_all();
      return outcome_;
    }
    bool in_time = true;
    while (in_time && round_ == round && Missing(true).empty()) {
      in_time = changed_.wait_until(mutex_, deadline);
    }
    if (round_ == round && Missing(true).empty()) {
      const std::vector<std::size_t> missing = Missing(false);
      const Status late = DeadlineExceeded("input step {}: {} of {} workers not here yet: {}",
                                           round, missing.size(), reports_.size(), Names(missing));
      reports_[worker].reset();
      raise(late);
    }
    if (round_ != round) return outcome_;
    raise(Unavailable("input step {}: no longer reading: {}; all workers have to do the same steps",
                      round, Names(Missing(true))));
  }

  void Leave(std::size_t worker) {
    {
      const MutexLock lock(mutex_);
      left_[worker] = true;
    }
    changed_.notify_all();
  }

 private:
  // Who has not reported, or of these only who has left.
  std::vector<std::size_t> Missing(bool left) const MUSTER_REQUIRES(mutex_) {
    std::vector<std::size_t> missing;
    for (std::size_t worker = 0; worker < reports_.size(); ++worker) {
      if (!reports_[worker] && (!left || left_[worker])) missing.push_back(worker);
    }
    return missing;
  }
  // "worker 1, worker 3"
  static std::string Names(const std::vector<std::size_t>& workers) {
    return Joined(workers, kMostNamed,
                  [](std::size_t worker) { return fmt::format("worker {}", worker); });
  }
  InputLink::Report Outcome() const MUSTER_REQUIRES(mutex_) {
    InputLink::Report all;
    for (std::size_t worker = 0; worker < reports_.size(); ++worker) {
      const InputLink::Report& one = *reports_[worker];
      all.has_data = all.has_data || one.has_data;
      if (!all.columns) all.columns = one.columns;
      if (!all.error && one.error) {
        all.error = ToError(Annotate(ToStatus(*one.error), fmt::format("worker {}", worker)));
      }
    }
    return all;
  }

  Mutex mutex_;
  Condition changed_;
  std::vector<std::optional<InputLink::Report>> reports_ MUSTER_GUARDED_BY(mutex_);
  std::vector<bool> left_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t round_ MUSTER_GUARDED_BY(mutex_) = 0;
  // What the last round agreed on: the next one cannot end before all have left this one.
  InputLink::Report outcome_ MUSTER_GUARDED_BY(mutex_);
  const std::shared_ptr<std::atomic<std::int64_t>> rounds_;
};

class MemoryLink final : public InputLink {
 public:
  MemoryLink(int workers, std::shared_ptr<std::atomic<std::int64_t>> rounds)
      : workers_(workers), joined_(static_cast<std::size_t>(workers)), rounds_(std::move(rounds)) {}

  int workers() const override { return workers_; }

  std::unique_ptr<Session> join(int worker) override {
    if (Status none = data::CheckShard({.workers = workers(), .index = worker}); !none.ok()) {
      raise(none);
    }
    const auto index = static_cast<std::size_t>(worker);
    const MutexLock lock(mutex_);
    const std::size_t pass = joined_[index]++;
    while (meetings_.size() <= pass) {
      meetings_.push_back(std::make_shared<Meeting>(joined_.size(), rounds_));
    }
    return std::make_unique<MemorySession>(meetings_[pass], index);
  }

 private:
  class MemorySession final : public Session {
   public:
    MemorySession(std::shared_ptr<Meeting> meeting, std::size_t worker)
        : meeting_(std::move(meeting)), worker_(worker) {}
    ~MemorySession() override { meeting_->Leave(worker_); }
    Report agree(const Report& mine, std::chrono::steady_clock::time_point deadline) override {
      return meeting_->Agree(worker_, mine, deadline);
    }

   private:
    const std::shared_ptr<Meeting> meeting_;
    const std::size_t worker_;
  };

  const int workers_;
  Mutex mutex_;
  std::vector<std::size_t> joined_ MUSTER_GUARDED_BY(mutex_);  // passes each worker began
  std::vector<std::shared_ptr<Meeting>> meetings_ MUSTER_GUARDED_BY(mutex_);  // by pass
  const std::shared_ptr<std::atomic<std::int64_t>> rounds_;
};

}  // namespace

std::shared_ptr<InputLink> InputLink::in_memory(int workers,
                                                std::shared_ptr<std::atomic<std::int64_t>> rounds) {
  return std::make_shared<MemoryLink>(workers, std::move(rounds));
}

}  // namespace muster
