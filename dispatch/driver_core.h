// What Driver and RemoteValue share: the dispatcher under its lock, the links, who leads.
//
// Threading: any thread; one at a time leads, without the lock while it waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
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

namespace muster::dispatch {

class DriverCore : public std::enable_shared_from_this<DriverCore> {
 public:
  DriverCore(Driver::Options options, net::Fd wake);
  // Begins the reader that leads while nobody waits; Close() ends it, and the links.
  void Start();
  void Close();

  Status Connect(const std::string& task, std::uint64_t incarnation, net::LinkKind kind,
                 const std::string& address, TimePoint deadline);
  void Disconnect(const std::string& task, const Status& why);
  void Crashed(const std::string& task, const std::string& how, Suspects::Cause cause,
               std::span<const std::uint64_t> running);

  Result<ResultSlab::Slot> Schedule(std::uint32_t function, std::span<const std::byte> arguments,
                                    bool want_value, TimePoint deadline,
                                    std::span<const ClosureId> turns_of);
  Result<Driver::Values> Fetch(ResultSlab::Slot slot, TimePoint deadline);
  Status Join(TimePoint deadline);
  Result<bool> Done();

  ClosureId CreatePerWorker(std::uint32_t function, std::span<const std::byte> arguments);
  void ReleasePerWorker(ClosureId value);
  Result<Driver::Values> AwaitPerWorker(ClosureId value, const std::string& task,
                                        TimePoint deadline);

  void AddReference(ResultSlab::Slot slot);
  void Release(ResultSlab::Slot slot);
  ResultSlab::State StateOf(ResultSlab::Slot slot);
  Driver::Counts counts();

 private:
  struct Peer {
    std::string task;
    WorkerHandle handle;
    bool member = false;  // it has said its CREDIT
    std::unique_ptr<net::DuplexLink> link;
    Batch closures{Verb::kClosures};
    std::uint64_t incarnation = 0;
    Status broken;  // why; OK: it works
  };
  using Lock = std::unique_lock<std::mutex>;

  // Waits until `met`, leading or following. False: the deadline is over.
  bool WaitUntil(Lock& lock, absl::FunctionRef<bool()> met, TimePoint deadline);
  // Hands out, waits for the links at most until `deadline`, takes what came. Releases the lock.
  void Lead(Lock& lock, TimePoint deadline, net::Spinner* spinner);
  void ReadAll(Lock& lock);
  // The leader's copy of who is there.
  void LookAtPeers();
  Status OnFrame(Peer& peer, const net::FrameHeader& header, std::span<const std::byte> meta,
                 std::span<const std::byte> payload);
  Status OnCredit(Peer& peer, std::span<const std::byte> meta, std::span<const std::byte> payload);
  Status OnResults(Peer& peer, std::span<const std::byte> meta, std::span<const std::byte> payload);
  // Gives out what may go, and cancels; then writes to the links.
  void PumpAndFlush();
  void Pump();
  void FlushAll();
  void Break(Peer& peer, const Status& why);
  // Takes broken links out and tells; releases the lock to do so.
  void DropBroken(Lock& lock);
  Result<std::unique_ptr<net::DuplexLink>> Open(net::LinkKind kind, const std::string& address,
                                                TimePoint deadline);
  // The error of the queue, which has failed: waits until nothing is in flight. Another thread may
  // raise it meanwhile.
  Status RaiseNow(Lock& lock, TimePoint deadline, const Status& by_another);
  // What is waited for: "2 queued; 3 in flight on worker:0, worker:1".
  std::string Waiting() const;
  // Why a wait has ended without what it was for.
  Status NotMet(std::string_view what) const;
  void ReadWhileNobodyDoes();
  void Wake();

  Driver::Options options_;
  const net::Fd wake_;
  std::atomic<bool> wake_written_{false};
  net::SpinLimit spin_limit_;

  std::mutex mutex_;
  std::condition_variable changed_;  // for followers
  std::condition_variable idle_;     // for the reader
  ClosureDispatcher dispatcher_;
  // Per-worker values that end when all up to a closure are settled: these may use them.
  std::deque<std::pair<std::uint64_t, ClosureId>> releases_;
  std::map<std::string, std::shared_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Peer>> by_worker_;  // by WorkerHandle::index; null: not there
  std::vector<std::shared_ptr<Peer>> led_;        // the leader's copy of peers_
  std::vector<net::DuplexLink*> links_;           // of these
  bool peers_changed_ = true;
  bool leading_ = false;
  bool reader_leads_ = false;
  bool reader_rests_ = false;  // it looks again late
  std::size_t followers_ = 0;
  std::uint64_t turns_ = 0;
  std::uint32_t scheduled_unread_ = 0;
  bool closed_ = false;
  net::Spinner spinner_;
  std::thread reader_;
};

}  // namespace muster::dispatch
