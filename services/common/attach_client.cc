#include "services/common/attach_client.h"

#include <algorithm>

#include "common/base/words.h"
#include "common/telemetry/log.h"

namespace muster::services {
namespace {

constexpr std::size_t kMostKept = 1'024;
// Beyond this, log lines are dropped instead of queued: results must not wait behind them.
constexpr std::size_t kMostQueuedBeforeLogs = 1'024;
constexpr Millis kComplainEvery{5'000};

Millis Since(TimePoint from, TimePoint to) { return std::chrono::duration_cast<Millis>(to - from); }

bool IsFinal(const Status& status) {
  return status.code() == StatusCode::kUnauthenticated ||
         status.code() == StatusCode::kPermissionDenied ||
         status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kFailedPrecondition;
}

}  // namespace

AttachClient::AttachClient(Options options, Scheduler& scheduler, AttachHandler& handler,
                           OpenAttachStream open)
    : options_(std::move(options)),
      scheduler_(scheduler),
      handler_(handler),
      open_(std::move(open)),
      explaining_(scheduler),
      retry_(options_.first_retry),
      random_(options_.seed) {}

AttachClient::~AttachClient() = default;

void AttachClient::Start() {
  detached_since_ = scheduler_.Now();
  next_complaint_ = detached_since_;
  Open();
}

std::function<void(std::function<void()>)> AttachClient::ForStream() {
  return [run = stream_lifeline_.Guard([](const std::function<void()>& task) { task(); }),
          &scheduler = scheduler_](std::function<void()> task) {
    scheduler.Post([run, task = std::move(task)]() mutable { run(task); });
  };
}

void AttachClient::DropStream() {
  stream_id_ = stream_id_.Next();
  stream_lifeline_.Cut();
  attached_ = false;
  stream_.reset();
}

void AttachClient::Open() {
  DropStream();
  unacked_.clear();
  const auto on_strand = ForStream();
  stream_ = open_({.on_message =
                       [this, on_strand](v1::CoordinatorMessage message) {
                         on_strand([this, message = std::move(message)] { OnMessage(message); });
                       },
                   .on_closed =
                       [this, on_strand](Status status) {
                         on_strand([this, status = std::move(status)] { OnClosed(status); });
                       }});
  v1::DaemonMessage message;
  *message.mutable_register_() = options_.registration;
  message.mutable_register_()->set_epoch(highest_epoch_.value());
  handler_.FillRegistration(*message.mutable_register_());
  renewed_ = scheduler_.Now();
  stream_->Write(std::move(message));
  (void)scheduler_.RunAfter(options_.welcome_limit, stream_lifeline_.Guard([this] {
    if (attached_) return;
    Abandon(DeadlineExceeded("no answer to the registration within {} ms",
                             options_.welcome_limit.count()));
  }));
}

void AttachClient::OnMessage(const v1::CoordinatorMessage& message) {
  using Body = v1::CoordinatorMessage::BodyCase;
  if (message.body_case() == Body::kWelcome) return OnWelcome(message.welcome());
  if (!attached_) {
    return Abandon(Internal("the coordinator's first message is no Welcome"));
  }
  switch (message.body_case()) {
    case Body::kAck:
      return OnAck(message.ack().sequence());
    case Body::kCommand:
      return handler_.OnCommand(stream_id_, message.command());
    case Body::kRelease:
      return Left();
    case Body::kDrain:
      return handler_.OnDrain(message.drain().reason());
    default:
      log::Warning("a message of the coordinator that this version does not know is passed over");
  }
}

void AttachClient::OnWelcome(const v1::Welcome& welcome) {
  if (Epoch(welcome.epoch()) < highest_epoch_) {
    return Abandon(
        Aborted("the coordinator at {} has epoch {}, but epoch {} has been seen: it has "
                "been replaced",
                options_.coordinator, welcome.epoch(), highest_epoch_));
  }
  if (welcome.heartbeat_ms() == 0 || welcome.lease_ms() <= welcome.heartbeat_ms()) {
    return Abandon(Internal("the coordinator's Welcome has heartbeat {} ms and lease {} ms",
                            welcome.heartbeat_ms(), welcome.lease_ms()));
  }
  highest_epoch_ = Epoch(welcome.epoch());
  // The coordinator counts from when it answered, however long it took to reach it: the first
  // heartbeat has the time to be acknowledged.
  renewed_ = std::max(renewed_, scheduler_.Now() - Millis(welcome.lease_ms()) / 2);
  welcome_ = welcome;
  attached_ = true;
  retry_ = options_.first_retry;
  log::Info("registered with the coordinator at {}: epoch {}, session {}", options_.coordinator,
            welcome.epoch(), welcome.session());
  handler_.OnAttached(welcome);
  if (draining_) AnnounceDraining();
  Flush();
  Heartbeat();
}

void AttachClient::OnAck(std::uint64_t sequence) {
  while (!unacked_.empty() && unacked_.front().sequence <= sequence) {
    renewed_ = unacked_.front().at;
    unacked_.pop_front();
  }
}

void AttachClient::Heartbeat() {
  const TimePoint now = scheduler_.Now();
  const Millis lease(welcome_->lease_ms());
  if (now - renewed_ > lease * 9 / 10) {
    return Abandon(Unavailable("no heartbeat acknowledged for {} ms, the lease is {} ms",
                               Since(renewed_, now).count(), lease.count()));
  }
  v1::DaemonMessage message;
  handler_.FillHeartbeat(*message.mutable_heartbeat());
  message.mutable_heartbeat()->set_sequence(++sequence_);
  unacked_.push_back({.sequence = sequence_, .at = now});
  stream_->Write(std::move(message));
  (void)scheduler_.RunAfter(Millis(welcome_->heartbeat_ms()), stream_lifeline_.Guard([this] {
    if (attached_) Heartbeat();
  }));
}

void AttachClient::OnClosed(Status status) {
  if (closing_) return Finish();
  if (status.ok()) status = Unavailable("the coordinator ended the stream");
  if (!attached_ && IsFinal(status)) {
    DropStream();
    return handler_.OnRefused(Annotate(
        status, fmt::format("the coordinator at {} refused this task", options_.coordinator)));
  }
  Abandon(status);
}

// Gives this stream up and comes back with another one.
void AttachClient::Abandon(const Status& why) {
  const bool was_attached = attached_;
  DropStream();
  if (was_attached) {
    detached_since_ = scheduler_.Now();
    next_complaint_ = detached_since_;
    handler_.OnDetached(why);
  }
  Left();
  if (closing_) return Finish();
  Retry(why);
}

void AttachClient::Retry(const Status& why) {
  const TimePoint now = scheduler_.Now();
  if (now >= next_complaint_) {
    next_complaint_ = now + kComplainEvery;
    Complain(why);
  }
  std::uniform_int_distribution<Millis::rep> jitter(retry_.count() / 2, retry_.count());
  const Millis pause(jitter(random_));
  retry_ = std::min(retry_ * 2, options_.longest_retry);
  (void)scheduler_.RunAfter(pause, stream_lifeline_.Guard([this] {
    if (!closing_) Open();
  }));
}

void AttachClient::Complain(const Status& why) {
  if (!options_.explain || why.code() != StatusCode::kUnavailable) return Warn(why);
  const auto known = std::make_shared<Status>();
  explaining_.Run(
      "explain", [explain = options_.explain, known] { *known = explain(); },
      lifeline_.Guard([this, why, known] {
        if (!attached_) Warn(known->ok() ? why : *known);
      }));
}

void AttachClient::Warn(const Status& why) const {
  log::Warning("waiting for the coordinator at {} ({} s): {}", options_.coordinator,
               Since(detached_since_, scheduler_.Now()).count() / 1'000, Message(why));
}

void AttachClient::Send(v1::DaemonMessage message) {
  if (attached_) {
    if (message.has_log() && stream_->Pending() > kMostQueuedBeforeLogs) {
      ++dropped_;
      return;
    }
    stream_->Write(std::move(message));
    return;
  }
  if (kept_.size() >= kMostKept) {
    const auto oldest_log = std::find_if(kept_.begin(), kept_.end(),
                                         [](const v1::DaemonMessage& m) { return m.has_log(); });
    kept_.erase(oldest_log == kept_.end() ? kept_.begin() : oldest_log);
    ++dropped_;
  }
  kept_.push_back(std::move(message));
}

void AttachClient::Reply(StreamId stream, v1::CommandResult result) {
  if (!attached_ || stream != stream_id_) return;
  v1::DaemonMessage message;
  *message.mutable_result() = std::move(result);
  stream_->Write(std::move(message));
}

void AttachClient::Flush() {
  if (dropped_ > 0) {
    log::Warning("{} for the coordinator {} dropped while it was away",
                 Counted(dropped_, "message"), Agreeing(dropped_, "was", "were"));
    dropped_ = 0;
  }
  for (v1::DaemonMessage& message : kept_) stream_->Write(std::move(message));
  kept_.clear();
}

void AttachClient::Leave(const std::string& reason, Millis limit, std::function<void()> then) {
  draining_ = true;
  draining_reason_ = reason;
  left_ = std::move(then);
  if (!attached_) return Left();
  AnnounceDraining();
  (void)scheduler_.RunAfter(limit, lifeline_.Guard([this] { Left(); }));
}

void AttachClient::AnnounceDraining() {
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason(draining_reason_);
  stream_->Write(std::move(message));
}

void AttachClient::Left() {
  if (left_) std::exchange(left_, nullptr)();
}

void AttachClient::Close(Millis limit, std::function<void()> done) {
  closing_ = true;
  closed_ = std::move(done);
  if (!attached_) return Finish();
  stream_->FinishWrites();
  (void)scheduler_.RunAfter(limit, lifeline_.Guard([this] { Finish(); }));
}

void AttachClient::Finish() {
  DropStream();
  if (closed_) std::exchange(closed_, nullptr)();
}

}  // namespace muster::services
