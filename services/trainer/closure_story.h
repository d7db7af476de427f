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

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "muster/v1/driver.pb.h"

namespace muster::trainer {

// "closure 7", "evaluation batch 3"
std::string NameOf(const v1::Closure& closure);

class ClosureStory final : public dispatch::DriverWatcher {
 public:
  // From the driver's `number` on they are closures of `kind`, from `id` on; until it is told
  // otherwise.
  void NoteSchedule(ClosureId number, v1::ClosureKind kind, std::uint64_t id);
  v1::Closure ClosureOf(ClosureId number) const;

  void OnRequeued(const std::string& task, std::span<const ClosureId> closures) override;
  void OnReturned(const std::string& task, ClosureId closure, const Status& why) override;
  void OnGivenAgain(const std::string& task, ClosureId closure) override;
  // User code or data.
  void OnFailed(const std::string& task, const v1::Closure& closure, const std::string& why);

  bool HasNews() const;
  std::vector<v1::ClosureNews> TakeNews();

 private:
  // Closures that were scheduled together.
  struct Run {
    ClosureId first;
    v1::ClosureKind kind = v1::CLOSURE_KIND_UNSPECIFIED;
    std::uint64_t id = 0;  // of the first
    std::uint64_t IdOf(ClosureId number) const { return id + number.value() - first.value(); }
  };
  // What an executor had when its link was lost, and has not been given out again.
  struct Rerun {
    std::string from;
    std::set<ClosureId> waiting;
    std::size_t count = 0;
    std::vector<std::string> placed;  // "3 on worker:1"
  };

  mutable Mutex runs_mutex_;
  std::vector<Run> runs_ MUSTER_GUARDED_BY(runs_mutex_);
  mutable Mutex news_mutex_;
  std::vector<Rerun> reruns_ MUSTER_GUARDED_BY(news_mutex_);
  std::vector<v1::ClosureNews> news_ MUSTER_GUARDED_BY(news_mutex_);
};

}  // namespace muster::trainer
