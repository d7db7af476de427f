// muster-worker: runs the closures of jobs in executor processes, or evaluates their checkpoints.
#include "services/common/daemon.h"
#include "services/worker/worker_daemon.h"

namespace muster::services {
namespace {

Status Serve(Daemon& daemon) {
  MUSTER_TRY_ASSIGN(const auto server, GrpcServer::Start(daemon.ServerOptions()));
  MUSTER_TRY_ASSIGN(const auto worker, WorkerDaemon::Start(daemon, *server));
  return daemon.Serve(fmt::format("listening on {}", server->endpoint().ToString()),
                      [&] { worker->Drain(); });
}

}  // namespace
}  // namespace muster::services

int main(int argc, char** argv) {
  using namespace muster::services;
  const Role role{
      .program = "muster-worker",
      .about =
          "Worker of a Muster cluster: runs jobs' closures in executor processes. As task "
          "evaluator:0 it evaluates checkpoints of jobs instead.",
      .task_type = "worker",
      .other_task_type = "evaluator",
      .settings = WorkerSettings(),
  };
  return RunDaemon(role, argc, argv, Serve);
}
