// What a view keeps of those who work for it, and a job of them over its views.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/fitness.h"
#include "muster/v1/driver.pb.h"
#include "muster/v1/jobs.pb.h"

namespace muster::coordinator {

struct ClosureKey {
  v1::ClosureKind kind = v1::CLOSURE_KIND_UNSPECIFIED;
  std::uint64_t id = 0;
  auto operator<=>(const ClosureKey&) const = default;
};
ClosureKey KeyOf(const v1::Closure& closure);
// "7,9"
std::string Ids(std::span<const ClosureKey> closures);

struct ViewParts {
  struct Executor {
    SessionId session;
    // Unique among the job's executors for ever.
    Incarnation number;
    v1::DataEndpoint endpoint;
    // Where it waits for the members of its group, if its steps are made by one.
    std::string group_address;
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
  // How far the driver has brought the view: what one that takes its place must know.
  struct Position {
    // Steps up to this one may have been begun, and up to this one are done.
    std::uint64_t scheduled = 0;
    std::uint64_t done = 0;
    std::optional<std::uint64_t> evaluated;
    std::optional<v1::CheckpointInfo> saved;
  };
  // A closure that is given up, and why: "closure 7 has ended its executor 3 times ...".
  struct Verdict {
    ClosureKey closure;
    std::string why;
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
  // Executors that were asked for, by their number, and how many.
  std::map<Incarnation, TaskId> executors;
  std::uint32_t executors_started = 0;
  // Closures and checkpoints that were done: a driver that adds none got nowhere.
  std::uint64_t settled = 0;
  // Views in a row that the servers had no room for.
  int without_room = 0;
  // Steps up to this one were done and JOB_RESTORED has not said what is lost of them: views whose
  // number could not be written have come since.
  std::uint64_t lost_from = 0;
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
