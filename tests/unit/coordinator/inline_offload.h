// Blocking work at once, on the strand.
#pragma once

#include <string>
#include <utility>

#include "common/base/scheduler.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

class InlineOffload : public Offload, public LaneOffload {
 public:
  using Function = Offload::Function;
  explicit InlineOffload(Scheduler& strand) : strand_(strand) {}
  void Run(const std::string&, Function work, Function then) override {
    Run(std::move(work), std::move(then));
  }
  void Run(Function work, Function then) override {
    strand_.Post([work = std::move(work), then = std::move(then)]() mutable {
      work();
      then();
    });
  }

 private:
  Scheduler& strand_;
};

}  // namespace muster::coordinator
