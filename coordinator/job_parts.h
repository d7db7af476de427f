// What a job keeps of those who work for it. Internal to the Job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/closure_queue.h"
#include "muster/v1/driver.pb.h"
#include "muster/v1/jobs.pb.h"

namespace muster::coordinator {

struct JobParts {
  struct Executor {
    SessionId session;
    bool ready = false;
    bool waits_for_assign = false;
    std::uint32_t pid = 0;
    int crashes = 0;
    bool restart_planned = false;
    // Closures that it has handed back for a peer's sake since the last one that succeeded.
    int returned = 0;
    TimePoint returning_since;
    // It has made a step, so its buffers have.
    bool trained = false;
    // Of the buffers that it was given to evaluate with.
    std::uint64_t buffers = 0;
  };
  // A worker that could not start an executor, over views.
  struct Unfit {
    Status why;
    // It is not a peer's fault: no executor is asked for before then.
    bool left_out = false;
    TimePoint until;
    int refusals = 0;
    int crashes = 0;  // executors that ended before they were ready
  };
  // Closures of a lost worker that have not been given to another yet.
  struct Rerun {
    TaskId from;
    std::set<ClosureKey> waiting;
    std::string placed;
    std::size_t count = 0;
  };
  // The process that drives the job. The number that its calls carry is never used again: one that
  // was given up and wakes is not obeyed.
  struct Driver {
    std::uint64_t number = 0;
    int pid = 0;
    bool running = false;
    bool finished = false;
    std::uint64_t settled_before = 0;
    // Its calls that wait for us, and whether one came since the last look.
    int calls = 0;
    bool heard = false;
    int silent_looks = 0;
    TimePoint heard_at;
  };
  // How far the driver has brought the view: what one that takes its place must know.
  struct Position {
    std::uint64_t scheduled = 0;
    std::uint32_t evaluation_round = 0;
    std::optional<std::uint64_t> evaluated;
    std::optional<v1::CheckpointInfo> saved;
    // A closure's error that the driver was told: it has nothing left but to end the job with it.
    std::optional<Status> raised;
  };
  // Of a parameter server; its process may come back.
  struct Loss {
    SessionId session;
    std::string how;
  };
};

}  // namespace muster::coordinator
