#include "program/executor_endpoint.h"

#include <fmt/core.h>
#include <unistd.h>

#include "common/base/host_port.h"

namespace muster::program {

Result<std::vector<net::Listener>> ListenForDrivers(const v1::ProgramStart& start) {
  std::vector<net::Listener> listeners;
  if (start.link() != "local") {
    const std::string host = start.listen_host().empty() ? "127.0.0.1" : start.listen_host();
    MUSTER_TRY_ASSIGN(net::Listener tcp, net::ListenTcp(JoinHostPort(host, 0)));
    listeners.push_back(std::move(tcp));
  }
  if (start.link() != "tcp" && !start.socket_directory().empty()) {
    MUSTER_TRY_ASSIGN(net::Listener local,
                      net::ListenUnix(fmt::format("{}/{}", start.socket_directory(), ::getpid())));
    listeners.push_back(std::move(local));
  }
  if (listeners.empty()) {
    return FailedPrecondition("link \"{}\" needs a folder for its socket, and none was given",
                              start.link());
  }
  return listeners;
}

v1::DataEndpoint EndpointOf(const std::vector<net::Listener>& listeners,
                            const v1::ProgramStart& start) {
  v1::DataEndpoint endpoint;
  endpoint.set_host_id(start.host_id());
  for (const net::Listener& listener : listeners) {
    if (listener.kind == net::LinkKind::kTcp) endpoint.set_tcp_address(listener.address);
    if (listener.kind == net::LinkKind::kUnix) endpoint.set_unix_path(listener.address);
  }
  return endpoint;
}

std::shared_ptr<tls::KeyContext> TlsOf(const v1::ProgramStart& start) {
  return start.tls() ? tls::KeyContext::Make() : nullptr;
}

net::Identity IdentityOf(const v1::ProgramStart& start) {
  return {.token = start.key(), .host_id = start.host_id(), .tls = TlsOf(start)};
}

std::string RunningFile(const v1::ProgramStart& start) {
  if (start.socket_directory().empty()) return "";
  return fmt::format("{}/{}.running", start.socket_directory(), ::getpid());
}

v1::ProgramPulse PulseOf(const dispatch::RunningTable& running) {
  v1::ProgramPulse pulse;
  pulse.set_ended(running.ended());
  for (const dispatch::RunningTable::Entry& entry : running.Now()) {
    v1::RunningClosure& one = *pulse.add_running();
    one.set_closure(entry.closure.value());
    one.set_attempt(entry.attempt.value());
  }
  return pulse;
}

}  // namespace muster::program
