#include "common/net/probe_tls.h"

#include <algorithm>
#include <array>

#include "common/net/socket.h"

namespace muster::net {
namespace {

// A server that minds says so at once.
constexpr Millis kAlert{500};

}  // namespace

Status ProbeTls(const std::string& address, tls::Context& context, const std::string& task,
                TimePoint deadline) {
  MUSTER_TRY_ASSIGN(Fd fd, ConnectTcp(address, deadline));
  MUSTER_TRY_ASSIGN(auto session, context.Connect(task));
  const auto stream = std::make_shared<Stream>(std::move(fd));
  MUSTER_TRY(stream->Encrypt(std::move(session), deadline));
  Socket socket(stream, LinkKind::kTcp, address, SpinMode::kOff, nullptr);
  std::array<std::byte, 64> first;
  const TimePoint until = std::min(deadline, std::chrono::steady_clock::now() + kAlert);
  (void)socket.Read(first, until, nullptr);
  return stream->failure();
}

}  // namespace muster::net
