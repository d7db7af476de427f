// <state directory>/alive: a file whose time of change says when a coordinator last lived, and
// which holds its process's number, so that the next one can tell who has gone and for how long.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/lifeline.h"
#include "common/base/scheduler.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

// Threading: one strand, the scheduler's; destroyed there, or when it has stopped, and after the
// offload's last piece. A mark that cannot be written costs the figure, nothing else.
class AliveMark {
 public:
  explicit AliveMark(std::string path) : path_(std::move(path)) {}
  ~AliveMark();
  AliveMark(const AliveMark&) = delete;
  AliveMark& operator=(const AliveMark&) = delete;

  // What the coordinator before this one has left; to be asked before Renew(). nullopt and 0: there
  // was none.
  std::optional<std::chrono::system_clock::time_point> Last() const;
  std::uint32_t LastPid() const;
  // From now on, every quarter of a second; the disk is touched by `offload`.
  void Renew(Scheduler& scheduler, Offload& offload);

 private:
  void RenewLater();

  const std::string path_;
  Offload* offload_ = nullptr;
  Scheduler* scheduler_ = nullptr;
  Scheduler::TimerId timer_ = 0;
  int fd_ = -1;
  Lifeline lifeline_;
};

}  // namespace muster::coordinator
