// What people call the closures of a dispatch::Driver, which counts them its own way, and what the
// coordinator is to be told of them beside their results.
//
// Threading: any thread; the watcher's calls come under the driver's lock.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "dispatch/driver.h"

#include "common/base/mutex.h"
#include "muster/v1/driver.pb.h"

namespace muster::trainer {

// "closure 7", "evaluation batch 3"
std::string NameOf(const v1::Closure& closure);

class ClosureStory final : public dispatch::DriverWatcher {
 public:
  // The driver's.
  using Number = std::uint64_t;

  // From `number` on they are closures of `kind`, from `id` on; until it is told otherwise.
  void NoteSchedule(Number number, v1::ClosureKind kind, std::uint64_t id);
  v1::Closure ClosureOf(Number number) const;

  void OnRequeued(const std::string& task, std::span<const std::uint64_t> closures) override;
  void OnReturned(const std::string& task, std::uint64_t closure, const Status& why) override;
  void OnGivenAgain(const std::string& task, std::uint64_t closure) override;
  // User code or data.
  void OnFailed(const std::string& task, const v1::Closure& closure, const std::string& why);

  bool HasNews() const;
  std::vector<v1::ClosureNews> TakeNews();

 private:
  // Closures that were scheduled together.
  struct Run {
    Number first = 0;
    v1::ClosureKind kind = v1::CLOSURE_KIND_UNSPECIFIED;
    std::uint64_t id = 0;  // of the first
  };
  // What an executor had when its link was lost, and has not been given out again.
  struct Rerun {
    std::string from;
    std::set<Number> waiting;
    std::size_t count = 0;
    std::string placed;
  };

  mutable Mutex runs_mutex_;
  std::vector<Run> runs_ MUSTER_GUARDED_BY(runs_mutex_);
  mutable Mutex news_mutex_;
  std::vector<Rerun> reruns_ MUSTER_GUARDED_BY(news_mutex_);
  std::vector<v1::ClosureNews> news_ MUSTER_GUARDED_BY(news_mutex_);
};

}  // namespace muster::trainer
