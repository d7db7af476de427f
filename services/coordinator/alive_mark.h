// <state directory>/alive: a file whose time of change says when a coordinator last lived, so that
// the next one can tell how long there was none.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/base/scheduler.h"

namespace muster::coordinator {

// Threading: one strand, the scheduler's; destroyed there, or when it has stopped. A mark that
// cannot be written costs the figure, nothing else.
class AliveMark {
 public:
  explicit AliveMark(std::string path) : path_(std::move(path)) {}
  ~AliveMark();
  AliveMark(const AliveMark&) = delete;
  AliveMark& operator=(const AliveMark&) = delete;

  // Of the coordinator before this one; nullopt: there was none.
  std::optional<std::chrono::system_clock::time_point> Last() const;
  // From now on, every quarter of a second.
  void Renew(Scheduler& scheduler);

 private:
  const std::string path_;
  Scheduler* scheduler_ = nullptr;
  Scheduler::TimerId timer_ = 0;
  int fd_ = -1;
};

}  // namespace muster::coordinator
