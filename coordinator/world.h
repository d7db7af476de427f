// What every job shares: the rest of the coordinator, as a job sees it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "coordinator/checkpoints.h"
#include "coordinator/commands.h"
#include "coordinator/figures.h"
#include "coordinator/journal_writer.h"
#include "coordinator/logs.h"
#include "coordinator/membership.h"
#include "coordinator/spec_check.h"
#include "coordinator/step_marks.h"
#include "muster/v1/program.pb.h"

namespace muster::coordinator {

// What the driver process of a program is started with.
struct ProgramLaunch {
  v1::ProgramSpec program;
  // But for what is the daemon's own: key, link, host. Its incarnation is the driver's number.
  v1::ProgramStart start;
  // Where the job's tasks serve, by type and index, for TF_CONFIG.
  std::map<std::string, std::map<int, std::string>> cluster;
};

// The next process in its place: never used again, by a later epoch neither.
inline Incarnation NextIncarnation(Epoch epoch, std::uint32_t& started) {
  return Incarnation(InEpoch(epoch, ++started));
}

// Names the process of a program's evaluator where a job's id names its driver.
std::string EvaluatorOf(const std::string& job_id);
// The job of such a name, and the task; empty: the driver.
std::pair<std::string, std::string> JobAndTask(const std::string& process);

// Starts and ends the driver processes. How one ended arrives by Coordinator::OnDriverExit().
class Drivers {
 public:
  virtual ~Drivers() = default;
  // A model's, in the place of whatever drove the job before, which is killed. `start`: but for
  // what is the daemon's own, key, link, host; the incarnation is the number that goes with its
  // calls. What it says arrives by Coordinator::OnDriverMessage().
  virtual Status StartModel(const v1::ProgramStart& start) = 0;
  // The same of a program's, or its evaluator beside it, as the role says.
  virtual Status StartProgram(const ProgramLaunch& launch) = 0;
  // To a driver, after what was sent to it before; harmless without one.
  virtual void Send(const std::string& job_id, const v1::ToProgram& message) = 0;
  // 0: none runs, or it is still being started.
  virtual int Pid(const std::string& job_id) const = 0;
  // SIGTERM, then SIGKILL after `grace` (at once when it is 0); harmless without a driver.
  virtual void Stop(const std::string& job_id, Millis grace) = 0;
};

struct JobOptions {
  // After a loss the job waits so long for the parameter servers that it had, then makes do with
  // those that are there (unless the cluster spec names them: then it goes on waiting, and says
  // so).
  Millis ps_wait{60'000};
  Millis command_limit{120'000};
  // CreateVariables may read a whole checkpoint.
  Millis restore_limit{900'000};
  // SaveVariables writes one, a commit reads it back.
  Millis save_limit{900'000};
  // For what a folder of checkpoints answers at once, if its file system is there.
  Millis folder_limit{60'000};
  // A driver that says nothing of what an ended executor had holds the event of it up no longer.
  Millis answer_limit{500};
  // In a job without parameter servers, a closure whose executor ends this often by its own doing,
  // or this often in all, is given up.
  int crash_limit = 3;
  int kill_limit = 6;
  // Drivers that end without progress in between, before the job fails.
  int driver_limit = 5;
  // A driver that asks nothing for so long is killed and replaced; 0: never. It asks many times in
  // a second.
  Millis driver_timeout{15'000};
  // Executors of one worker that end before they are ready, by their own doing and one after
  // another, before it is left out of the job.
  int executor_limit = 3;
  // A worker that hands its closures back for so long, and does none, gets another executor.
  Millis return_limit{60'000};
  // Views that servers without memory have no room for, before the job fails: an older view may
  // take its time to go.
  int room_limit = 12;
  Millis stop_grace{60'000};
  // <this>/<job id> where the spec names no directory.
  std::string checkpoints_directory;
};

// The coordinator process before this one, as far as it is known.
struct Predecessor {
  // When it was last alive; nothing: there was none, or nobody knows.
  std::optional<std::chrono::system_clock::time_point> alive = std::nullopt;
  std::uint32_t pid = 0;
  // "signal SIGKILL", from whoever is the parent of both.
  std::string how = {};
};

// How a process ended is what its parent says: so many bytes of it go into events.
inline constexpr std::size_t kMostOfHow = 200;

// Threading: the strand's. Lifetime: everything outlives the jobs.
struct World {
  Scheduler& scheduler;
  Epoch epoch;
  const Membership& members;
  Commands& commands;
  SpecChecker& checker;
  JournalWriter& journal;
  Logs& logs;
  Checkpoints& checkpoints;
  Drivers& drivers;
  StepMarks& marks;
  JobOptions options;
  // Each event as it happens, for the daemon's own log.
  std::function<void(const std::string& job_id, const v1::Event&)> on_event;
  // A job has ended, or gives up its place, or could have one now.
  std::function<void()> on_slots;
  // A job has nothing unsaved any more that a task which was asked to end, or all of them, must
  // wait for.
  std::function<void()> on_settled = {};
  // The coordinator was asked to end.
  bool draining = false;
  // What marks the job's folder of checkpoints as its own.
  std::function<Checkpoints::Claimant(const v1::Job&)> claimant = {};
  // How many jobs have, or have asked for, an executor on that worker.
  std::function<std::size_t(const TaskId& worker)> jobs_on = {};
  // Null: nobody keeps them.
  Figures* figures = nullptr;
};

}  // namespace muster::coordinator
