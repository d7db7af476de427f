// muster-ps: serves variables and applies gradients to them.
#include "services/common/daemon.h"
#include "services/ps/ps_daemon.h"

namespace muster::services {
namespace {

Status Serve(Daemon& daemon) {
  MUSTER_TRY_ASSIGN(const auto server, GrpcServer::Start(daemon.ServerOptions()));
  MUSTER_TRY_ASSIGN(const auto node, PsDaemon::Start(daemon, *server));
  return daemon.Serve(fmt::format("listening on {}", server->endpoint().ToString()),
                      [&] { node->Drain(); });
}

}  // namespace
}  // namespace muster::services

int main(int argc, char** argv) {
  using namespace muster::services;
  const Role role{
      .program = "muster-ps",
      .about = "Parameter server of a Muster cluster: holds variables and applies gradients.",
      .task_type = "ps",
      .settings = PsSettings(),
  };
  return RunDaemon(role, argc, argv, Serve);
}
