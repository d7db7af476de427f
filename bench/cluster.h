// A cluster of daemons for a measurement.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/scratch.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/process/child.h"

namespace muster::bench {

// It is that of `muster up`, for the life of the object. Threading: one thread.
class Cluster {
 public:
  static Result<std::unique_ptr<Cluster>> Start(int ps, int workers);
  Cluster() = default;
  ~Cluster();

  // What `muster <arguments>` against this cluster prints. The first call waits for the cluster's
  // address.
  //   kUnavailable: the cluster has ended; with its last lines.  kDeadlineExceeded: no address
  //   within 90 s, no answer within 600 s.  Those of Execute().
  Result<std::string> Muster(std::vector<std::string> arguments) const;

  // A folder that goes with the cluster.
  const std::string& folder() const { return scratch_->path(); }

 private:
  // The last lines of `muster up`.
  void Say(const std::string& line);

  std::unique_ptr<Scratch> scratch_;
  mutable Mutex mutex_;
  std::string said_ MUSTER_GUARDED_BY(mutex_);
  // Last: its thread uses the others.
  std::unique_ptr<process::Child> up_;
};

}  // namespace muster::bench
