// What a view keeps of those who work for it, and a job of them over its views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/closure_queue.h"
#include "coordinator/fitness.h"
#include "muster/v1/jobs.pb.h"

namespace muster::coordinator {

struct ViewParts {
  struct Executor {
    SessionId session;
    bool ready = false;
    std::uint32_t pid = 0;
    int crashes = 0;
    bool restart_planned = false;
    // Closures that it has handed back for a peer's sake since the last one that succeeded.
    int returned = 0;
    TimePoint returning_since;
    // It has made a step, so its buffers have.
    bool trained = false;
    // The version of the buffers that it was given to evaluate with.
    std::uint64_t buffers = 0;
  };
  // Closures of a lost worker that have not been given to another yet.
  struct Rerun {
    TaskId from;
    std::set<ClosureKey> waiting;
    std::string placed;
    std::size_t count = 0;
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
  // A parameter server that is away; its process may come back.
  struct Loss {
    SessionId session;
    std::string how;
  };
};

// What a job has learned in all its views.
struct Lasting {
  Fitness fitness;
  std::map<TaskId, std::uint64_t> closures_by;
  // Closures and checkpoints that were done: a driver that adds none got nowhere.
  std::uint64_t settled = 0;
  // Views in a row that the servers had no room for.
  int without_room = 0;
  // The step that JOB_RESTORED has told, until a view is open: not at each try.
  std::optional<std::uint64_t> restored_told;
  // What CHECKPOINTS_UNREADABLE has told last.
  std::string unreadable_told;
  // Why the newest checkpoint that was tried could not be saved; empty when it was.
  std::string save_failure;
  // The folder of checkpoints owes an answer. Whoever waits for that shares it.
  std::shared_ptr<bool> folder_silent = std::make_shared<bool>(false);
};

}  // namespace muster::coordinator
