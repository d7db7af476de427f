// Who sends what to whom, round by round: the algorithms of a reduction over all members, as data.
//
// Terms: n members with ranks 0..n-1 hold `count` elements each. A schedule is one member's view;
// in each round it sends and receives at the same time, and all members' rounds fit together: what
// one sends in its k-th round to a peer, the peer receives in its own round that expects it, in
// order. Ranges that are empty are left out on both sides.
//
// Sources: ring and recursive halving-doubling as in Thakur, Rabenseifner, Gropp, "Optimization of
// Collective Communication Operations in MPICH" (2005); the torus reduces along one dimension after
// the other.
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "collectives/packing.h"

namespace muster::collectives {

enum class Algorithm : unsigned char {
  // Each member gets its 1/n of the elements from all others and sums them in rank order: two
  // rounds, so that results are those of one process with n replicas, bit for bit.
  kDirect,
  // Pieces travel around, 2 (n-1) rounds; each member sends each byte 2 (n-1)/n times.
  kRing,
  // Halves to a partner, then quarters, ...; and back: 2 log2 n rounds, the ring's bytes.
  kHalvingDoubling,
  // Everything to a partner at each distance 1, 2, 4, ...: log2 n rounds, for few bytes.
  kDoubling,
  // To rank 0 along a binomial tree, and back: few messages in all, for few bytes.
  kTree,
};
inline constexpr std::array kAlgorithms = {Algorithm::kDirect, Algorithm::kRing,
                                           Algorithm::kHalvingDoubling, Algorithm::kDoubling,
                                           Algorithm::kTree};
std::string_view NameOf(Algorithm algorithm);

struct Transfer {
  int peer = 0;
  Range range;  // elements
  bool operator==(const Transfer&) const = default;
};

struct Round {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
};

struct Schedule {
  // What comes is added to the same elements here: all that a round brings, in rank order, with
  // this member's own in its place.
  std::vector<Round> reduce;
  // What this member holds the sum of when they are over.
  Range owned;
  // What comes replaces the elements here.
  std::vector<Round> spread;
};

// One member's all-reduce. 0 <= rank < size.
Schedule AllReduceSchedule(Algorithm algorithm, int rank, int size, std::size_t count);

// The same where members live on hosts: `hosts[r]` is the number of rank r's host. Each host's
// lowest rank sums for its host, these sum among each other, and give the result back.
Schedule HierarchicalSchedule(Algorithm between_hosts, int rank, std::span<const int> hosts,
                              std::size_t count);
// The same without what happens within a host, where its members share memory: what the lowest
// rank of each host does; nothing for the others.
Schedule BetweenHostsSchedule(Algorithm between_hosts, int rank, std::span<const int> hosts,
                              std::size_t count);

// The same on a torus: rank = ((x * dims[1]) + y) * dims[2] + z ..., rings along each dimension, on
// an ever smaller part of the elements. All members have as many rounds, empty ones too: what one
// sends in its k-th round the peer receives in its own k-th.
Schedule TorusSchedule(int rank, std::span<const int> dims, std::size_t count);

// Values of `root` to all, along a binomial tree: each round's receives come before its sends.
std::vector<Round> BroadcastRounds(int rank, int size, int root, std::size_t count);

}  // namespace muster::collectives
