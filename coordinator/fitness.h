// Which workers could not start an executor of a job, why, and when each is asked again.
//
// A worker whose executors end before they are ready, or that says why it cannot start one, is left
// out: others go on, and it is asked again later, each time after a longer pause. When all workers
// say the user's error, the job has failed with it.
//
// Threading: the coordinator's strand. A value.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/membership.h"

namespace muster::coordinator {

class Fitness {
 public:
  // How many ends before it is ready a worker's executors may have: by their own doing, and killed
  // by others.
  struct Limits {
    int own = 3;
    int kills = 6;
  };
  struct LeftOut {
    Millis pause;
    // The same was said before.
    bool told = false;
  };

  // No executor is to be asked for there yet.
  bool IsPausing(const TaskId& worker, TimePoint now) const;
  // An executor has ended before it was ready. An error: so often that the worker is to be left
  // out; it is the job's (kInternal) where nobody else may have killed them.
  Status EndsTooEarly(const TaskId& worker, bool from_outside, const std::string& how,
                      const Limits& limits);
  // It could not, for a peer's sake; most of that passes by itself. Not 0: so many times until now,
  // and it is time to tell.
  int NoteRefusal(const TaskId& worker, const Status& why);
  LeftOut LeaveOut(const TaskId& worker, const Status& why, TimePoint now);
  // An executor is ready there, or whoever started the worker anew may have mended what was wrong.
  void Forget(const TaskId& worker) { unfit_.erase(worker); }
  void Clear() { unfit_.clear(); }

  // There are some, and each of them was left out for the user's error.
  bool AllRefuse(const std::vector<const Member*>& workers) const;
  // Each of them with its reason, as many as people read; empty: one has none.
  std::string Reasons(const std::vector<const Member*>& workers) const;

 private:
  struct Unfit {
    Status why;
    // It is not a peer's fault: no executor is asked for before `until`.
    bool left_out = false;
    TimePoint until;
    int refusals = 0;
    // Executors that ended before they were ready: by their own doing, and killed by others.
    int crashes = 0;
    int kills = 0;
  };
  std::map<TaskId, Unfit> unfit_;
};

// After so many ends of a worker's executors, one after another, the next one waits so long.
Millis RestartDelay(int crashes);

// What the event of a worker that was left out says.
std::string LeftOutText(const TaskId& worker, const Status& why, Millis pause);
// What the event says of one that could not start an executor so often, and is asked on.
std::string RefusalText(const TaskId& worker, const Status& why, int refusals);

}  // namespace muster::coordinator
