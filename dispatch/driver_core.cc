#include "dispatch/driver_core.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "dispatch/core/attempt.h"
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/task_name.h"
#include "common/base/words.h"

namespace muster::dispatch {
namespace {

using SteadyClock = std::chrono::steady_clock;

// So many closures gather before they go to executors that are at work already.
constexpr std::size_t kGather = 64;
// So often who schedules looks for results itself.
constexpr std::uint32_t kLookEvery = 128;
// Links that nobody reads are read by the driver's own thread after this; when nothing is in flight
// there are only pings to answer.
constexpr Millis kUnread{2};
constexpr Millis kResting{100};

}  // namespace

DriverCore::DriverCore(Driver::Options options, net::Fd wake)
    : options_(std::move(options)),
      wake_(std::move(wake)),
      spin_limit_(1),
      dispatcher_(options_.dispatch),
      spinner_(options_.spin, &spin_limit_) {
  options_.link.limits = kLinkLimits;
  // What is scheduled has its own bound, and each worker that joins builds all per-worker values,
  // however long they are together. A peer that reads nothing is noticed by its silence.
  options_.link.most_unsent = std::numeric_limits<std::size_t>::max();
}

void DriverCore::Start() {
  reader_ = std::thread([this] { ReadWhileNobodyDoes(); });
}

void DriverCore::Close() {
  {
    const MutexLock closing(mutex_);
    closed_ = true;
    for (const auto& [task, peer] : peers_) peer->link->ShutDown();
  }
  Wake();
  idle_.notify_all();
  changed_.notify_all();
  reader_.join();
  const MutexLock lock(mutex_);
  if (leading_) return;  // somebody still waits
  peers_.clear();
  led_.clear();
  links_.clear();
}

void DriverCore::Wake() {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  // After the write: what is not written yet must not count as read.
  wake_written_ = true;
}

// Closures gather before they are sent, unless somebody is idle; now and then this thread reads
// what has come, so that a program that only schedules needs no other thread.
Result<ResultSlab::Slot> DriverCore::Schedule(std::uint32_t function, const KeptBytes& arguments,
                                              TimePoint deadline,
                                              std::span<const ClosureId> turns_of,
                                              std::uint64_t step, const ClosureTerms& terms) {
  if (arguments.size() > std::min(kMostBytes, options_.dispatch.argument_bytes)) {
    return InvalidArgument("arguments of {} bytes, at most {} fit", arguments.size(),
                           std::min(kMostBytes, options_.dispatch.argument_bytes));
  }
  const MutexLock lock(mutex_);
  const auto schedule = [&]() MUSTER_REQUIRES(mutex_) {
    return dispatcher_.Schedule(function, arguments, turns_of, step, terms);
  };
  ClosureDispatcher::Scheduled scheduled = schedule();
  if (scheduled.admission == ClosureDispatcher::Admission::kFull) {
    const bool room = WaitUntil(
        [&]() MUSTER_REQUIRES(mutex_) {
          scheduled = schedule();
          return scheduled.admission != ClosureDispatcher::Admission::kFull;
        },
        deadline);
    if (!room) return NotMet("no room for another closure");
  }
  if (scheduled.admission == ClosureDispatcher::Admission::kFailed) {
    dispatcher_.results().Release(scheduled.result);
    return RaiseNow(deadline, CancelledError().status);
  }
  if (dispatcher_.any_idle() || dispatcher_.queued() % kGather == 0) PumpAndFlush();
  if (++scheduled_unread_ >= kLookEvery && !leading_) {
    leading_ = true;
    LookAtPeers();
    ReadAll();
    leading_ = false;
    ++turns_;
    PumpAndFlush();
    if (followers_ > 0) changed_.notify_all();
  }
  if (reader_rests_) {
    reader_rests_ = false;
    idle_.notify_one();
  }
  return scheduled.result;
}

Result<KeptBytes> DriverCore::Fetch(ResultSlab::Slot slot, TimePoint deadline) {
  const TimePoint begin = SteadyClock::now();
  const MutexLock lock(mutex_);
  const ResultSlab& results = dispatcher_.results();
  const auto ready = [&] { return results.state(slot) != ResultSlab::State::kNotReady; };
  // Its error is still to be raised, and this closure never runs.
  const auto ended = [&]() MUSTER_REQUIRES(mutex_) { return ready() || dispatcher_.stranded(); };
  if (!WaitUntil(ended, deadline)) {
    return NotMet("the value is not there");
  }
  if (!ready()) return ToStatus(CancelledError());
  ++sums_.fetches;
  sums_.fetch += SteadyClock::now() - begin;
  if (const ClosureError* error = results.error(slot)) return ToStatus(*error);
  return results.value(slot).Kept();
}

Status DriverCore::Join(TimePoint deadline) {
  const MutexLock lock(mutex_);
  const auto ended = [&]() MUSTER_REQUIRES(mutex_) {
    return dispatcher_.failed() || dispatcher_.idle();
  };
  if (!WaitUntil(ended, deadline)) {
    return NotMet("closures have not ended");
  }
  return dispatcher_.failed() ? RaiseNow(deadline, Ok()) : Ok();
}

Result<bool> DriverCore::Done(TimePoint deadline) {
  const MutexLock lock(mutex_);
  if (dispatcher_.failed()) MUSTER_TRY(RaiseNow(deadline, Ok()));
  return dispatcher_.idle();
}

Status DriverCore::RaiseNow(TimePoint deadline, const Status& by_another) {
  std::optional<ClosureError> raised;
  const bool met = WaitUntil(
      [&]() MUSTER_REQUIRES(mutex_) {
        raised = dispatcher_.Raise();
        return raised.has_value() || !dispatcher_.failed();
      },
      deadline);
  if (!met) return NotMet("closures that were cancelled have not ended");
  changed_.notify_all();
  return raised ? ToStatus(*raised) : by_another;
}

std::string DriverCore::Waiting() const {
  if (dispatcher_.workers() == 0) {
    return fmt::format("{} queued, and no worker is there", dispatcher_.queued());
  }
  std::vector<std::string> busy;
  for (const auto& [task, peer] : peers_) {
    if (peer->member && dispatcher_.in_flight(peer->handle) > 0) busy.push_back(task);
  }
  return fmt::format("{} queued, {} in flight{}{}", dispatcher_.queued(), dispatcher_.in_flight(),
                     busy.empty() ? "" : " on ", Joined(busy, 8));
}

Status DriverCore::NotMet(std::string_view what) const {
  if (closed_) return Cancelled("{}, and the driver has ended", what);
  return DeadlineExceeded("{}: {}", what, Waiting());
}

bool DriverCore::WaitUntil(absl::FunctionRef<bool()> met, TimePoint deadline) {
  while (!met()) {
    if (closed_ || SteadyClock::now() >= deadline) return false;
    if (!leading_) {
      leading_ = true;
      Lead(deadline, &spinner_);
      leading_ = false;
      ++turns_;
      if (followers_ > 0) changed_.notify_all();
      continue;
    }
    // The reader gives way.
    if (reader_leads_) Wake();
    ++followers_;
    if (deadline == TimePoint::max()) {
      changed_.wait(mutex_);
    } else {
      (void)changed_.wait_until(mutex_, deadline);
    }
    --followers_;
  }
  return true;
}

void DriverCore::LookAtPeers() {
  if (!peers_changed_) return;
  peers_changed_ = false;
  led_.clear();
  links_.clear();
  for (const auto& [task, peer] : peers_) {
    led_.push_back(peer);
    links_.push_back(peer->link.get());
  }
}

// One turn of whoever leads; what it waits for may have come by the end of it, or of its beginning.
void DriverCore::Lead(TimePoint deadline, net::Spinner* spinner) {
  const bool had_failed = dispatcher_.failed();
  PumpAndFlush(true);
  // For want of workers, just now: that may be what is waited for, and nothing else might come.
  if (dispatcher_.failed() != had_failed) return;
  LookAtPeers();
  deadline = std::min(deadline, dispatcher_.next_timer());
  mutex_.unlock();
  net::WaitForLinks(links_, wake_.get(), deadline, spinner);
  if (wake_written_.exchange(false)) {
    std::uint64_t woken = 0;
    (void)!::read(wake_.get(), &woken, sizeof(woken));
  }
  mutex_.lock();
  ReadAll();
  PumpAndFlush(true);
}

// Takes what has come on the leader's links. The lock is held for a frame at a time.
void DriverCore::ReadAll() {
  scheduled_unread_ = 0;
  bool broken = false;
  mutex_.unlock();
  for (const std::shared_ptr<Peer>& peer : led_) {
    Status status = Receive(*peer);
    if (status.ok()) status = peer->link->Tick();
    if (status.ok() && peer->link->unsent() > 0) status = peer->link->Flush().status();
    if (status.ok()) continue;
    broken = true;
    const MutexLock mark(mutex_);
    Break(*peer, status);
  }
  mutex_.lock();
  if (broken) DropBroken();
}

// Who leads is the driver's reader or a user's thread that waits: an exception would end the
// process, or leave the links to nobody.
Status DriverCore::Receive(Peer& peer) {
  try {
    const auto got =
        peer.link->Receive([&](const net::FrameHeader& header, std::span<const std::byte> meta,
                               const KeptBytes& payload) {
          const MutexLock frame(mutex_);
          return OnFrame(peer, header, meta, payload);
        });
    return got.status();
  } catch (const std::bad_alloc&) {
    const Status none = ResourceExhausted(
        "the driver found no memory for what {} has sent (std::bad_alloc): remote values that are "
        "not needed any more give theirs back",
        peer.task);
    const MutexLock lock(mutex_);
    dispatcher_.FailQueue(
        {.status = none, .origin = Origin::kCoordinator, .phase = Phase::kResult});
    return none;
  }
}

void DriverCore::DropBroken() {
  std::vector<std::shared_ptr<Peer>> gone;
  for (const auto& [task, peer] : peers_) {
    if (!peer->broken.ok()) gone.push_back(peer);
  }
  for (const std::shared_ptr<Peer>& peer : gone) {
    peer->link->ShutDown();
    if (peer->member) {
      ++sums_.losses;
      lost_.try_emplace(peer->task, SteadyClock::now());
      const std::vector<ClosureId> back = dispatcher_.RemoveWorker(peer->handle, peer->broken);
      if (options_.watcher != nullptr) options_.watcher->OnRequeued(peer->task, back);
      by_worker_[peer->handle.index] = nullptr;
    }
    peers_.erase(peer->task);
    peers_changed_ = true;
  }
  if (gone.empty()) return;
  changed_.notify_all();
  if (!options_.on_lost) return;
  mutex_.unlock();
  for (const std::shared_ptr<Peer>& peer : gone) {
    options_.on_lost(peer->task, peer->incarnation, peer->broken);
  }
  mutex_.lock();
}

Status DriverCore::OnFrame(Peer& peer, const net::FrameHeader& header,
                           std::span<const std::byte> meta, const KeptBytes& payload) {
  switch (static_cast<Verb>(header.kind)) {
    case Verb::kResults:
      return OnResults(peer, meta, payload);
    case Verb::kCredit:
      return OnCredit(peer, meta, payload);
    case Verb::kClosures:
    case Verb::kCancel:
      break;
  }
  return DataLoss("{}: a frame of kind {} for a driver", peer.task, header.kind);
}

// Closures that an executor has run, each with its value or error, for the dispatcher to settle.
Status DriverCore::OnResults(Peer& peer, std::span<const std::byte> meta,
                             const KeptBytes& payload) {
  if (!peer.member) return DataLoss("{}: results before its credit", peer.task);
  const TimePoint now = SteadyClock::now();
  return ReadBatch(
      meta, payload, [&](const WireRecord& record, const KeptBytes& bytes) MUSTER_REQUIRES(mutex_) {
        ClosureResult result{.closure = record.closure,
                             .attempt = record.attempt,
                             .run = std::chrono::nanoseconds(record.run_time)};
        std::vector<Bookmark> bookmarks;
        std::span<const std::byte> value = bytes;
        if ((record.flags & kFlagBookmarks) != 0) {
          MUSTER_TRY_ASSIGN(bookmarks, TakeBookmarks(value));
          result.bookmarks = bookmarks;
        }
        // Builds are not of the queue, and a program has some that it did not ask for.
        if (!PerWorkerValues::IsPinned(record.closure)) {
          ++sums_.executions;
          sums_.run += result.run;
        }
        if ((record.flags & kFlagError) == 0) {
          result.value = bytes.Part(value);
          dispatcher_.OnResult(peer.handle, result, now);
          return Ok();
        }
        MUSTER_TRY_ASSIGN(const ClosureError error, DecodeError(value));
        result.error = &error;
        const auto outcome = dispatcher_.OnResult(peer.handle, result, now);
        if (outcome == ClosureDispatcher::Outcome::kAgain && options_.watcher != nullptr) {
          options_.watcher->OnReturned(peer.task, result.closure, error.status);
        }
        return Ok();
      });
}

Status DriverCore::OnCredit(Peer& peer, std::span<const std::byte> meta, const KeptBytes& payload) {
  return ReadBatch(
      meta, payload, [&](const WireRecord& record, const KeptBytes&) MUSTER_REQUIRES(mutex_) {
        if (record.function == 0) {
          if (!peer.member) return Unavailable("{} ends: it takes no more closures", peer.task);
          dispatcher_.HoldWorker(peer.handle, TimePoint::max());
          return Ok();
        }
        if (peer.member) return DataLoss("{}: its credit twice", peer.task);
        const auto found = peers_.find(peer.task);
        if (found == peers_.end() || found->second.get() != &peer) {
          return Cancelled("{} was disconnected", peer.task);
        }
        peer.handle = dispatcher_.AddWorker(peer.task, peer.incarnation, record.function);
        peer.member = true;
        if (by_worker_.size() <= peer.handle.index) by_worker_.resize(peer.handle.index + 1);
        by_worker_[peer.handle.index] = found->second;
        OnJoined(peer);
        return Ok();
      });
}

void DriverCore::OnJoined(const Peer& peer) {
  const TimePoint now = SteadyClock::now();
  if (const auto lost = lost_.find(peer.task); lost != lost_.end()) {
    ++sums_.recoveries;
    sums_.recovery += now - lost->second;
    lost_.erase(lost);
    return;
  }
  const std::optional<TaskId> task = TaskIn(peer.task);
  if (options_.start_delay.count() <= 0 || !task) return;
  std::chrono::milliseconds delay = options_.start_delay * task->index;
  if (options_.most_start_delay.count() > 0) delay = std::min(delay, options_.most_start_delay);
  dispatcher_.HoldWorker(peer.handle, now + delay);
}

void DriverCore::PumpAndFlush(bool leads) {
  Pump();
  Flush(leads);
}

// Assignments go behind each link's frame in the making, and what was cancelled or released to all.
void DriverCore::Pump() {
  dispatcher_.Pump(SteadyClock::now(),
                   [this](WorkerHandle worker, const Assignment& one) MUSTER_REQUIRES(mutex_) {
                     Peer& peer = *by_worker_[worker.index];
                     if (options_.watcher != nullptr && ExecutionsOf(one.attempt) > 1) {
                       options_.watcher->OnGivenAgain(peer.task, one.closure);
                     }
                     NoteWrittenTo(peer);
                     const bool full = peer.closures.Add({.closure = one.closure,
                                                          .attempt = one.attempt,
                                                          .function = one.function,
                                                          .flags = one.flags,
                                                          .run_time = one.run_limit_ms},
                                                         one.arguments);
                     if (!full) return;
                     const Status status = peer.closures.QueueOn(*peer.link);
                     if (!status.ok()) Break(peer, status);
                   });
  while (!releases_.empty() && releases_.front().first <= dispatcher_.settled()) {
    dispatcher_.per_worker().Release(releases_.front().second);
    releases_.pop_front();
  }
  const auto cancel = dispatcher_.TakeCancel();
  const std::vector<ClosureId> released = dispatcher_.per_worker().TakeReleased();
  if (!cancel && released.empty()) return;
  for (const auto& [task, peer] : peers_) {
    Batch batch(Verb::kCancel);
    if (cancel) batch.Add({.closure = *cancel});
    for (const ClosureId value : released) {
      batch.Add({.closure = value, .flags = kFlagRelease});
    }
    NoteWrittenTo(*peer);
    const Status status = batch.QueueOn(*peer->link);
    if (!status.ok()) Break(*peer, status);
  }
}

void DriverCore::NoteWrittenTo(Peer& peer) {
  if (!std::exchange(peer.written_to, true)) written_to_.push_back(&peer);
}

// The leader finds the link closed and drops it.
void DriverCore::Break(Peer& peer, const Status& why) {
  if (!peer.broken.ok()) return;
  peer.broken = why;
  peer.link->ShutDown();
}

// What a link did not take before is the leader's to send, which finds that there is room.
void DriverCore::Flush(bool leads) {
  for (Peer* const peer : written_to_) {
    peer->written_to = false;
    Status status;
    if (!peer->closures.empty()) status = peer->closures.QueueOn(*peer->link);
    if (status.ok() && peer->link->unsent() > 0) {
      const auto all = peer->link->Flush();
      status = all.status();
      // The leader may sleep without looking for room. It does not wake itself: it would go round
      // and round until there is some.
      if (status.ok() && !*all && !leads) Wake();
    }
    if (!status.ok()) Break(*peer, status);
  }
  written_to_.clear();
}

// The driver's own thread: leads while nobody else has for a moment.
void DriverCore::ReadWhileNobodyDoes() {
  const MutexLock lock(mutex_);
  std::uint64_t before = turns_;
  while (!closed_) {
    const bool quiet = turns_ == std::exchange(before, turns_);
    reader_rests_ = quiet && dispatcher_.idle();
    (void)idle_.wait_until(mutex_, SteadyClock::now() + (reader_rests_ ? kResting : kUnread));
    reader_rests_ = false;
    if (closed_ || leading_ || turns_ != before) continue;
    leading_ = reader_leads_ = true;
    // Without spinning: nobody waits for it.
    do {
      Lead(SteadyClock::now() + kResting, nullptr);
    } while (!closed_ && followers_ == 0 && dispatcher_.in_flight() > 0);
    leading_ = reader_leads_ = false;
    if (followers_ > 0) changed_.notify_all();
  }
}

Driver::Counts DriverCore::counts() {
  const MutexLock lock(mutex_);
  Driver::Counts counts = sums_;
  counts.queued = dispatcher_.queued();
  counts.in_flight = dispatcher_.in_flight();
  counts.workers = dispatcher_.workers();
  counts.scheduled = dispatcher_.scheduled();
  counts.succeeded = dispatcher_.succeeded();
  counts.reruns = dispatcher_.reruns();
  counts.settled = dispatcher_.settled();
  counts.steps_ended = dispatcher_.steps_ended();
  counts.drained = dispatcher_.drained();
  counts.failed = dispatcher_.failed();
  counts.futures = dispatcher_.results().held();
  return counts;
}

std::string DriverCore::WaitingNow() {
  const MutexLock lock(mutex_);
  return Waiting();
}

}  // namespace muster::dispatch
