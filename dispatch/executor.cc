#include "dispatch/executor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "dispatch/executor_session.h"
#include "dispatch/wire.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::dispatch {
namespace {

// Connections that have not proved themselves.
constexpr std::size_t kMostGreeters = 16;
// While descriptors have run out.
constexpr Millis kNoRoom{100};

}  // namespace

Result<std::unique_ptr<Executor>> Executor::Create(Options options,
                                                   const FunctionTable& functions) {
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return FromErrno(errno, "eventfd");
  options.link.limits = kLinkLimits;
  options.closures_at_a_time = std::max<std::uint32_t>(options.closures_at_a_time, 1);
  return std::unique_ptr<Executor>(new Executor(std::move(options), functions, std::move(wake)));
}

Executor::Executor(Options options, const FunctionTable& functions, net::Fd wake)
    : options_(std::move(options)),
      functions_(functions),
      spin_limit_(1),
      wake_(std::move(wake)),
      running_(options_.closures_at_a_time, options_.running_file),
      greeters_(kMostGreeters, Millis(0)) {}

Executor::~Executor() = default;

void Executor::Stop() {
  stopped_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Executor::Drain() {
  draining_ = true;
  const MutexLock lock(session_mutex_);
  if (session_ != nullptr) session_->SayDraining();
}

Status Executor::Serve(std::span<const net::Listener> listeners) {
  Status status;
  while (!stopped_) {
    auto accepted = net::Accept(listeners, wake_.get(), Millis(60'000));
    if (accepted.status().code() == StatusCode::kResourceExhausted) {
      pollfd woken{.fd = wake_.get(), .events = POLLIN, .revents = 0};
      (void)::poll(&woken, 1, static_cast<int>(kNoRoom.count()));
      continue;
    }
    if (!accepted.ok()) {
      status = accepted.status();
      break;
    }
    if (stopped_ || !accepted->fd.valid()) continue;
    const net::LinkKind kind = listeners[accepted->listener].kind;
    greeters_.Begin(*std::move(accepted),
                    [this, kind](net::Accepted taken, net::Greeters::Guest& guest) {
                      Welcome(std::move(taken), kind, guest);
                    });
  }
  greeters_.End();
  const MutexLock lock(session_mutex_);
  session_.reset();
  return status;
}

Result<std::uint64_t> Executor::Admit(const net::Hello& hello) {
  const auto subject = std::bit_cast<WireSubject>(hello.subject);
  if (subject.protocol != kProtocol) {
    return Unimplemented(
        "the driver speaks dispatch protocol {}, this executor {}: they are of different releases",
        subject.protocol, kProtocol);
  }
  if (subject.functions != functions_.hash()) {
    return InvalidArgument(
        "the driver's functions are not this executor's ({:016x}, {:016x}): both must be the same "
        "program",
        subject.functions, functions_.hash());
  }
  if (draining_) return Unavailable("this executor takes no more closures: it is being drained");
  const Seniority theirs{subject.epoch, subject.incarnation};
  const MutexLock lock(newest_mutex_);
  if (theirs < newest_) {
    return Aborted("driver of epoch {}, incarnation {} is superseded by epoch {}, incarnation {}",
                   theirs.first, theirs.second, newest_.first, newest_.second);
  }
  newest_ = theirs;
  return ++admitted_;
}

// The handshake's channel reads no byte of what follows: a driver says nothing before our WELCOME,
// and we say nothing before its first frame.
void Executor::Welcome(net::Accepted accepted, net::LinkKind kind, net::Greeters::Guest& guest) {
  auto stream = std::make_shared<net::Stream>(std::move(accepted.fd));
  net::DuplexLink::Options link = options_.link;
  std::uint64_t number = 0;
  const auto admit = [this, &number](const net::Hello& said) -> Status {
    MUSTER_TRY_ASSIGN(number, Admit(said));
    return Ok();
  };
  {
    net::Channel channel(stream, kind, accepted.peer, {.meta_bytes = 4096, .payload_bytes = 0});
    const auto hello =
        net::WelcomeClient(channel, options_.identity, channel.After(options_.handshake), admit);
    if (!hello.ok() || !guest.Keep()) return;
    link.payload_crc = kind == net::LinkKind::kTcp && hello->host_id != options_.identity.host_id;
  }
  TakeOver(
      std::make_unique<net::DuplexLink>(std::move(stream), kind, std::move(accepted.peer), link),
      number);
}

// Connections that have waited here for a long closure come out in any order: the last one counts.
void Executor::TakeOver(std::unique_ptr<net::DuplexLink> link, std::uint64_t number) {
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return;
  const MutexLock session(session_mutex_);
  {
    const MutexLock lock(newest_mutex_);
    if (number < admitted_) return;
  }
  session_.reset();
  if (stopped_) return;
  session_ = std::make_unique<ExecutorSession>(
      std::move(link), functions_,
      ExecutorSession::Options{.closures_at_a_time = options_.closures_at_a_time,
                               .worker_index = options_.worker_index,
                               .spin = options_.spin,
                               .spin_limit = &spin_limit_,
                               .cancel_grace = options_.cancel_grace,
                               .on_stuck = options_.on_stuck,
                               .on_arrival = options_.on_arrival},
      running_, std::move(wake));
  if (draining_) session_->SayDraining();
}

}  // namespace muster::dispatch
