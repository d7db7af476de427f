// TPU cores of this process: TPU:0, TPU:1, ... There is no runtime of real ones yet; the cores are
// emulated, each by an arena of host memory of its own and the threads of the replicas that compute
// for it, as a logical CPU is. Who asks here, and for places (placing.h), need not know.
#pragma once

#include <optional>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/tpu_mesh.h"
#include "device/arena.h"

namespace muster::device {

// Which cores are up. Threading: any thread.
class TpuCores {
 public:
  // For tests; programs have OfProcess().
  TpuCores() = default;
  // Those of this process; never destroyed.
  static TpuCores& OfProcess();

  // Brings the cores of a mesh up. false: they are up already.
  //   FAILED_PRECONDITION: those of another mesh are.
  Result<bool> Start(const TpuMesh& mesh);
  // From here on no name of a core is good; what lies on cores stays as it is. FAILED_PRECONDITION:
  // no cores are up.
  Status Stop();

  // Absent: no cores are up.
  std::optional<TpuMesh> mesh() const;
  int count() const;
  // INVALID_ARGUMENT: there is no TPU:`core`; says how many there are, and what to do.
  Status Check(int core) const;

  static constexpr int kMax = kMostTpuCores;
  static_assert(kMax == Arena::kMaxDevices);

 private:
  mutable Mutex mutex_;
  std::optional<TpuMesh> mesh_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::device
