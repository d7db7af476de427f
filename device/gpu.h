// Logical GPUs: GPU:0, GPU:1, ... are the cards of this machine in libtorch's order, or parts of
// them: one card may be declared as several, to try on one card what needs many.
#pragma once

#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::device {

// Which logical GPU is on which card. The first question settles it: from then on the logical GPUs
// are in use and stay as they are.
// Threading: any thread.
class LogicalGpus {
 public:
  // What libtorch says.
  struct Machine {
    int cards = 0;
    // It was built with CUDA, and its CUDA library is loaded.
    bool cuda = false;
  };
  // For tests; programs have OfProcess().
  explicit LogicalGpus(Machine machine);
  // Those of this machine; never destroyed.
  static LogicalGpus& OfProcess();

  int card_count() const { return machine_.cards; }

  // `count` logical GPUs on `card`; one, where nothing is said.
  //   INVALID_ARGUMENT: no such card, count < 1, or more than kMax logical GPUs in all.
  //   FAILED_PRECONDITION: logical GPUs are in use.
  Status Configure(int card, int count);

  // The card of each logical GPU, by index.
  const std::vector<int>& Cards();
  // INVALID_ARGUMENT: there is no GPU:`gpu`; says how many there are, and why there is none.
  Status Check(int gpu);
  // The first logical GPU of a card, and whether it is the only one there.
  int FirstOn(int card);
  bool Shared(int card);

  static constexpr int kMax = 64;

 private:
  const Machine machine_;
  Mutex mutex_;
  std::vector<int> counts_ MUSTER_GUARDED_BY(mutex_);  // by card
  bool settled_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<int> cards_;  // does not change once settled
};

}  // namespace muster::device
