// The daemons of `muster up`: how each is started, that dead ones come back, how all of them end.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/up/backoff.h"
#include "cli/up/log_file.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/process/child.h"

namespace muster::cli {

// One daemon to keep running.
struct DaemonPlan {
  std::string task;  // "coordinator", "ps:0", "worker:2"
  std::vector<std::string> argv;
  std::string log_file;
};

// Starts the daemons it is given, one process each, their output appended to their log files (see
// LogFile).
//
// Threading: Start, Poll and Drain from one thread. Lifetime: `say` outlives it. Destruction kills
// what still runs.
class Daemons {
 public:
  struct Options {
    bool restart = true;
    // How long a daemon may take to drain before it is killed.
    std::chrono::milliseconds grace{30'000};
    // A sentence for the person who watches.
    std::function<void(const std::string&)> say;
    // One has ended by itself; from Poll(). May be empty.
    std::function<void(const std::string& task, int pid, const process::Exit& exit)> on_death = {};
    // Every line that a daemon writes; may be empty. Called from threads of the children.
    std::function<void(const std::string& task, const std::string& line)> on_line;
  };

  Daemons(Options options, const Clock& clock);
  ~Daemons();

  //   kNotFound: no such program.
  Status Start(DaemonPlan plan);
  // Used from the next restart on.
  void Replace(const std::string& task, std::vector<std::string> argv);

  // Starts again what has died and has rested. A daemon that ended by itself with exit code 2 or 78
  // cannot get better and is left dead. Call it often; it waits at most `limit` for something to
  // die.
  void Poll(std::chrono::milliseconds limit);

  // One that has ended and will not be started again, as Poll() has seen it; nullopt: none.
  std::optional<std::string> Dead() const;

  // How it has ended; nullopt: it runs.
  std::optional<process::Exit> Ended(const std::string& task) const;

  // SIGTERM to all, who know whom to wait for, and their end; true: all left with code 0, or before
  // they had begun. False also where one stays down that ended otherwise. They are not started
  // again.
  bool Drain();

  // The last lines of a daemon's log, for an error message.
  std::vector<std::string> LastLines(const std::string& task) const;

 private:
  struct Daemon;
  Status Launch(Daemon& daemon);
  Daemon* Find(const std::string& task) const;
  void Bury(Daemon& daemon, const process::Exit& exit);

  const Options options_;
  const Clock& clock_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
  Mutex mutex_;
  Condition died_;
  int deaths_ MUSTER_GUARDED_BY(mutex_) = 0;  // not yet looked at
};

}  // namespace muster::cli
