#include "collectives/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "collectives/cost_model.h"
#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

// What a network costs in the simulation: a message of b bytes takes alpha + b * beta at its sender
// (which sends one after another), arrives `latency` later, and its receiver adds b * gamma to
// reduce it.
struct Network {
  double alpha = 2e-6;
  double beta = 1e-10;
  double gamma = 0;
  double element_bytes = 8;
  double latency = 0;
  // Else no values travel, and nothing but times comes of it.
  bool carries = true;
};

// All members of one all-reduce, each with its schedule, on a network that keeps the order of the
// messages between two members and nothing else.
class Members {
 public:
  using Make = std::function<Schedule(int rank)>;

  Members(int size, std::size_t count, const Make& make, Network costs = {})
      : costs_(costs), wires_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      Member& member = members_.emplace_back();
      member.schedule = make(rank);
      if (!costs_.carries) continue;
      for (std::size_t i = 0; i < count; ++i) {
        member.values.push_back(static_cast<std::uint64_t>(rank + 1) * (i + 1));
      }
    }
  }

  // Runs until nobody can go on. False: somebody waits for what never comes, or was sent what it
  // does not take.
  bool Run() {
    std::queue<int> ready;
    for (int rank = 0; rank < size(); ++rank) ready.push(rank);
    for (; !ready.empty(); ready.pop()) {
      for (const int woken : Advance(ready.front())) ready.push(woken);
    }
    const bool all_over = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
      return member.round == member.schedule.reduce.size() + member.schedule.spread.size();
    });
    return all_over && fits_ && std::all_of(wires_.begin(), wires_.end(), [](auto& wires) {
             return std::all_of(wires.begin(), wires.end(),
                                [](auto& wire) { return wire.second.empty(); });
           });
  }

  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<std::uint64_t>& values(int rank) const { return at(rank).values; }
  const Schedule& schedule(int rank) const { return at(rank).schedule; }
  double seconds() const {
    double last = 0;
    for (const Member& member : members_) last = std::max(last, member.now);
    return last;
  }

 private:
  struct Message {
    std::vector<std::uint64_t> values;
    std::size_t elements = 0;
    double arrives = 0;
  };
  struct Member {
    Schedule schedule;
    std::vector<std::uint64_t> values;
    std::size_t round = 0;
    bool sent = false;
    double now = 0;
  };

  using Wire = std::queue<Message, std::list<Message>>;

  Wire& WireTo(int receiver, int sender) {
    return wires_[static_cast<std::size_t>(receiver)][sender];
  }
  const Member& at(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  // The member's rounds as far as they go; who has something to read now.
  std::vector<int> Advance(int rank) {
    Member& member = members_[static_cast<std::size_t>(rank)];
    const std::size_t reductions = member.schedule.reduce.size();
    std::vector<int> woken;
    while (member.round < reductions + member.schedule.spread.size()) {
      const bool reduces = member.round < reductions;
      const Round& round = reduces ? member.schedule.reduce[member.round]
                                   : member.schedule.spread[member.round - reductions];
      if (!member.sent) {
        for (const Transfer& send : round.sends) {
          member.now += costs_.alpha + costs_.beta * Bytes(send.range);
          Message message{.values = {},
                          .elements = send.range.end - send.range.begin,
                          .arrives = member.now + costs_.latency};
          if (costs_.carries) {
            message.values.assign(
                member.values.begin() + static_cast<std::ptrdiff_t>(send.range.begin),
                member.values.begin() + static_cast<std::ptrdiff_t>(send.range.end));
          }
          WireTo(send.peer, rank).push(std::move(message));
          woken.push_back(send.peer);
        }
        member.sent = true;
      }
      const bool all_there = std::all_of(
          round.receives.begin(), round.receives.end(),
          [&](const Transfer& transfer) { return !WireTo(rank, transfer.peer).empty(); });
      if (!all_there) return woken;
      for (const Transfer& receive : round.receives) Take(member, rank, receive, reduces);
      ++member.round;
      member.sent = false;
    }
    return woken;
  }

  void Take(Member& member, int rank, const Transfer& receive, bool reduces) {
    auto& wire = WireTo(rank, receive.peer);
    const Message message = std::move(wire.front());
    wire.pop();
    fits_ = fits_ && message.elements == receive.range.end - receive.range.begin;
    if (!fits_) return;
    for (std::size_t i = 0; i < message.values.size(); ++i) {
      std::uint64_t& value = member.values[receive.range.begin + i];
      value = reduces ? value + message.values[i] : message.values[i];
    }
    member.now = std::max(member.now, message.arrives);
    if (reduces) member.now += costs_.gamma * Bytes(receive.range);
  }

  double Bytes(Range range) const {
    return costs_.element_bytes * static_cast<double>(range.end - range.begin);
  }

  const Network costs_;
  std::vector<Member> members_;
  // By receiver, then by sender. An empty list takes no memory: there may be a million of them.
  std::vector<std::unordered_map<int, Wire>> wires_;
  bool fits_ = true;
};

void CheckSums(Members& members, std::size_t count) {
  REQUIRE(members.Run());
  const auto n = static_cast<std::uint64_t>(members.size());
  for (int rank = 0; rank < members.size(); ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE(members.values(rank)[i] == n * (n + 1) / 2 * (i + 1));
    }
  }
}

constexpr Algorithm kAll[] = {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHalvingDoubling,
                              Algorithm::kDoubling, Algorithm::kTree};

TEST_CASE("every algorithm gives every member the sum, whatever their number and the elements'",
          "[collectives][unit]") {
  for (const Algorithm algorithm : kAll) {
    for (int size = 1; size <= 17; ++size) {
      for (const std::size_t count : {0u, 1u, 15u, 16u, 17u, 100u, 1000u}) {
        INFO(NameOf(algorithm) << ", " << size << " members, " << count << " elements");
        Members members(size, count,
                        [&](int rank) { return AllReduceSchedule(algorithm, rank, size, count); });
        CheckSums(members, count);
      }
    }
  }
}

TEST_CASE("what the members own of the sum is all of it, once or with the same value",
          "[collectives][unit]") {
  for (const Algorithm algorithm : kAll) {
    for (const int size : {1, 2, 3, 4, 7, 8}) {
      std::vector<int> owners(1000);
      for (int rank = 0; rank < size; ++rank) {
        const Schedule schedule = AllReduceSchedule(algorithm, rank, size, owners.size());
        for (std::size_t i = schedule.owned.begin; i < schedule.owned.end; ++i) ++owners[i];
      }
      INFO(NameOf(algorithm) << ", " << size << " members");
      CHECK(*std::min_element(owners.begin(), owners.end()) >= 1);
    }
  }
}

TEST_CASE(
    "members on hosts of any size give every member the sum, and between hosts only one of "
    "each host speaks",
    "[collectives][unit]") {
  const std::vector<std::vector<int>> clusters = {
      {0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {2, 2, 2, 0, 1, 1, 0}, {0, 1, 2, 3}};
  for (const std::vector<int>& hosts : clusters) {
    for (const Algorithm algorithm : kAll) {
      const int size = static_cast<int>(hosts.size());
      Members members(size, 333,
                      [&](int rank) { return HierarchicalSchedule(algorithm, rank, hosts, 333); });
      CheckSums(members, 333);
      std::map<int, int> speakers;  // of each host
      for (int rank = 0; rank < size; ++rank) {
        const int host = hosts[static_cast<std::size_t>(rank)];
        bool speaks = false;
        for (const auto* rounds :
             {&members.schedule(rank).reduce, &members.schedule(rank).spread}) {
          for (const Round& round : *rounds) {
            for (const Transfer& send : round.sends) {
              speaks = speaks || hosts[static_cast<std::size_t>(send.peer)] != host;
            }
          }
        }
        speakers[host] += speaks ? 1 : 0;
      }
      for (const auto& [host, count] : speakers) CHECK(count <= 1);
    }
  }
}

TEST_CASE("on a torus members speak with neighbours alone, and every member gets the sum",
          "[collectives][unit]") {
  const std::vector<std::vector<int>> tori = {{1}, {4}, {2, 2}, {2, 3}, {2, 2, 2}, {4, 2, 3}};
  for (const std::vector<int>& dims : tori) {
    int size = 1;
    for (const int dim : dims) size *= dim;
    const auto where = [&](int rank) {
      std::vector<int> at;
      for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
        at.insert(at.begin(), rank % *dim);
        rank /= *dim;
      }
      return at;
    };
    Members members(size, 555, [&](int rank) { return TorusSchedule(rank, dims, 555); });
    CheckSums(members, 555);
    for (int rank = 0; rank < size; ++rank) {
      for (const Round& round : members.schedule(rank).reduce) {
        for (const Transfer& send : round.sends) {
          int distance = 0;
          for (std::size_t d = 0; d < dims.size(); ++d) {
            const int apart = std::abs(where(rank)[d] - where(send.peer)[d]);
            distance += std::min(apart, dims[d] - apart);
          }
          CHECK(distance == 1);
        }
      }
    }
  }
}

TEST_CASE("a broadcast brings the root's values to all, from any root", "[collectives][unit]") {
  for (int size = 1; size <= 9; ++size) {
    for (int root = 0; root < size; ++root) {
      Members members(size, 10, [&](int rank) {
        return Schedule{.reduce = {}, .owned = {}, .spread = BroadcastRounds(rank, size, root, 10)};
      });
      REQUIRE(members.Run());
      for (int rank = 0; rank < size; ++rank) {
        CHECK(members.values(rank)[3] == static_cast<std::uint64_t>(root + 1) * 4);
      }
    }
  }
}

TEST_CASE("with 1,000 members the simulated times are those of the closed forms",
          "[collectives][unit]") {
  const Network costs{.alpha = 5e-6, .beta = 1e-10, .gamma = 5e-11, .element_bytes = 1000};
  constexpr int kSize = 1000;
  constexpr std::size_t kCount = 16'000;  // so that 1,000 pieces are of one size
  const double bytes = costs.element_bytes * kCount;
  const auto seconds = [&](Algorithm algorithm, int size) {
    Members members(
        size, kCount, [&](int rank) { return AllReduceSchedule(algorithm, rank, size, kCount); },
        costs);
    REQUIRE(members.Run());
    return members.seconds();
  };
  const double n = kSize;
  const double ring = 2 * (n - 1) * costs.alpha + 2 * (n - 1) / n * bytes * costs.beta +
                      (n - 1) / n * bytes * costs.gamma;
  CHECK(std::abs(seconds(Algorithm::kRing, kSize) / ring - 1) < 1e-9);
  // 1,024 members, a power of two.
  const double p = 1024;
  const double halving = 2 * 10 * costs.alpha + 2 * (p - 1) / p * bytes * costs.beta +
                         (p - 1) / p * bytes * costs.gamma;
  CHECK(std::abs(seconds(Algorithm::kHalvingDoubling, 1024) / halving - 1) < 1e-3);
}

// The difference between the cost model's time and the simulation's, as a part of it.
double Deviation(Algorithm algorithm, int size, std::size_t count) {
  const Costs costs{.round = 12e-6, .message = 3e-6, .byte = 5e-10, .reduced_byte = 1e-10};
  Members members(size, count,
                  [&](int rank) { return AllReduceSchedule(algorithm, rank, size, count); },
                  {.alpha = costs.message,
                   .beta = costs.byte,
                   .gamma = costs.reduced_byte,
                   .element_bytes = 4,
                   .latency = costs.round,
                   .carries = false});
  REQUIRE(members.Run());
  return std::abs(members.seconds() / PredictedSeconds(algorithm, size, count * 4, costs) - 1);
}

TEST_CASE("with 1,000 members and with 1,024 every algorithm takes as long as the cost model says",
          "[collectives][unit]") {
  // So that pieces and halves are of one size, of both.
  constexpr std::size_t kCount = std::size_t{16} * 1024 * 125;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const int size : {1000, 1024}) {
      INFO(NameOf(algorithm) << ", " << size << " members");
      CHECK(Deviation(algorithm, size, kCount) < 1e-9);
    }
  }
}

TEST_CASE("trees and rings of any number of members take as long as the cost model says",
          "[collectives][unit]") {
  for (const Algorithm algorithm : {Algorithm::kTree, Algorithm::kRing, Algorithm::kDirect}) {
    for (int size = 2; size <= 70; ++size) {
      INFO(NameOf(algorithm) << ", " << size << " members");
      CHECK(Deviation(algorithm, size, static_cast<std::size_t>(size) * 1600) < 1e-9);
    }
  }
}

// On elements that all rings divide evenly.
double TorusSeconds(const std::vector<int>& dims, std::size_t count, const Network& network) {
  int size = 1;
  for (const int dim : dims) size *= dim;
  Members members(size, count, [&](int rank) { return TorusSchedule(rank, dims, count); }, network);
  CheckSums(members, count);
  return members.seconds();
}

TEST_CASE("on tori of up to 1,024 members the simulated times are those of the cost model",
          "[collectives][unit]") {
  const Network network{.alpha = 5e-6, .beta = 1e-10, .gamma = 5e-11, .element_bytes = 1000};
  const Costs costs{.round = 4e-6, .message = 1e-6, .byte = 1e-10, .reduced_byte = 5e-11};
  const std::vector<std::vector<int>> tori = {{4}, {2, 2}, {2, 3, 2}, {4, 4, 1, 2}, {8, 8, 16}};
  for (const std::vector<int>& dims : tori) {
    int size = 1;
    for (const int dim : dims) size *= dim;
    const std::size_t count = static_cast<std::size_t>(size) * 16;
    const double predicted = PredictedTorusSeconds(dims, count * 1000, costs);
    INFO(size << " members: " << predicted);
    CHECK(std::abs(TorusSeconds(dims, count, network) / predicted - 1) < 1e-9);
  }
}

TEST_CASE("a torus moves the bytes of one flat ring in far fewer rounds", "[collectives][unit]") {
  const std::vector<int> dims = {8, 8, 16};
  constexpr int kSize = 1024;
  const Costs latency{.round = 1e-6, .message = 0, .byte = 0, .reduced_byte = 0};
  const Costs bandwidth{.round = 0, .message = 0, .byte = 1e-9, .reduced_byte = 0};
  const auto ratio = [&](const Costs& costs) {
    return PredictedTorusSeconds(dims, 1 << 20, costs) /
           PredictedSeconds(Algorithm::kRing, kSize, 1 << 20, costs);
  };
  CHECK(std::abs(ratio(latency) - 58.0 / 2046.0) < 1e-9);
  CHECK(std::abs(ratio(bandwidth) - 1) < 1e-9);
  CHECK(PredictedTorusSeconds(std::vector<int>{7}, 700, latency) ==
        PredictedSeconds(Algorithm::kRing, 7, 700, latency));
  const Network network{.alpha = 1e-6, .beta = 1e-10, .gamma = 0, .element_bytes = 8};
  Members flat(
      kSize, 16 * kSize,
      [&](int rank) { return AllReduceSchedule(Algorithm::kRing, rank, kSize, 16 * kSize); },
      network);
  REQUIRE(flat.Run());
  CHECK(TorusSeconds(dims, 16 * kSize, network) < flat.seconds() / 5);
}

}  // namespace
}  // namespace muster::collectives
