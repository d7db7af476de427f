// Synchronous training on several devices of one machine, or on all devices of several workers:
// every variable has an equal copy on each.
//
// Threading: as Strategy; with several workers as MultiWorkerMirroredStrategy.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/core/strategy.h"

namespace muster {

class MirroredStrategy final : public Strategy {
 public:
  // No devices: all GPUs of this machine, else CPU:0; and where TF_CONFIG says that this process is
  // one of several workers, without parameter servers, those of all workers, which run the same
  // program. It returns then when all have joined, and all that MultiWorkerMirroredStrategy says of
  // calls, their order and their errors holds here, too.
  // INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device named
  // twice; a TF_CONFIG that cannot be, or of several workers that says not which of them this is;
  // workers that have different numbers of devices. FAILED_PRECONDITION: the workers of this job
  // come and go. ALREADY_EXISTS, UNAVAILABLE: as MultiWorkerMirroredStrategy.
  // No ops: what mirrored_cross_device_ops() takes, on CPU devices CollectiveAllReduce (RING).
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr);

  std::string_view name() const override { return "MirroredStrategy"; }
  // TF_CONFIG's, where it has the replicas of several workers.
  std::shared_ptr<ClusterResolver> cluster_resolver() const override { return resolver_; }
  // On the first worker alone, which writes for all: every worker calls save().
  bool should_checkpoint() const override { return first_replica() == 0; }
  bool should_save_summary() const override { return first_replica() == 0; }

 private:
  struct Joined;
  MirroredStrategy(const std::vector<std::string>& devices,
                   std::shared_ptr<CrossDeviceOps> cross_device_ops, Joined joined);
  static Joined join(const std::vector<std::string>& devices);

  std::shared_ptr<ClusterResolver> resolver_;
};

}  // namespace muster
