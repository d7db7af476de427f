// Rows of a variable that were looked up, until somebody asks for their gradients.
//
// Threading: not thread-safe; its owner's lock has it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"

namespace muster::internal {

// Ids, and a leaf whose gradient backward() finds.
using Lookup = std::pair<torch::Tensor, torch::Tensor>;

class Lookups {
 public:
  // Who looks up. Replicas find their gradients at the same time: what is one's, another one
  // would take before it has a gradient.
  struct Who {
    int replica = 0;  // ReplicaHere()
    // Outside closures, where others that are no replicas do the same.
    std::thread::id thread = {};
    bool operator==(const Who&) const = default;
  };

  // Forgets those that can have no gradient any more: the graph over the leaf is gone.
  void Add(const Who& who, const torch::Tensor& ids, const torch::Tensor& leaf) {
    if (all_.size() >= look_at_) {
      std::erase_if(all_, [](const Entry& one) {
        // In this order: while there is a graph, another thread may be writing the gradient.
        return one.lookup.second.use_count() == 1 && !one.lookup.second.grad().defined();
      });
      look_at_ = std::max<std::size_t>(16, 2 * all_.size());
    }
    all_.push_back({who, {ids, leaf}});
  }
  // Those of one, since its last call; who is no replica also gets what replicas have left, in
  // their order. What backward() may still come to, by another loss than the one before, stays.
  std::vector<Lookup> Take(const Who& who) {
    const auto taken = std::ranges::stable_partition(all_, [&](const Entry& one) {
      if (one.who != who && (who.replica > 0 || one.who.replica == 0)) return true;
      return one.lookup.second.use_count() > 1 && !one.lookup.second.grad().defined();
    });
    std::ranges::stable_sort(taken, {}, [](const Entry& one) { return one.who.replica; });
    std::vector<Lookup> lookups;
    for (Entry& one : taken) lookups.push_back(std::move(one.lookup));
    all_.erase(taken.begin(), taken.end());
    return lookups;
  }

 private:
  struct Entry {
    Who who;
    Lookup lookup;
  };
  std::vector<Entry> all_;
  // With so many, Add() looks which to forget: twice as many as it has left the last time.
  std::size_t look_at_ = 16;
};

}  // namespace muster::internal
