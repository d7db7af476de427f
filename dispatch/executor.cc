#include "dispatch/executor.h"

#include <bit>
#include <utility>

#include "dispatch/executor_session.h"
#include "dispatch/wire.h"
#include <sys/eventfd.h>
#include <unistd.h>

namespace muster::dispatch {

Result<std::unique_ptr<Executor>> Executor::Create(Options options,
                                                   const FunctionTable& functions) {
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return FromErrno(errno, "eventfd");
  options.link.limits = kLinkLimits;
  return std::unique_ptr<Executor>(new Executor(std::move(options), functions, std::move(wake)));
}

Executor::Executor(Options options, const FunctionTable& functions, net::Fd wake)
    : options_(std::move(options)), functions_(functions), spin_limit_(1), wake_(std::move(wake)) {}

Executor::~Executor() = default;

void Executor::Stop() {
  stopped_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

Status Executor::Serve(std::span<const net::Listener> listeners) {
  while (!stopped_) {
    auto accepted = net::Accept(listeners, wake_.get(), Millis(60'000));
    if (!accepted.ok()) return accepted.status();
    if (stopped_ || !accepted->fd.valid()) continue;
    const net::LinkKind kind = listeners[accepted->listener].kind;
    Welcome(*std::move(accepted), kind);
  }
  session_.reset();
  return Ok();
}

// The handshake's channel reads no byte of what follows: a driver says nothing before our WELCOME,
// and we say nothing before its first frame.
void Executor::Welcome(net::Accepted accepted, net::LinkKind kind) {
  net::Fd shared(::dup(accepted.fd.get()));
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!shared.valid() || !wake.valid()) return;
  net::DuplexLink::Options link = options_.link;
  {
    net::Channel channel(std::move(shared), kind, accepted.peer, net::SpinMode::kOff, nullptr,
                         {.meta_bytes = 4096, .payload_bytes = 0});
    std::pair<std::uint32_t, std::uint16_t> theirs;
    const auto admit = [&](const net::Hello& hello) -> Status {
      const auto subject = std::bit_cast<WireSubject>(hello.subject);
      if (subject.protocol != kProtocol) {
        return Unimplemented(
            "the driver speaks dispatch protocol {}, this executor {}: they are of "
            "different releases",
            subject.protocol, kProtocol);
      }
      if (subject.functions != functions_.hash()) {
        return InvalidArgument(
            "the driver's functions are not this executor's ({:016x}, {:016x}): "
            "both must be the same program",
            subject.functions, functions_.hash());
      }
      theirs = {subject.epoch, subject.incarnation};
      if (theirs < newest_) {
        return Aborted(
            "driver of epoch {}, incarnation {} is superseded by epoch {}, incarnation "
            "{}",
            theirs.first, theirs.second, newest_.first, newest_.second);
      }
      return Ok();
    };
    const auto hello =
        net::WelcomeClient(channel, options_.identity, channel.After(options_.handshake), admit);
    if (!hello.ok()) return;
    newest_ = theirs;
    link.payload_crc = kind == net::LinkKind::kTcp && hello->host_id != options_.identity.host_id;
  }
  session_.reset();
  session_ = std::make_unique<ExecutorSession>(
      std::make_unique<net::DuplexLink>(std::move(accepted.fd), kind, std::move(accepted.peer),
                                        link),
      functions_, options_.closures_at_a_time, options_.spin, &spin_limit_, std::move(wake));
}

}  // namespace muster::dispatch
