// What went wrong with a closure, whose trouble that is, and what is done about it.
//
// Only trouble of workers and parameter servers sends a closure round again; an error of the user's
// function, whatever its code, is the user's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::dispatch {

enum class Origin : std::uint8_t {
  kUser = 1,     // the function itself
  kInput,        // a value that it was given holds an error
  kWorker,       // the executor, its process or its host
  kPs,           // a parameter server
  kCoordinator,  // the daemon or the driver
};

// Where in the closure's life it happened.
enum class Phase : std::uint8_t { kQueued = 1, kInputs, kRun, kWrites, kResult, kBuild };

// "a parameter server"; "writing". What a number that is none of them gets says so.
const char* Words(Origin origin);
const char* Words(Phase phase);

struct ClosureError {
  Status status;
  Origin origin = Origin::kUser;
  Phase phase = Phase::kRun;
  // "worker:1", "ps:0"; empty: unknown.
  std::string task = {};
  Incarnation incarnation{};
  // How often the closure had been sent round again before.
  std::uint32_t retries = 0;

  // "UNAVAILABLE: connection refused (ps:0, incarnation 7, writing, after 2 retries)".
  std::string ToString() const;
};

// Trouble of a worker, a parameter server or the coordinator; else the user's.
bool IsOfTheCluster(const ClosureError& error);
// Such trouble, and another attempt may meet none.
bool MayGoAway(const ClosureError& error);

// What the future of a closure holds that another one's error took along.
ClosureError CancelledError();

// Events within a time that goes along. Not thread-safe.
class WindowedCount {
 public:
  // How many there are with this one.
  std::size_t Add(TimePoint now, std::chrono::milliseconds window);

 private:
  std::vector<TimePoint> events_;
};

// Decides what an error means, in the order of the table in README.md. Not thread-safe.
class ErrorPolicy {
 public:
  struct Options {
    // A parameter server that fails this often within `window` is lost. However many closures fail
    // with it, those that were handed out before a failure that counts are no other one for the
    // time of `same_failure`, which is what a call waits for its server.
    std::size_t ps_failures = 3;
    std::chrono::milliseconds same_failure = std::chrono::seconds(10);
    // So many deadlines may pass within `window` before one is fatal; none: a tenth of the workers.
    std::optional<std::size_t> timeouts = {};
    std::chrono::milliseconds window = std::chrono::minutes(10);
    // A closure that is sent round again so often, for at least so long, is given up with its last
    // error, whatever else is done meanwhile.
    std::uint32_t returns = 100;
    std::chrono::milliseconds return_time = std::chrono::minutes(10);
  };
  enum class Remedy {
    kPutBack,  // to the front of the queue
    kFail,     // the closure's own error, and the queue's if it is the first
  };

  // Executions are numbered in the order in which they are handed out.
  struct Execution {
    std::uint64_t number = 0;
    std::uint64_t newest = 0;  // of all
  };

  explicit ErrorPolicy(Options options) : options_(options) {}
  // Other ones from now on; what has been counted stays.
  void set_options(const Options& options) { options_ = options; }
  Remedy Decide(const ClosureError& error, const Execution& execution, std::size_t workers,
                TimePoint now);
  // This closure is to be sent round again. Says why it is not: it has been too often; none: it is.
  std::optional<std::string> NoteReturn(ClosureId closure, TimePoint now);
  // It has ended.
  void Forget(ClosureId closure) {
    if (!returns_.empty()) returns_.erase(closure);
  }

 private:
  struct Returns {
    TimePoint first;
    std::uint32_t times = 0;
  };
  struct Server {
    WindowedCount failures;
    // What had been handed out when the last failure counted has seen no other one, until then.
    std::uint64_t seen = 0;
    TimePoint same_until = {};
  };
  Options options_;
  std::map<std::string, Server> servers_;
  WindowedCount timeouts_;
  std::map<ClosureId, Returns> returns_;
};

}  // namespace muster::dispatch
