#include "collectives/process/group_state.h"

#include <array>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "tests/support/catch.h"
#include "tests/support/seeds.h"

namespace muster::collectives {
namespace {

std::vector<std::string> Tasks(int size) {
  std::vector<std::string> tasks;
  for (int r = 0; r < size; ++r) tasks.push_back(fmt::format("worker:{}", r));
  return tasks;
}

TEST_CASE("the first error of a group counts, and is told to the others once",
          "[collectives][group_state]") {
  GroupState state(0, Tasks(3));
  CHECK(state.failure().ok());
  state.OnEnd(1, InvalidArgument("first"));
  state.Fail(Unavailable("second"));
  state.OnLost(2, Unavailable("third"));
  CHECK(Message(state.failure()) == "first");
  const TimePoint now{};
  REQUIRE(state.Tick({}, now).end.has_value());
  CHECK_FALSE(state.Tick({}, now).end.has_value());
}

TEST_CASE("an operation that lasts is told to the others, one that does not is not",
          "[collectives][group_state]") {
  GroupState state(0, Tasks(2));
  TimePoint now{};
  CHECK_FALSE(state.Tick({1, 0}, now).progress.has_value());
  now += GroupState::kSayEvery - Millis(1);
  CHECK_FALSE(state.Tick({1, 0}, now).progress.has_value());
  now += Millis(1);
  const auto news = state.Tick({1, 0}, now);
  REQUIRE(news.progress.has_value());
  CHECK(news.progress->begun == 1);
  CHECK_FALSE(state.Tick({1, 0}, now + Millis(1'000)).progress.has_value());
}

TEST_CASE("who has not begun an operation is named before those who only wait for it",
          "[collectives][group_state]") {
  GroupState state(0, Tasks(3));
  state.OnProgress(1, {5, 4});
  CHECK(state.Awaited(5, {1}) == "worker:2 (which has not begun it)");
  state.OnProgress(2, {5, 4});
  CHECK(state.Awaited(5, {1}) == "worker:1");
}

TEST_CASE("members in one operation who call different things end the group when one hears of it",
          "[collectives][group_state]") {
  const bool over_here = GENERATE(false, true);
  GroupState state(0, Tasks(3));
  const Progress mine{.begun = 5, .done = over_here ? 5U : 4U, .signature = 9};
  state.OnProgress(1, {.begun = 4, .done = 4, .signature = 7});
  state.OnProgress(2, {.begun = 5, .done = 4, .signature = 9});
  CHECK_FALSE(state.Tick(mine, {}).end.has_value());
  state.OnProgress(1, {.begun = 5, .done = 4, .signature = 7});
  const auto end = state.Tick(mine, {}).end;
  REQUIRE(end.has_value());
  CHECK(end->code() == StatusCode::kInvalidArgument);
  CHECK(Message(*end).find("operation 5, worker:0 and worker:1 call") != std::string::npos);
}

TEST_CASE("of many members that have not begun an operation some are named",
          "[collectives][group_state]") {
  const GroupState state(0, Tasks(30));
  const std::string awaited = state.Awaited(5, {1});
  CHECK(awaited.starts_with("worker:1, worker:2, "));
  CHECK(awaited.ends_with(", worker:20 and 9 more (which have not begun it)"));
}

// What befalls a group: one member is killed, stopped or leaves; it and another one do not reach
// each other any more; its own call fails; it calls something else, or nothing any more.
enum class Trouble { kKilled, kStopped, kLeaves, kCutOff, kFails, kCallsOther, kStaysAway };
constexpr int kTroubles = 7;

// Members of one group in virtual time. Each calls operation after operation, which ends when all
// have begun it and word of that has come; news travel for a while, in order between two members.
class Cluster {
 public:
  explicit Cluster(std::uint64_t seed) : random_(seed) {
    const int size = Pick(2, 6);
    for (int r = 0; r < size; ++r) {
      members_.push_back(std::make_unique<Member>(r, Tasks(size)));
    }
    wires_.resize(members_.size() * members_.size());
  }

  // Something happens to one member; all others must know within the links' silence and two ways,
  // and so must itself where it can be told.
  void Run() {
    const TimePoint trouble_at = TimePoint{} + Millis(Pick(0, 2'000));
    const int victim = Pick(0, size() - 1);
    const auto trouble = static_cast<Trouble>(Pick(0, kTroubles - 1));
    const int other = (victim + Pick(1, size() - 1)) % size();
    while (now_ < trouble_at) Step();
    for (const auto& member : members_) REQUIRE(member->state.failure().ok());
    const bool gone =
        trouble == Trouble::kKilled || trouble == Trouble::kStopped || trouble == Trouble::kLeaves;
    if (trouble == Trouble::kKilled) Kill(victim);
    if (trouble == Trouble::kStopped) Stop(victim);
    if (trouble == Trouble::kLeaves) Leave(victim);
    if (trouble == Trouble::kCutOff) CutOff(victim, other);
    if (trouble == Trouble::kFails) {
      at(victim).state.Fail(InvalidArgument("worker:{} has a broken record", victim));
    }
    if (trouble == Trouble::kCallsOther) at(victim).calls_other = true;
    if (trouble == Trouble::kStaysAway) at(victim).stays_away = limited_ = true;
    const TimePoint limit = now_ + Millis(4'000) + 2 * kLongestWay + Millis(100);
    while (now_ < limit && !AllTold(victim, gone)) Step();
    INFO("trouble " << static_cast<int>(trouble) << " of " << victim << ", other " << other);
    REQUIRE(AllTold(victim, gone));
    for (int r = 0; r < size(); ++r) {
      if (r == victim && gone) continue;
      const Status& told = at(r).state.failure();
      INFO(r << ": " << ToString(told));
      // Either of two that are cut off from each other is as good.
      const bool by_other = trouble == Trouble::kCutOff &&
                            Message(told).find(fmt::format("worker:{} was lost", other)) == 0;
      CHECK(
          (by_other || Message(told).find(fmt::format("worker:{}", victim)) != std::string::npos));
      if (trouble == Trouble::kCallsOther) CHECK(told.code() == StatusCode::kInvalidArgument);
      // Nobody else, though it is another one's bytes that are missing.
      if (trouble == Trouble::kStaysAway) {
        CHECK(told.code() == StatusCode::kDeadlineExceeded);
        CHECK(Message(told).ends_with(
            fmt::format(" for worker:{} (which has not begun it)", victim)));
      }
    }
  }

 private:
  static constexpr Millis kLongestWay{150};
  static constexpr Millis kSilence{4'000};
  // By then a member has heard of whoever has begun what it calls.
  static constexpr Millis kCallWithin{1'000};

  struct Member {
    Member(int r, std::vector<std::string> tasks) : rank(r), state(r, std::move(tasks)) {}
    int rank;
    GroupState state;
    Progress progress;
    TimePoint next_call;
    TimePoint begun_at;
    bool calls_other = false;
    bool stays_away = false;
    bool alive = true;    // its process is there
    bool running = true;  // and not stopped
    bool left = false;
  };
  struct Word {
    TimePoint arrives;
    std::function<void()> hear;
  };

  int size() const { return static_cast<int>(members_.size()); }
  Member& at(int rank) { return *members_[static_cast<std::size_t>(rank)]; }
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  bool AllTold(int victim, bool victim_out) {
    for (int r = 0; r < size(); ++r) {
      if (r == victim && victim_out) continue;
      if (at(r).state.failure().ok()) return false;
    }
    return true;
  }

  bool Apart(const Member& a, const Member& b) const {
    return (a.rank == cut_off_[0] && b.rank == cut_off_[1]) ||
           (a.rank == cut_off_[1] && b.rank == cut_off_[0]);
  }

  void Send(int from, int to, std::function<void()> hear) {
    if (Apart(at(from), at(to))) return;
    auto& wire = wires_[static_cast<std::size_t>(from * size() + to)];
    TimePoint arrives = now_ + Millis(Pick(0, static_cast<int>(kLongestWay.count())));
    if (!wire.empty()) arrives = std::max(arrives, wire.back().arrives);
    wire.push_back({arrives, std::move(hear)});
  }
  void Broadcast(int from, const std::function<void(Member&)>& hear) {
    for (int to = 0; to < size(); ++to) {
      if (to == from) continue;
      Send(from, to, [this, to, hear] {
        if (at(to).alive && at(to).running && !at(to).left) hear(at(to));
      });
    }
  }

  void Step() {
    now_ += Millis(10);
    for (auto& wire : wires_) {
      while (!wire.empty() && wire.front().arrives <= now_) {
        const auto hear = std::move(wire.front().hear);
        wire.pop_front();
        hear();
      }
    }
    for (const auto& member : members_) {
      if (!member->alive || !member->running || member->left) continue;
      Work(*member);
      const auto news = member->state.Tick(member->progress, now_);
      const int from = member->rank;
      if (news.progress) {
        Broadcast(from, [from, p = *news.progress](Member& m) { m.state.OnProgress(from, p); });
      }
      if (news.end) {
        Broadcast(from, [from, why = *news.end](Member& m) { m.state.OnEnd(from, why); });
      }
    }
  }

  void Work(Member& member) {
    if (!member.state.failure().ok() || now_ < member.next_call || member.stays_away) return;
    if (member.progress.begun == member.progress.done) {
      ++member.progress.begun;
      member.progress.signature = member.calls_other ? 1 : 1'000 + member.progress.begun;
      member.begun_at = now_;
      if (const Status status = member.state.Check(member.progress.begun); !status.ok()) {
        member.state.Fail(status);
        return;
      }
    }
    // Data come at once; the end of an operation needs everybody's.
    for (const auto& other : members_) {
      const bool same = other->progress.begun > member.progress.begun ||
                        other->progress.signature == member.progress.signature;
      if (other->progress.begun >= member.progress.begun && same && !Apart(member, *other)) {
        continue;
      }
      if (!limited_ || now_ - member.begun_at < kCallWithin) return;
      member.state.Fail(DeadlineExceeded(
          "operation {}: {} waited {} ms for {}", member.progress.begun,
          member.state.task(member.rank), kCallWithin.count(),
          member.state.Awaited(member.progress.begun, {(member.rank + 1) % size()})));
      return;
    }
    member.progress.done = member.progress.begun;
    member.next_call = now_ + Millis(Pick(0, 300));
  }

  void Kill(int victim) {
    at(victim).alive = false;
    Broadcast(victim, [victim](Member& m) { m.state.OnLost(victim, Unavailable("closed")); });
  }
  // Its links notice by their pings.
  void Stop(int victim) {
    at(victim).running = false;
    for (int to = 0; to < size(); ++to) {
      if (to == victim) continue;
      wires_[static_cast<std::size_t>(victim * size() + to)].push_back(
          {now_ + kSilence,
           [this, to, victim] { at(to).state.OnLost(victim, DeadlineExceeded("silent")); }});
    }
  }
  // Each of both hears nothing of the other any more.
  void CutOff(int victim, int other) {
    cut_off_ = {victim, other};
    for (const auto& [from, to] : {std::pair{victim, other}, {other, victim}}) {
      wires_[static_cast<std::size_t>(from * size() + to)].push_back(
          {now_ + kSilence, [this, lost = from, hears = to] {
             at(hears).state.OnLost(lost, DeadlineExceeded("silent"));
           }});
    }
  }
  void Leave(int victim) {
    at(victim).left = true;
    // In the midst of an operation or between two; then the next one fails.
    const Progress last = at(victim).progress;
    Broadcast(victim, [victim, last](Member& m) {
      m.state.OnLeft(victim, last);
      if (m.progress.begun != m.progress.done) m.state.Fail(m.state.Check(m.progress.begun));
    });
  }

  std::mt19937_64 random_;
  TimePoint now_{};
  std::array<int, 2> cut_off_{-1, -1};
  bool limited_ = false;  // calls have kCallWithin
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::deque<Word>> wires_;
};

TEST_CASE("whatever ends a group, all of its members are told within the limit, and by whom",
          "[collectives][group_state][sim]") {
  testing::EachSeed(1'000, [](std::uint64_t seed) { Cluster(seed).Run(); });
}

}  // namespace
}  // namespace muster::collectives
