// Who may look at a daemon through its admin port.
#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"
#include "common/tls/context.h"
#include "services/admin/http_server.h"
#include "services/admin/metrics.h"
#include "services/common/attach_client.h"

namespace muster::services {

// The one place where a request to the admin port is let in or refused (kPermissionDenied).
using AdminGuard = std::function<Status(const HttpRequest&)>;

// In the clear. On loopback everybody of this machine may look, so what is shown there holds no
// secrets and no output of jobs; but a web page of a stranger, which the browser of a person here
// has opened and whose name has been made to point to this machine, may not: the request must name
// loopback, or `host`. Beyond loopback whoever reaches the port may look.
AdminGuard ClearAdminGuard(const std::string& host, bool loopback);

// Behind TLS, from this machine too: who shows a certificate of the cluster's, of whatever role.
// Health and readiness are told to everybody, as a kubelet has no certificate.
AdminGuard TlsAdminGuard();

// Whether a parameter server or a worker is registered. Threading: the client's strand.
void AddAttachment(const AttachClient& client, Samples& samples);
// When the daemon's certificate ends; null: it has none. Threading: any thread.
void AddCertificate(tls::Context* tls, Samples& samples);

}  // namespace muster::services
