// What Driver and RemoteValue share: the dispatcher under its lock, the links, who leads.
//
// Threading: any thread; one at a time leads, without the lock while it waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch/driver.h"
#include "dispatch/wire.h"
#include <absl/functional/function_ref.h>

#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace muster::dispatch {

class DriverCore : public std::enable_shared_from_this<DriverCore> {
 public:
  DriverCore(Driver::Options options, net::Fd wake);
  // Begins the reader that leads while nobody waits; Close() ends it, and the links.
  void Start();
  void Close();

  Status Connect(const std::string& task, Incarnation incarnation, net::LinkKind kind,
                 const std::string& address, TimePoint deadline);
  void Disconnect(const std::string& task, const Status& why, Incarnation last);
  ClosureDispatcher::Crash Crashed(const std::string& task, const std::string& how,
                                   Suspects::Cause cause, std::span<const ClosureId> running,
                                   Incarnation last);
  void SetPace(Driver::Pace pace);

  Result<ResultSlab::Slot> Schedule(std::uint32_t function, const KeptBytes& arguments,
                                    TimePoint deadline, std::span<const ClosureId> turns_of,
                                    std::uint64_t step, const ClosureTerms& terms);
  void SetStaleness(std::uint64_t staleness) {
    const MutexLock lock(mutex_);
    dispatcher_.set_staleness(staleness);
  }
  void SetSecondRuns(std::uint32_t most) {
    const MutexLock lock(mutex_);
    dispatcher_.set_second_runs(most);
  }
  void SetErrors(const ErrorPolicy::Options& errors) {
    const MutexLock lock(mutex_);
    dispatcher_.set_errors(errors);
  }
  const Driver::Options& options() const { return options_; }
  Result<KeptBytes> Fetch(ResultSlab::Slot slot, TimePoint deadline);
  Status Join(TimePoint deadline);
  Result<bool> Done(TimePoint deadline);

  Result<ClosureId> CreatePerWorker(std::uint32_t function, std::span<const std::byte> arguments);
  void ReleasePerWorker(ClosureId value);
  Result<KeptBytes> AwaitPerWorker(ClosureId value, const std::string& task, TimePoint deadline);

  void AddReference(ResultSlab::Slot slot);
  void Release(ResultSlab::Slot slot);
  ResultSlab::State StateOf(ResultSlab::Slot slot);
  Driver::Counts counts();
  std::string WaitingNow();

 private:
  // Its members are the lock's; the link says itself who may use it.
  struct Peer {
    std::string task;
    WorkerHandle handle;
    bool member = false;  // it has said its CREDIT
    std::unique_ptr<net::DuplexLink> link;
    Batch closures{Verb::kClosures};
    bool written_to = false;  // it is in written_to_
    Incarnation incarnation{};
    Status broken;  // why; OK: it works
  };

  // Waits until `met`, leading or following. False: the deadline is over.
  bool WaitUntil(absl::FunctionRef<bool()> met, TimePoint deadline) MUSTER_REQUIRES(mutex_);
  // Hands out, waits for the links at most until `deadline`, takes what came. Lets go of the lock
  // in between, as ReadAll() does.
  void Lead(TimePoint deadline, net::Spinner* spinner) MUSTER_REQUIRES(mutex_);
  void ReadAll() MUSTER_REQUIRES(mutex_);
  // What has come on one of them. Without the lock.
  Status Receive(Peer& peer);
  // The leader's copy of who is there.
  void LookAtPeers() MUSTER_REQUIRES(mutex_);
  Status OnFrame(Peer& peer, const net::FrameHeader& header, std::span<const std::byte> meta,
                 const KeptBytes& payload) MUSTER_REQUIRES(mutex_);
  Status OnCredit(Peer& peer, std::span<const std::byte> meta, const KeptBytes& payload)
      MUSTER_REQUIRES(mutex_);
  Status OnResults(Peer& peer, std::span<const std::byte> meta, const KeptBytes& payload)
      MUSTER_REQUIRES(mutex_);
  // Gives out what may go, and cancels; then writes to the links. A leader that sleeps is woken for
  // what a link does not take at once; the leader itself, `leads`, looks for room anyhow.
  void PumpAndFlush(bool leads = false) MUSTER_REQUIRES(mutex_);
  void Pump() MUSTER_REQUIRES(mutex_);
  void Flush(bool leads) MUSTER_REQUIRES(mutex_);
  void NoteWrittenTo(Peer& peer) MUSTER_REQUIRES(mutex_);
  void Break(Peer& peer, const Status& why) MUSTER_REQUIRES(mutex_);
  // Takes broken links out and tells; lets go of the lock to do so.
  void DropBroken() MUSTER_REQUIRES(mutex_);
  Result<std::unique_ptr<net::DuplexLink>> Open(net::LinkKind kind, const std::string& address,
                                                TimePoint deadline);
  // The error of the queue, which has failed: waits until nothing is in flight. Another thread may
  // raise it meanwhile.
  Status RaiseNow(TimePoint deadline, const Status& by_another) MUSTER_REQUIRES(mutex_);
  // What is waited for: "2 queued; 3 in flight on worker:0, worker:1".
  std::string Waiting() const MUSTER_REQUIRES(mutex_);
  // Why a wait has ended without what it was for.
  Status NotMet(std::string_view what) const MUSTER_REQUIRES(mutex_);
  void ReadWhileNobodyDoes();
  void Wake();
  // A worker is there, another executor of it than before perhaps.
  void OnJoined(const Peer& peer) MUSTER_REQUIRES(mutex_);

  Driver::Options options_;
  const net::Fd wake_;
  std::atomic<bool> wake_written_{false};
  net::SpinLimit spin_limit_;

  Mutex mutex_;
  Condition changed_;  // for followers
  Condition idle_;     // for the reader
  ClosureDispatcher dispatcher_ MUSTER_GUARDED_BY(mutex_);
  // Per-worker values that end when all up to a closure are settled: these may use them.
  std::deque<std::pair<ClosureId, ClosureId>> releases_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Peer>> peers_ MUSTER_GUARDED_BY(mutex_);
  // By WorkerHandle::index; null: not there.
  std::vector<std::shared_ptr<Peer>> by_worker_ MUSTER_GUARDED_BY(mutex_);
  // Between Pump() and Flush(): of a thousand one closure concerns one.
  std::vector<Peer*> written_to_ MUSTER_GUARDED_BY(mutex_);
  bool peers_changed_ MUSTER_GUARDED_BY(mutex_) = true;
  bool leading_ MUSTER_GUARDED_BY(mutex_) = false;
  bool reader_leads_ MUSTER_GUARDED_BY(mutex_) = false;
  bool reader_rests_ MUSTER_GUARDED_BY(mutex_) = false;  // it looks again late
  std::size_t followers_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::uint64_t turns_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::uint32_t scheduled_unread_ MUSTER_GUARDED_BY(mutex_) = 0;
  // What the dispatcher does not count.
  Driver::Counts sums_ MUSTER_GUARDED_BY(mutex_);
  // Since when tasks have no executor.
  std::map<std::string, TimePoint> lost_ MUSTER_GUARDED_BY(mutex_);
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;

  // The leader's: a copy of peers_, their links, and how it waits. Whoever sets `leading_` has them
  // to itself.
  std::vector<std::shared_ptr<Peer>> led_;
  std::vector<net::DuplexLink*> links_;
  net::Spinner spinner_;
  std::thread reader_;
};

}  // namespace muster::dispatch
