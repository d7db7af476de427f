// Where members that are threads of a test meet.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/local_group.h"

namespace muster::collectives {

// Waits until all have come; nothing fails here.
class Room final : public MeetingPlace {
 public:
  explicit Room(int size) : arguments_(static_cast<std::size_t>(size)) {}

  void Meet(int member, std::string call, void* arguments, const Joint& joint, Timeout) override {
    std::unique_lock lock(mutex_);
    if (waiting_ == 0) call_ = call;
    if (call != call_) same_calls = false;
    arguments_[static_cast<std::size_t>(member)] = arguments;
    if (++waiting_ == arguments_.size()) {
      joint(arguments_);
      waiting_ = 0;
      ++meetings;
      all_here_.notify_all();
      return;
    }
    const int mine = meetings;
    all_here_.wait(lock, [&] { return meetings != mine; });
  }

  int meetings = 0;
  bool same_calls = true;

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<void*> arguments_;
  std::size_t waiting_ = 0;
  std::string call_;
};

}  // namespace muster::collectives
