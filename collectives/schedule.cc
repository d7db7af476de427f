#include "collectives/schedule.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "common/base/status.h"

namespace muster::collectives {
namespace {

std::size_t Unsigned(int value) { return static_cast<std::size_t>(value); }

bool Empty(Range range) { return range.begin == range.end; }

void Send(Round& round, int peer, Range range) {
  if (!Empty(range)) round.sends.push_back({peer, range});
}
void Receive(Round& round, int peer, Range range) {
  if (!Empty(range)) round.receives.push_back({peer, range});
}
// Rounds in which nothing happens are left out: nobody else counts them.
void Add(std::vector<Round>& rounds, Round round) {
  if (!round.sends.empty() || !round.receives.empty()) rounds.push_back(std::move(round));
}

Range Within(Range whole, Range part) { return {whole.begin + part.begin, whole.begin + part.end}; }

Range PieceOf(Range whole, int part, int parts) {
  return Within(whole,
                SliceOf(whole.end - whole.begin, Unsigned(part), Unsigned(parts), /*grain=*/16));
}

// Members that take part in one stage: member i of them is ranks[i].
struct Team {
  std::vector<int> ranks;
  int me = 0;
  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int member) const { return ranks[Unsigned((member % size() + size()) % size())]; }
};

Team Everybody(int rank, int size) {
  Team team{.ranks = std::vector<int>(Unsigned(size)), .me = rank};
  std::iota(team.ranks.begin(), team.ranks.end(), 0);
  return team;
}

void Direct(const Team& team, Range whole, Schedule& schedule) {
  const int n = team.size();
  schedule.owned = PieceOf(whole, team.me, n);
  Round gather, spread;
  for (int step = 1; step < n; ++step) {
    // Not all to the same member at the same time.
    const int to = (team.me + step) % n;
    Send(gather, team.rank(to), PieceOf(whole, to, n));
    Receive(gather, team.rank(to), schedule.owned);
    Send(spread, team.rank(to), schedule.owned);
    Receive(spread, team.rank(to), PieceOf(whole, to, n));
  }
  Add(schedule.reduce, std::move(gather));
  Add(schedule.spread, std::move(spread));
}

// Piece p begins at member p + 1 and is whole at member p, which owns it. These two add all their
// rounds, so that members of one ring have as many.
void RingReduce(const Team& team, Range whole, std::vector<Round>& rounds) {
  const int n = team.size();
  for (int step = 1; step < n; ++step) {
    Round round;
    Send(round, team.rank(team.me + 1), PieceOf(whole, (team.me - step + n) % n, n));
    Receive(round, team.rank(team.me - 1), PieceOf(whole, (team.me - step - 1 + 2 * n) % n, n));
    rounds.push_back(std::move(round));
  }
}
void RingSpread(const Team& team, Range whole, std::vector<Round>& rounds) {
  const int n = team.size();
  for (int step = 0; step + 1 < n; ++step) {
    Round round;
    Send(round, team.rank(team.me + 1), PieceOf(whole, (team.me - step + n) % n, n));
    Receive(round, team.rank(team.me - 1), PieceOf(whole, (team.me - step - 1 + n) % n, n));
    rounds.push_back(std::move(round));
  }
}

void Ring(const Team& team, Range whole, Schedule& schedule) {
  std::vector<Round> reduce, spread;
  RingReduce(team, whole, reduce);
  RingSpread(team, whole, spread);
  for (Round& round : reduce) Add(schedule.reduce, std::move(round));
  schedule.owned = PieceOf(whole, team.me, team.size());
  for (Round& round : spread) Add(schedule.spread, std::move(round));
}

// The algorithms by powers of two: of n members, the first 2 (n - p) pair up, so that p, a power of
// two, are left; the even ones of the pairs sit out. -1: sits out.
int Fold(const Team& team, Range whole, Schedule& schedule, Team& rest) {
  const int n = team.size();
  const int p = static_cast<int>(std::bit_floor(Unsigned(n)));
  const int paired = 2 * (n - p);
  for (int member = 0; member < n; ++member) {
    if (member < paired && member % 2 == 0) continue;
    if (member == team.me) rest.me = rest.size();
    rest.ranks.push_back(team.rank(member));
  }
  if (team.me >= paired) return rest.me;
  Round round;
  if (team.me % 2 == 0) {
    Send(round, team.rank(team.me + 1), whole);
    Add(schedule.reduce, std::move(round));
    return -1;
  }
  Receive(round, team.rank(team.me - 1), whole);
  Add(schedule.reduce, std::move(round));
  return rest.me;
}

// What Fold() left out gets the result.
void Unfold(const Team& team, Range whole, Schedule& schedule) {
  const int n = team.size();
  const int paired = 2 * (n - static_cast<int>(std::bit_floor(Unsigned(n))));
  if (team.me >= paired) return;
  Round round;
  if (team.me % 2 == 0) {
    Receive(round, team.rank(team.me + 1), whole);
  } else {
    Send(round, team.rank(team.me - 1), whole);
  }
  Add(schedule.spread, std::move(round));
}

// The nearest partner first, so that sums are those of a binary tree over ranks.
void Doubling(const Team& team, Range whole, Schedule& schedule) {
  Team rest;
  if (const int me = Fold(team, whole, schedule, rest); me >= 0) {
    for (int distance = 1; distance < rest.size(); distance *= 2) {
      Round round;
      Send(round, rest.rank(me ^ distance), whole);
      Receive(round, rest.rank(me ^ distance), whole);
      Add(schedule.reduce, std::move(round));
    }
    schedule.owned = whole;
  }
  Unfold(team, whole, schedule);
}

Range Half(Range range, bool upper) {
  const std::size_t middle = range.begin + (range.end - range.begin) / 2;
  return upper ? Range{middle, range.end} : Range{range.begin, middle};
}

void HalvingDoubling(const Team& team, Range whole, Schedule& schedule) {
  Team rest;
  if (const int me = Fold(team, whole, schedule, rest); me >= 0) {
    std::vector<Range> kept = {whole};
    for (int distance = 1; distance < rest.size(); distance *= 2) {
      const bool upper = (me & distance) != 0;
      Round round;
      Send(round, rest.rank(me ^ distance), Half(kept.back(), !upper));
      Receive(round, rest.rank(me ^ distance), Half(kept.back(), upper));
      Add(schedule.reduce, std::move(round));
      kept.push_back(Half(kept.back(), upper));
    }
    schedule.owned = kept.back();
    for (int distance = rest.size() / 2; distance > 0; distance /= 2) {
      const Range mine = kept.back();
      kept.pop_back();
      Round round;
      Send(round, rest.rank(me ^ distance), mine);
      Receive(round, rest.rank(me ^ distance), Half(kept.back(), (me & distance) == 0));
      Add(schedule.spread, std::move(round));
    }
  }
  Unfold(team, whole, schedule);
}

// From member 0 to all, along a binomial tree.
void SpreadByTree(const Team& team, Range whole, std::vector<Round>& rounds) {
  for (int distance = static_cast<int>(std::bit_ceil(Unsigned(team.size()))) / 2; distance > 0;
       distance /= 2) {
    Round round;
    if (team.me % (2 * distance) == 0 && team.me + distance < team.size()) {
      Send(round, team.rank(team.me + distance), whole);
    } else if (team.me % (2 * distance) == distance) {
      Receive(round, team.rank(team.me - distance), whole);
    }
    Add(rounds, std::move(round));
  }
}

void Tree(const Team& team, Range whole, Schedule& schedule) {
  for (int distance = 1; distance < team.size(); distance *= 2) {
    Round round;
    if (team.me % (2 * distance) == distance) {
      Send(round, team.rank(team.me - distance), whole);
    } else if (team.me % (2 * distance) == 0 && team.me + distance < team.size()) {
      Receive(round, team.rank(team.me + distance), whole);
    }
    Add(schedule.reduce, std::move(round));
  }
  if (team.me == 0) schedule.owned = whole;
  SpreadByTree(team, whole, schedule.spread);
}

void Append(Algorithm algorithm, const Team& team, Range whole, Schedule& schedule) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return Direct(team, whole, schedule);
    case Algorithm::kRing:
      return Ring(team, whole, schedule);
    case Algorithm::kHalvingDoubling:
      return HalvingDoubling(team, whole, schedule);
    case Algorithm::kDoubling:
      return Doubling(team, whole, schedule);
    case Algorithm::kTree:
      return Tree(team, whole, schedule);
  }
}

struct Teams {
  Team host;     // a rank's host
  Team leaders;  // the lowest rank of each host; `me` counts where the rank is one
};

Teams TeamsOn(std::span<const int> hosts, int rank) {
  Teams teams;
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other) {
    const int number = hosts[Unsigned(other)];
    const bool leads =
        std::find(hosts.begin(), hosts.begin() + other, number) == hosts.begin() + other;
    if (leads) {
      if (other == rank) teams.leaders.me = teams.leaders.size();
      teams.leaders.ranks.push_back(other);
    }
    if (number != hosts[Unsigned(rank)]) continue;
    if (other == rank) teams.host.me = teams.host.size();
    teams.host.ranks.push_back(other);
  }
  return teams;
}

}  // namespace

std::string_view NameOf(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kHalvingDoubling:
      return "halving_doubling";
    case Algorithm::kDoubling:
      return "doubling";
    case Algorithm::kTree:
      return "tree";
  }
  return "?";
}

Schedule AllReduceSchedule(Algorithm algorithm, int rank, int size, std::size_t count) {
  MUSTER_INVARIANT(0 <= rank && rank < size);
  Schedule schedule;
  Append(algorithm, Everybody(rank, size), {0, count}, schedule);
  return schedule;
}

Schedule HierarchicalSchedule(Algorithm between_hosts, int rank, std::span<const int> hosts,
                              std::size_t count) {
  const Range whole{0, count};
  const auto [host, leaders] = TeamsOn(hosts, rank);
  Schedule schedule;
  Round gather;
  for (int member = 1; member < host.size(); ++member) {
    if (host.me == 0) Receive(gather, host.rank(member), whole);
    if (host.me == member) Send(gather, host.rank(0), whole);
  }
  Add(schedule.reduce, std::move(gather));
  if (host.me == 0) Append(between_hosts, leaders, whole, schedule);
  SpreadByTree(host, whole, schedule.spread);
  return schedule;
}

Schedule BetweenHostsSchedule(Algorithm between_hosts, int rank, std::span<const int> hosts,
                              std::size_t count) {
  const auto [host, leaders] = TeamsOn(hosts, rank);
  Schedule schedule;
  if (host.me == 0) Append(between_hosts, leaders, {0, count}, schedule);
  return schedule;
}

Schedule TorusSchedule(int rank, std::span<const int> dims, std::size_t count) {
  Schedule schedule;
  Range whole{0, count};
  std::vector<std::pair<Team, Range>> stages;
  int stride = std::accumulate(dims.begin(), dims.end(), 1, std::multiplies<>());
  for (const int dim : dims) {
    stride /= dim;
    Team line{.ranks = {}, .me = rank / stride % dim};
    for (int i = 0; i < dim; ++i) line.ranks.push_back(rank + (i - line.me) * stride);
    RingReduce(line, whole, schedule.reduce);
    stages.emplace_back(line, whole);
    whole = PieceOf(whole, line.me, dim);
  }
  schedule.owned = whole;
  for (; !stages.empty(); stages.pop_back()) {
    RingSpread(stages.back().first, stages.back().second, schedule.spread);
  }
  return schedule;
}

std::vector<Round> BroadcastRounds(int rank, int size, int root, std::size_t count) {
  Team team = Everybody(rank, size);
  std::rotate(team.ranks.begin(), team.ranks.begin() + root, team.ranks.end());
  team.me = (rank - root + size) % size;
  std::vector<Round> rounds;
  SpreadByTree(team, {0, count}, rounds);
  return rounds;
}

}  // namespace muster::collectives
