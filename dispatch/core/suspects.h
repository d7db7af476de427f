// Closures that were in flight when their executor ended, and when one of them is to blame.
//
// A suspect runs alone, so that the next crash has one culprit; one that succeeds is cleared. One
// that is alone when its executors end, again and again, is given up.
//
// Threading: not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/ids.h"

namespace muster::dispatch {

class Suspects {
 public:
  struct Limits {
    // A closure whose executor ends this often by its own doing, all times but the first with
    // nothing else in flight, on two workers or on the only one, is given up.
    int crash = 3;
    // The same for ends that somebody else may have brought about (kill -9, a machine without
    // memory): chance must be as good as excluded.
    int kill = 6;
    // So many crashes of any closures, none of which succeeded in between.
    int barren = 5;
    // The same for closures without an end, each of which takes a whole deadline.
    int endless = 3;
  };
  enum class Cause {
    kItself,   // a signal of its own making, an exit code
    kEndless,  // a closure without an end
    kOutside,  // may have been somebody else: weak evidence
  };

  explicit Suspects(Limits limits) : limits_(limits) {}

  bool empty() const { return suspects_.empty(); }
  bool Contains(ClosureId closure) const { return suspects_.contains(closure); }
  // Its executors have ended by their own doing.
  bool EndsExecutors(ClosureId closure) const;
  // It was in flight when this worker's executor ended.
  bool EndedOn(ClosureId closure, const std::string& worker) const;

  // An executor of `worker` has ended: first each closure that was in flight, then the end itself.
  void Blame(ClosureId closure, const std::string& worker, Cause cause, bool alone);
  void CountEnd(Cause cause);
  // After these: why this closure is to be given up; none: not yet. `only_worker`: there is no
  // other to try. `name`: what people call it; `how`: what the executor ended by.
  std::optional<std::string> Judge(ClosureId closure, const std::string& name, bool alone,
                                   bool only_worker, const std::string& how) const;

  // It has succeeded: it is cleared, and the counts of all closures begin anew.
  void OnSuccess(ClosureId closure);
  void Forget(ClosureId closure) { suspects_.erase(closure); }
  // An error was thrown: what ran before it says nothing of the closures that come.
  void Clear();

 private:
  struct Suspect {
    int crashes = 0;        // by their own doing
    int alone = 0;          // of these, with nothing else in flight
    int alone_outside = 0;  // from outside, with nothing else in flight
    std::set<std::string> on;
  };

  const Limits limits_;
  std::map<ClosureId, Suspect> suspects_;
  // Since a closure succeeded or an error was thrown.
  int barren_ = 0;
  int endless_ = 0;
};

}  // namespace muster::dispatch
