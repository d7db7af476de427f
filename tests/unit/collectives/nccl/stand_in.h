// What a test tells the stand-in for NCCL's library (stand_in.cc), and asks of it.
#pragma once

#include <atomic>

namespace muster::testing {

struct StandIn {
  std::atomic<int> version{22105};
  // This rank cannot begin; -1: all can.
  std::atomic<int> no_beginning_of{-1};
  // Members wait at the beginning for one more than there are.
  std::atomic<bool> never_connected{false};
  // Sums of this rank are refused when they are launched; -1: none.
  std::atomic<int> no_launch_of{-1};
  // What was launched never ends.
  std::atomic<bool> never_done{false};
  // The communicator of this rank says so, once it was told to add something; -1: none.
  std::atomic<int> error_later_of{-1};

  std::atomic<int> ids{0};    // that were given
  std::atomic<int> begun{0};  // communicators
  std::atomic<int> ended{0};
  std::atomic<int> launches{0};  // ends of a group that launched something

  void Reset() {
    version = 22105;
    no_beginning_of = no_launch_of = error_later_of = -1;
    never_connected = never_done = false;
    ids = begun = ended = launches = 0;
  }
};

// What a stream is to it.
struct StandInStream {
  std::atomic<int> queued{0};
};

// Exported as muster_stand_in().
using StandInOf = StandIn*();

}  // namespace muster::testing
