// One driver's time with an executor: its link, the closures that wait, the threads that run them.
//
// Threading: the constructor starts the threads; the destructor from the executor's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/cancellation.h"
#include "dispatch/core/small_bytes.h"
#include "dispatch/functions.h"
#include "dispatch/running_table.h"
#include "dispatch/wire.h"
#include "dispatch/worker_values.h"

#include "common/base/mutex.h"
#include "common/net/duplex_link.h"

namespace muster::dispatch {

class ExecutorSession {
 public:
  // As in Executor::Options.
  struct Options {
    std::uint32_t closures_at_a_time = 1;
    std::uint32_t worker_index = 0;
    net::SpinMode spin = net::SpinMode::kAdaptive;
    net::SpinLimit* spin_limit = nullptr;
    Millis cancel_grace{10'000};
    std::function<void(const std::string& what)> on_stuck = {};
    std::function<void(std::uint32_t function, std::span<const std::byte> arguments)> on_arrival =
        {};
  };

  // `wake`: written to by the session to end its own wait. Functions, limit and the table of what
  // runs, which has a slot for each closure at a time, outlive it.
  ExecutorSession(std::unique_ptr<net::DuplexLink> link, const FunctionTable& functions,
                  Options options, RunningTable& running, net::Fd wake);
  // Cancels what runs and waits for it. What does not end within the grace goes to `on_stuck`, as
  // does what the driver has cancelled.
  ~ExecutorSession();

  // Tells the driver to send no more. Threading: any.
  void SayDraining();

 private:
  struct Job {
    WireRecord record;
    SmallBytes<64> arguments;
  };

  // One that may not run for ever, while it runs.
  struct Limited {
    WireRecord record;
    TimePoint until;
  };

  // A per-worker value that is over.
  struct Released {
    ClosureId id;
    std::shared_ptr<void> value;
  };

  // A runner's life: takes jobs if there are any, else reads the link if nobody does, else waits.
  void Run(std::size_t slot);
  // Calls `work` without the lock; another runner takes what else there is.
  template <class Work>
  void Busy(const Work& work) MUSTER_REQUIRES(mutex_);
  void EndValues(std::vector<Released>& values, std::size_t slot);
  // Keeps the link while all runners run, sends what a long closure would hold up, and gives up
  // closures that run for too long.
  void Watch();
  // Reads until jobs have come, somebody wants the link, or it is over. Without the lock.
  void Lead(net::Spinner* spinner, TimePoint until);
  Status OnFrame(const net::FrameHeader& header, std::span<const std::byte> meta,
                 const KeptBytes& payload);
  // Jobs for one runner now; none while a build runs alone.
  void TakeJobs(std::vector<Job>& into) MUSTER_REQUIRES(mutex_);
  void RunJobs(std::vector<Job>& jobs, std::size_t slot);
  // Runs one and adds what comes out to the results. True: these are to be sent now.
  bool RunOne(const Job& job, std::vector<std::byte>& value, TimePoint& clock);
  // All up to a closure are cancelled, and may go on for the grace.
  struct CancelledTo {
    ClosureId closure;
    TimePoint until;
  };
  // One that goes on though its grace is over.
  std::optional<ClosureId> TakeDeaf() MUSTER_REQUIRES(mutex_);
  bool IsLimited(const WireRecord& record) const;
  // It may go on. False: it has been given up, or its limit was taken before.
  bool TakeLimit(const WireRecord& record);
  // The first that has run for too long.
  std::optional<Limited> TakeLate() MUSTER_REQUIRES(mutex_);
  void GiveUp(const Limited& late);
  bool AddResult(const WireRecord& record, const KeptBytes& bytes);
  Status QueueResults() MUSTER_REQUIRES(results_mutex_);
  // Sends the results so far, of all runners. Waits while the driver takes no more.
  void Answer();
  // The same, as far as there is room now: the watcher has the link to read.
  void AnswerNow();
  // And with one more behind them. False: there is no room, or a runner waits for some: it is not.
  bool AnswerNow(const WireRecord& record, std::span<const std::byte> bytes);
  // Sends what was queued, with `status`.
  void SendQueued(Status status);
  Status Call(const WireRecord& record, ClosureContext& context) const;
  // A child of the function's has this process's links: it must neither write nor answer.
  void EndIfForked(const WireRecord& record) const;
  // The link has ended: so do the threads, when their closures have.
  void Over();
  Status SayCredit();
  void Wake();

  const std::unique_ptr<net::DuplexLink> link_;
  const FunctionTable& functions_;
  const Options options_;
  const std::uint32_t closures_at_a_time_;
  RunningTable& table_;
  const std::uint64_t forks_;  // that had led to this process
  const net::Fd wake_;
  std::atomic<bool> wake_written_{false};
  net::Spinner spinner_;  // the leader's
  WorkerValues values_;
  Cancellation cancellation_;
  std::atomic<bool> spoken_to_{false};
  std::atomic<bool> draining_{false};
  Mutex results_mutex_;
  Batch results_ MUSTER_GUARDED_BY(results_mutex_){Verb::kResults};

  Mutex mutex_;
  Condition work_;
  Condition watch_;
  Condition ended_;
  std::deque<Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  bool leading_ MUSTER_GUARDED_BY(mutex_) = false;
  bool watcher_leads_ MUSTER_GUARDED_BY(mutex_) = false;
  bool build_runs_ MUSTER_GUARDED_BY(mutex_) = false;
  // Runners with jobs, and those without anything to do.
  std::uint32_t running_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::uint32_t waiting_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::vector<Limited> limited_ MUSTER_GUARDED_BY(mutex_);
  // A runner ends them: their destructors are the user's, and the link waits for nobody's.
  std::vector<Released> released_ MUSTER_GUARDED_BY(mutex_);
  std::vector<CancelledTo> cancelled_ MUSTER_GUARDED_BY(mutex_);
  // How often somebody has led.
  std::uint64_t turns_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Threads.
  std::size_t alive_ MUSTER_GUARDED_BY(mutex_) = 0;

  std::vector<std::thread> threads_;
};

}  // namespace muster::dispatch
