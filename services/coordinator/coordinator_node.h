// The coordinator daemon without its process: state directory, coordinator, gRPC. Tests start one
// inside their own process.
//
// Threading: Start, Shutdown and the destructor from one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/coordinator.h"
#include "services/admin/admin_port.h"
#include "services/common/grpc_server.h"
#include "services/common/token.h"

namespace muster::coordinator {

class CoordinatorNode {
 public:
  struct Options {
    services::GrpcServer::Options server;
    Coordinator::Options coordinator;  // state_directory is required
    // The certificates that are let in; null: all of the authorities'.
    std::shared_ptr<tls::Allowed> allowed = nullptr;
    // See AuditLog.
    std::uint64_t audit_bytes = 0;
    // See Front.
    Millis stall_limit{60'000};
    // The driver's program.
    std::string trainer;
  };

  // kFailedPrecondition: the state directory or the address is in use.
  static Result<std::unique_ptr<CoordinatorNode>> Start(Options options,
                                                        const services::Token& token);
  ~CoordinatorNode();

  const services::Endpoint& endpoint() const;
  Epoch epoch() const;
  // What it does, one thing after another.
  Scheduler& strand();
  // What it does, in a few words: where it serves, its jobs, its tasks. On the strand.
  std::string Doing() const;
  // Adds the coordinator's metrics and pages to the port.
  void Show(services::AdminPort& admin);
  // What SIGTERM does first: closures in flight finish and a checkpoint of each running job is
  // saved, within `limit`.
  void Drain(Millis limit);
  // Stops admitting, ends the drivers, closes the streams. What runs goes on from the last
  // checkpoint when a coordinator is started again. Idempotent.
  void Shutdown();

 private:
  struct Parts;
  explicit CoordinatorNode(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace muster::coordinator
