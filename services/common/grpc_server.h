// The server side of gRPC as all daemons use it: health, reflection, limits, keepalive, and the
// check of the token.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "common/base/status.h"
#include "common/tls/context.h"
#include "services/common/acceptor.h"
#include "services/common/network.h"
#include "services/common/token.h"

namespace muster::services {

// Who makes a call of ours. Every method begins with it; health is open to all that are let in, and
// in the clear reflection, too (rpc::ServerCredentials).
struct Caller {
  // Who carries the cluster's token is one of its nodes.
  tls::Role role = tls::Role::kNode;
  // What its certificate names; none: it came in the clear, with the token.
  std::vector<std::string> names = {};
  // That of its certificate.
  std::string fingerprint = {};

  // "submitter ana"; "the token".
  std::string ToString() const;
  // Whether a node speaks for that task: by its certificate; with the token for any.
  bool MayBe(std::string_view task) const;
};
// Who makes a call, for a record of what was refused: "viewer bob", "somebody".
std::string CallerName(const grpc::ServerContextBase& context);

// Whether the call comes from one that may do what `least` may: by its certificate behind TLS, by
// the token in the clear. A node needs both behind TLS.
// Where there is a list of certificates that are let in (may be null), it is asked, too.
//   kUnauthenticated: no token, or another one; a certificate that is not on the list.
//   kPermissionDenied: its role is too small.
Result<Caller> CheckCaller(const grpc::ServerContextBase& context, const Token& token,
                           tls::Role least, tls::Allowed* allowed = nullptr);
// The same of a call that goes on: kUnauthenticated, its certificate has been taken off the list.
Status CheckStillAllowed(const Caller& caller, tls::Allowed* allowed);

// Threading: any thread. Lifetime: the services outlive it.
class GrpcServer {
 public:
  struct Options {
    Endpoint listen;
    std::vector<grpc::Service*> services = {};
    // Where the chosen address is written once it listens; empty: nowhere.
    std::string port_file = {};
    // Its certificate, and who is let in; null: all, in the clear.
    std::shared_ptr<tls::Context> tls = nullptr;
    // Open at once; who comes then is refused, and may try again.
    std::size_t most_connections = 1'024;
    // Hears what SetReady() is told; may be empty.
    std::function<void(bool)> on_ready = {};
  };

  // Listens. Health says SERVING for "" (alive) and NOT_SERVING for "muster.ready" until
  // SetReady().
  //   kFailedPrecondition: somebody listens there.
  static Result<std::unique_ptr<GrpcServer>> Start(const Options& options);
  ~GrpcServer();

  // With the port that was chosen.
  const Endpoint& endpoint() const { return acceptor_->endpoint(); }
  void SetReady(bool ready);
  // Refuses new calls, gives running ones `grace`, then cancels them. Idempotent.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, std::unique_ptr<Acceptor> acceptor,
             std::function<void(bool)> on_ready)
      : server_(std::move(server)),
        acceptor_(std::move(acceptor)),
        on_ready_(std::move(on_ready)) {}

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  const std::function<void(bool)> on_ready_;
};

}  // namespace muster::services
