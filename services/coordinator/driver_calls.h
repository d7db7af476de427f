// What the drivers of model jobs ask (proto/muster/v1/driver.proto), over the coordinator.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/ids.h"
#include "muster/v1/driver.pb.h"
#include "services/coordinator/front.h"

namespace muster::coordinator {

// Threading: the strand. Lifetime: `front` outlives it.
class DriverCalls {
 public:
  // A driver process, by the pipe that its daemon has given it: it cannot be another one.
  struct Asker {
    std::string job;
    Incarnation driver;
  };
  // To that process, if it is still its job's.
  using Answer = std::function<void(const Asker& asker, v1::DriverAnswer answer)>;

  DriverCalls(Front& front, Answer answer) : front_(front), answer_(std::move(answer)) {}

  void Serve(const Asker& asker, const v1::DriverCall& call);

 private:
  // The job that a call names, and the driver that it says it comes from.
  //   kPermissionDenied, and written down: they are not the asker's.
  Result<ModelJob*> JobOf(const Asker& asker, const std::string& job_id, Incarnation driver) const;

  Front& front_;
  const Answer answer_;
};

}  // namespace muster::coordinator
