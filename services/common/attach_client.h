// The daemon's side of ClusterService.Attach: connects, registers, heartbeats, and does it again
// whenever the stream is lost, also across restarts of the coordinator.
//
// Invariants: heartbeats are made by the strand that does the daemon's work, so a stuck daemon
// stops sending them. A Welcome with a lower epoch than one seen before is refused: that
// coordinator has been replaced. Without an acknowledgement for nine tenths of the lease (counted
// from when the acknowledged heartbeat was sent; for the first one, from when the registration was,
// or half a lease before the Welcome where that is later) the stream is given up, before the
// coordinator gives us up.
//
// Threading: lives on `scheduler`'s strand; everything here is called there, and the handler too.
// Lifetime: scheduler and handler outlive it; destroyed on the strand or after the scheduler
// stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "common/base/ids.h"
#include "common/base/lanes.h"
#include "common/base/lifeline.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/cluster.pb.h"

namespace muster::services {

// One call of Attach. The real one is in attach_stream.h.
class AttachStream {
 public:
  // Cancels; nothing is reported after that to who cares to forget.
  virtual ~AttachStream() = default;
  // Queues a message. Never blocks.
  virtual void Write(v1::DaemonMessage message) = 0;
  // How many are queued.
  virtual std::size_t Pending() const = 0;
  // Ends our half once the queue is empty.
  virtual void FinishWrites() = 0;
};

// Called from any thread, in order; on_closed last and once.
struct AttachEvents {
  std::function<void(v1::CoordinatorMessage)> on_message;
  std::function<void(Status)> on_closed;
};
using OpenAttachStream = std::function<std::unique_ptr<AttachStream>(AttachEvents)>;

// What the daemon does with the stream.
class AttachHandler {
 public:
  virtual ~AttachHandler() = default;
  virtual void OnAttached(const v1::Welcome& welcome) = 0;
  // The coordinator is not there, or no longer. The client tries again by itself.
  virtual void OnDetached(const Status& why) = 0;
  // `stream` goes back with the result (AttachClient::Reply).
  virtual void OnCommand(StreamId stream, const v1::Command& command) = 0;
  // An operator takes this task out: to be done as at SIGTERM. It may come more than once.
  virtual void OnDrain(const std::string& /*reason*/) {}
  // What changes between one registration and the next.
  virtual void FillRegistration(v1::Register&) {}
  // Fills in everything but the sequence.
  virtual void FillHeartbeat(v1::Heartbeat& heartbeat) = 0;
  // The coordinator refuses us for good: wrong token, or a task that is not in its cluster.
  virtual void OnRefused(const Status& why) = 0;
};

class AttachClient {
 public:
  struct Options {
    // For messages: "waiting for the coordinator at ...".
    std::string coordinator;
    // All but the epoch.
    v1::Register registration = {};
    Millis first_retry{50};
    Millis longest_retry{2'000};
    // From opening a stream to its Welcome.
    Millis welcome_limit{5'000};
    // What is known of why no stream can be opened beyond the stream's own words, where the
    // coordinator may be there and want no such one; OK: nothing. Asked before each complaint, on a
    // thread of its own: it may wait for seconds, and owns what it touches.
    std::function<Status()> explain = {};
    std::uint32_t seed = std::random_device()();
  };

  AttachClient(Options options, Scheduler& scheduler, AttachHandler& handler,
               OpenAttachStream open);
  ~AttachClient();

  void Start();
  // Sends, or keeps for the next stream (up to 1,024 messages; log lines go first when it is full).
  void Send(v1::DaemonMessage message);
  // Answers a command that came on `stream`; dropped when that stream has ended, since a new
  // coordinator counts its commands anew.
  void Reply(StreamId stream, v1::CommandResult result);
  // Tells the coordinator that this daemon is asked to end, and goes on working until `then`: when
  // the coordinator has released it, when there is none (any more), or after `limit`.
  void Leave(const std::string& reason, Millis limit, std::function<void()> then);
  // Sends what is queued, ends the stream, then calls `done` (after `limit` at the latest). Does
  // not connect again.
  void Close(Millis limit, std::function<void()> done);

  bool attached() const { return attached_; }
  // Nothing until the first Welcome.
  const std::optional<v1::Welcome>& welcome() const { return welcome_; }

 private:
  struct Sent {
    std::uint64_t sequence = 0;
    TimePoint at;
  };

  void Open();
  void OnMessage(const v1::CoordinatorMessage& message);
  void OnWelcome(const v1::Welcome& welcome);
  void OnAck(std::uint64_t sequence);
  void OnClosed(Status status);
  void Abandon(const Status& why);
  void Heartbeat();
  void Retry(const Status& why);
  // Warns that it waits, with the best reason there is.
  void Complain(const Status& why);
  void Warn(const Status& why) const;
  void AnnounceDraining();
  void Left();
  void Flush();
  void Finish();
  // Ends the stream: nothing that it brings counts any more.
  void DropStream();
  // Runs `task` on the strand while this object lives and the stream is still the same.
  std::function<void(std::function<void()>)> ForStream();

  const Options options_;
  Scheduler& scheduler_;
  AttachHandler& handler_;
  const OpenAttachStream open_;
  Lifeline lifeline_;
  Lanes explaining_;

  StreamId stream_id_;        // +1 for each
  Lifeline stream_lifeline_;  // the stream's, or of the pause before the next one
  std::unique_ptr<AttachStream> stream_;
  bool attached_ = false;
  bool closing_ = false;
  bool draining_ = false;
  std::string draining_reason_;
  std::function<void()> left_;
  std::function<void()> closed_;
  std::optional<v1::Welcome> welcome_;
  Epoch highest_epoch_;

  std::uint64_t sequence_ = 0;
  TimePoint renewed_;  // what the lease is counted from
  std::deque<Sent> unacked_;

  Millis retry_;
  std::minstd_rand random_;
  TimePoint detached_since_;
  TimePoint next_complaint_;
  std::deque<v1::DaemonMessage> kept_;
  std::uint64_t dropped_ = 0;
};

}  // namespace muster::services
