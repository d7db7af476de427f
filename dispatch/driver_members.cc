// Links to executors: opened, ended, judged; and what belongs to each worker.
#include <bit>
#include <utility>

#include "dispatch/driver_core.h"

#include "common/net/channel.h"
#include "common/net/socket.h"

namespace muster::dispatch {

// The handshake's channel reads no byte of what follows: the executor says nothing before our first
// frame.
Result<std::unique_ptr<net::DuplexLink>> DriverCore::Open(net::LinkKind kind,
                                                          const std::string& address,
                                                          TimePoint deadline) {
  MUSTER_TRY_ASSIGN(net::Fd fd, kind == net::LinkKind::kTcp ? net::ConnectTcp(address, deadline)
                                                            : net::ConnectUnix(address, deadline));
  auto stream = std::make_shared<net::Stream>(std::move(fd));
  net::Channel channel(stream, kind, address, {.meta_bytes = 16'384, .payload_bytes = 0});
  const WireSubject subject{.incarnation = options_.dispatch.incarnation,
                            .epoch = static_cast<std::uint32_t>(options_.dispatch.epoch.value()),
                            .functions = options_.functions};
  MUSTER_TRY(net::GreetServer(channel, options_.identity, "driver",
                              std::bit_cast<net::Subject>(subject), deadline));
  net::DuplexLink::Options link = options_.link;
  // Whether the executor is on another host is its to know; its payloads say themselves whether
  // they carry a checksum.
  link.payload_crc = kind == net::LinkKind::kTcp;
  auto opened = std::make_unique<net::DuplexLink>(std::move(stream), kind, address, link);
  Batch credit(Verb::kCredit);
  credit.Add({});
  MUSTER_TRY(credit.QueueOn(*opened));
  MUSTER_TRY(opened->Flush().status());
  return opened;
}

Status DriverCore::Connect(const std::string& task, Incarnation incarnation, net::LinkKind kind,
                           const std::string& address, TimePoint deadline) {
  auto peer = std::make_shared<Peer>();
  peer->task = task;
  peer->incarnation = incarnation;
  auto link = Open(kind, address, deadline);
  if (!link.ok()) return Annotate(link.status(), task);
  peer->link = *std::move(link);
  const MutexLock lock(mutex_);
  if (!peers_.try_emplace(task, peer).second) return AlreadyExists("{} has a link", task);
  peers_changed_ = true;
  Wake();  // the leader, to look at it, too
  const auto met = [&]() MUSTER_REQUIRES(mutex_) { return peer->member || !peer->broken.ok(); };
  if (WaitUntil(met, deadline)) return peer->broken;
  const Status late = DeadlineExceeded("{}: it did not say how many closures it takes", task);
  peer->broken = late;
  DropBroken();
  return late;
}

void DriverCore::Disconnect(const std::string& task, const Status& why, Incarnation last) {
  const MutexLock lock(mutex_);
  const auto found = peers_.find(task);
  if (found == peers_.end() || found->second->incarnation > last) return;
  found->second->broken = why.ok() ? Cancelled("{} is not wanted any more", task) : why;
  DropBroken();
  Wake();
}

ClosureDispatcher::Crash DriverCore::Crashed(const std::string& task, const std::string& how,
                                             Suspects::Cause cause,
                                             std::span<const ClosureId> running, Incarnation last) {
  Disconnect(task, Unavailable("{} has ended by {}", task, how), last);
  const MutexLock lock(mutex_);
  const auto next = peers_.find(task);
  if (next != peers_.end() && next->second->member && next->second->incarnation > last) return {};
  ClosureDispatcher::Crash crash = dispatcher_.CrashWorker(task, how, cause, running);
  PumpAndFlush();
  changed_.notify_all();
  Wake();  // who leads, and may have no link left that would: the queue may have failed
  return crash;
}

void DriverCore::SetPace(Driver::Pace pace) {
  const MutexLock lock(mutex_);
  dispatcher_.set_paused(pace == Driver::Pace::kPause);
  dispatcher_.set_draining(pace == Driver::Pace::kDrain);
  PumpAndFlush();
}

Result<ClosureId> DriverCore::CreatePerWorker(std::uint32_t function,
                                              std::span<const std::byte> arguments) {
  if (arguments.size() > kMostBytes) {
    return InvalidArgument("arguments of {} bytes for a per-worker value, at most {} fit",
                           arguments.size(), kMostBytes);
  }
  const MutexLock lock(mutex_);
  const ClosureId value = dispatcher_.per_worker().Create(function, arguments);
  PumpAndFlush();
  return value;
}

void DriverCore::ReleasePerWorker(ClosureId value) {
  const MutexLock lock(mutex_);
  releases_.emplace_back(dispatcher_.last_scheduled(), value);
  PumpAndFlush();
}

Result<KeptBytes> DriverCore::AwaitPerWorker(ClosureId value, const std::string& task,
                                             TimePoint deadline) {
  const MutexLock lock(mutex_);
  std::optional<ResultSlab::Slot> slot;
  const auto met = [&]() MUSTER_REQUIRES(mutex_) {
    const auto worker = dispatcher_.IndexOf(task);
    slot = worker ? dispatcher_.per_worker().At(value, *worker) : std::nullopt;
    return !slot || dispatcher_.results().state(*slot) != ResultSlab::State::kNotReady;
  };
  if (!WaitUntil(met, deadline)) {
    const std::string what = fmt::format("the value of {} is not built", task);
    // Who looks at each of a thousand workers does not wait, and wants no list of a thousand each.
    if (deadline == TimePoint::min() && !closed_) return DeadlineExceeded("{}", what);
    return NotMet(what);
  }
  if (!slot) return NotFound("no such value on {}", task);
  if (const ClosureError* error = dispatcher_.results().error(*slot)) return ToStatus(*error);
  return dispatcher_.results().value(*slot).Kept();
}

void DriverCore::AddReference(ResultSlab::Slot slot) {
  const MutexLock lock(mutex_);
  dispatcher_.results().AddReference(slot);
}

void DriverCore::Release(ResultSlab::Slot slot) {
  const MutexLock lock(mutex_);
  dispatcher_.results().Release(slot);
}

ResultSlab::State DriverCore::StateOf(ResultSlab::Slot slot) {
  const MutexLock lock(mutex_);
  const ResultSlab::State state = dispatcher_.results().state(slot);
  // Fetch() does not wait for these either: who asks again and again would do so for ever.
  const bool never = closed_ || dispatcher_.stranded();
  return state == ResultSlab::State::kNotReady && never ? ResultSlab::State::kError : state;
}

}  // namespace muster::dispatch
