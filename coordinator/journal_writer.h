// Rows on their way to the journal. They are written elsewhere (a thread of their own), in the
// order of the calls, so that a slow disk holds up neither leases nor closures. Whoever depends on
// a row goes on in its `done`: then it is on disk, or could not be written.
//
// An event, a row of a checkpoint or the end of all of a job's rows that cannot be written is kept
// and tried again until it is, or until a newer one takes its place; a job's own row is tried again
// by whoever gave it.
//
// What waits is bounded: a row of a job that still waits is replaced by the newer one, and beyond
// kMostWaiting bytes events are refused (kResourceExhausted), which trouble() says. Checkpoints
// have always room: they are few, and with no row of them an unmounted folder would pass for an
// empty one. When the disk has not answered for `slow`, on_slow is told, once for each piece of
// work.
//
// Threading: one strand, that of `offload`. Lifetime: `journal` and `strand` outlive it; `offload`
// outlives it or has been stopped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/lifeline.h"
#include "common/base/scheduler.h"
#include "coordinator/journal.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

class JournalWriter {
 public:
  // Runs on the strand, never inside the call, in the order of the calls.
  using Done = std::function<void(const Status&)>;

  static constexpr std::size_t kMostWaiting = 32 << 20;
  // How long who has asked for something waits for its row, before it is told kUnavailable.
  static constexpr Millis kAnswerLimit{30'000};
  // From a row that could not be written to the next try.
  static constexpr Millis kTryAgain{1'000};

  JournalWriter(Journal& journal, Offload& offload, Scheduler& strand, Millis slow = Millis(5'000));
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  Epoch epoch() const { return journal_.epoch(); }
  std::string cluster_id() const { return journal_.cluster_id(); }
  // Before anything is written, since they read by the caller's thread, and block.
  Result<std::vector<StoredJob>> LoadJobs() {
    MUSTER_INVARIANT(waiting_.empty() && writing_.empty());
    return journal_.LoadJobs();
  }
  Result<std::vector<v1::TakenOut>> LoadTakenOut() {
    MUSTER_INVARIANT(waiting_.empty() && writing_.empty());
    return journal_.LoadTakenOut();
  }

  // See Journal.
  void SaveJob(const v1::JobRecord& record, Done done);
  // `done` comes when it is on disk, or was refused.
  void AddEvent(const std::string& job_id, v1::Event event, Done done);
  void SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info);
  void DeleteCheckpoint(const std::string& job_id, std::uint64_t step);
  void DeleteJob(const std::string& job_id);
  // The job's own row could not be written, and nobody will try again: there is no such job.
  void Forget(const std::string& job_id);
  void SaveTakenOut(const v1::TakenOut& record, Done done);
  void DeleteTakenOut(const v1::Task& task, Done done);
  // With what was written before.
  void LoadEvents(const std::string& job_id,
                  std::function<void(Result<std::vector<v1::Event>>)> then);
  // `then` runs when nothing waits any more, but for what was tried once more and failed.
  void WhenIdle(std::function<void()> then);

  // Nobody waits any more for what is not written.
  void Abandon();

  // What keeps rows from the disk.
  struct Trouble {
    // OK: it does not answer. It says how many rows were refused, too.
    Status error;
    TimePoint since;
    // That wait, with those that could not be written and are tried again.
    std::size_t rows = 0;
    std::set<std::string> jobs;
  };
  // None while rows get onto the disk in time.
  std::optional<Trouble> trouble() const;

  // The disk has not answered for so long, and so many rows wait.
  std::function<void(Millis waited, std::size_t rows)> on_slow;

 private:
  enum class Kind : std::uint8_t {
    kJob,  // the job's own row, which a newer one replaces
    kEvent,
    kCheckpoint,
    kForget,  // all rows of the job go
    kOther,
  };
  struct Row {
    std::string job;
    Kind kind = Kind::kOther;
    std::uint64_t step = 0;  // a checkpoint's
    std::size_t bytes = 0;
    bool failed = false;  // at least once
    std::function<Status(Journal&)> write;
    std::vector<Done> done;
  };
  // One piece of work, on the thread that writes.
  struct Work {
    std::vector<std::function<Status(Journal&)>> writes;
    std::vector<Status> statuses;
  };

  static bool Replaces(const Row& newer, const Row& older);
  void Add(Row row);
  // Refused for want of room.
  bool Refuse(const Row& row);
  Row* Replaceable(const std::string& job);
  void WriteNext();
  void OnWritten(Work& work);
  void NoteJob(const std::string& job, const Status& status);
  // What `newer` replaces is not tried again.
  void DropKept(const Row& newer);
  void TryAgain();
  bool Failing() const;

  Journal& journal_;
  Offload& offload_;
  Scheduler& strand_;
  const Millis slow_;
  std::deque<Row> waiting_;
  // Could not be written: some of them at a time go back to those that wait.
  std::deque<Row> kept_;
  std::size_t waiting_bytes_ = 0;  // of both
  // The piece of work that runs, which has their `write`.
  std::vector<Row> writing_;
  TimePoint writing_since_;
  // Jobs whose own row could not be written.
  std::set<std::string> failing_;
  // Since when rows of any kind cannot, why the newest, and how many were refused since.
  TimePoint failing_since_;
  Status failure_;
  std::size_t refused_ = 0;
  Scheduler::TimerId again_timer_ = 0;
  Scheduler::TimerId slow_timer_ = 0;
  std::vector<std::function<void()>> idle_;
  Lifeline lifeline_;
};

}  // namespace muster::coordinator
