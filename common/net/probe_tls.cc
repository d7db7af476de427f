#include "common/net/probe_tls.h"

#include <algorithm>
#include <array>

#include "common/base/host_port.h"
#include "common/base/real_clock.h"
#include "common/net/socket.h"
#include "common/tls/key_context.h"

namespace muster::net {
namespace {

// A server that minds says so at once.
constexpr Millis kAlert{500};

}  // namespace

Status ProbeTls(const std::string& address, tls::Context& context, const std::string& task,
                TimePoint deadline) {
  MUSTER_TRY_ASSIGN(Fd fd, ConnectTcp(address, deadline));
  MUSTER_TRY_ASSIGN(auto session, context.Connect(task, HostIn(address)));
  MUSTER_TRY(session->OfferHttp2());
  const auto stream = std::make_shared<Stream>(std::move(fd));
  MUSTER_TRY(stream->Encrypt(std::move(session), deadline));
  Socket socket(stream, LinkKind::kTcp, address, SpinMode::kOff, nullptr);
  std::array<std::byte, 64> first;
  const TimePoint until = std::min(deadline, std::chrono::steady_clock::now() + kAlert);
  const Result<std::size_t> got = socket.Read(first, until, nullptr);
  MUSTER_TRY(stream->failure());
  // gRPC sends no alert: a server that minds ends the connection, where one that does not speaks.
  const bool ended = got.ok() ? *got == 0 : got.status().code() == StatusCode::kUnavailable;
  if (!ended) return Ok();
  return Unauthenticated(
      "it ends the connection when it has seen this process's certificate: its tls-ca does not "
      "have the authority that issued it, or it has expired by the clock there");
}

bool SpeaksTls(const std::string& address, TimePoint deadline) {
  auto fd = ConnectTcp(address, deadline);
  // With a key that nobody has: a ClientHello is all that is needed of it.
  auto session = tls::KeyContext::Make()->Connect(tls::NamedKey{.name = "probe", .key = "probe"});
  if (!fd.ok() || !session.ok() || !(*session)->Handshake().ok()) return false;
  Socket socket(*std::move(fd), LinkKind::kTcp, address, SpinMode::kOff, nullptr);
  const std::span<const std::byte> hello = (*session)->Waiting();
  iovec part{.iov_base = const_cast<std::byte*>(hello.data()), .iov_len = hello.size()};
  if (!WriteAll(socket, RealClock(), std::span(&part, 1), deadline).ok()) return false;
  // A record of a handshake or an alert, version 3.
  std::array<std::byte, 2> first{};
  const auto got = socket.Read(first, deadline, nullptr);
  return got.ok() && *got == first.size() &&
         (first[0] == std::byte{22} || first[0] == std::byte{21}) && first[1] == std::byte{3};
}

Status TlsTrouble(const std::string& address, tls::Context* context, const std::string& task,
                  std::string_view who, TimePoint deadline) {
  if (context == nullptr) {
    if (!SpeaksTls(address, deadline)) return Ok();
    return Unauthenticated(
        "it speaks TLS, and this {} has no certificate: give --tls-ca, --tls-cert and --tls-key, "
        "or MUSTER_TLS_CA and so on",
        who);
  }
  Status probed = ProbeTls(address, *context, task, deadline);
  const bool refusal = probed.code() == StatusCode::kUnauthenticated ||
                       probed.code() == StatusCode::kPermissionDenied;
  return refusal ? std::move(probed) : Ok();
}

}  // namespace muster::net
