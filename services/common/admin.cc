#include "services/common/admin.h"

#include <arpa/inet.h>

#include "common/base/host_port.h"
#include "services/admin/admin_port.h"

namespace muster::services {
namespace {

bool NamesLoopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "localhost" || host == "::1";
}

}  // namespace

AdminGuard ClearAdminGuard(const std::string& host, bool loopback) {
  if (!loopback) return [](const HttpRequest&) { return Ok(); };
  return [host](const HttpRequest& request) {
    const std::string named = HostIn(request.host);
    if (request.host.empty() || named == host || NamesLoopback(named)) return Ok();
    return PermissionDenied(
        "this port is for this machine alone: ask for it by 127.0.0.1 or localhost");
  };
}

AdminGuard TlsAdminGuard() {
  return [](const HttpRequest& request) {
    if (request.path == AdminPort::kHealth || request.path == AdminPort::kReadiness) return Ok();
    const Result<tls::Holder>& visitor = *request.visitor;
    if (visitor.ok()) return Ok();
    return PermissionDenied(
        "who asks for {} is refused: {}. Ask with the certificate of a viewer of this cluster, or "
        "of any other role: muster certs issue --viewer NAME, then curl --cert NAME.pem --key "
        "NAME.key, or a browser that has it; {} and {} need none",
        request.path, Message(visitor.status()), AdminPort::kHealth, AdminPort::kReadiness);
  };
}

void AddAttachment(const AttachClient& client, Samples& samples) {
  samples.Add(Metric::kAttached, client.attached() ? 1 : 0);
  if (!client.welcome()) return;
  samples.Add(Metric::kSession, static_cast<double>(client.welcome()->session()));
}

void AddCertificate(tls::Context* tls, Samples& samples) {
  if (tls == nullptr) return;
  const auto since_1970 = tls->Ends().time_since_epoch();
  samples.Add(Metric::kCertificateEnds, std::chrono::duration<double>(since_1970).count());
}

}  // namespace muster::services
