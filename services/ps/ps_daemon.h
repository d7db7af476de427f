// A parameter server daemon: the data plane, the stream to the coordinator, and the commands that
// come over it, which run on threads of their own so that heartbeats go on meanwhile, and a job
// whose disk hangs holds up no other job.
//
// Threading: Start() and Drain() from main; the rest lives on its strand.
// Lifetime: the daemon outlives it.
#pragma once

#include <memory>
#include <vector>

#include "common/base/lanes.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "services/common/attach_client.h"
#include "services/common/daemon.h"
#include "services/ps/ps_node.h"

namespace muster::services {

std::vector<config::Setting> PsSettings();

class PsDaemon final : private AttachHandler {
 public:
  // Binds the data plane and begins to look for the coordinator.
  static Result<std::unique_ptr<PsDaemon>> Start(Daemon& daemon, GrpcServer& grpc);
  ~PsDaemon() override;

  // Says goodbye to the coordinator and stops serving.
  void Drain();

 private:
  PsDaemon(Daemon& daemon, GrpcServer& grpc, std::shared_ptr<PsNode> node);

  void OnAttached(const v1::Welcome& welcome) override;
  void OnDetached(const Status& why) override;
  void OnCommand(StreamId stream, const v1::Command& command) override;
  void FillRegistration(v1::Register& registration) override;
  void FillHeartbeat(v1::Heartbeat& heartbeat) override;
  void OnRefused(const Status& why) override;
  void OnDrain(const std::string& reason) override;
  void AddMetrics(Samples& samples) const;

  Daemon& daemon_;
  GrpcServer& grpc_;
  const v1::Register registration_;
  const std::shared_ptr<PsNode> node_;  // shared with the commands that run
  ThreadScheduler strand_;
  AttachClient client_;
  Lanes work_;
};

}  // namespace muster::services
