// The rules of elastic groups in single situations; simulation_test.cc runs them in all others.
#include "collectives/elastic/rendezvous.h"

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

// Both report to each other, and choose.
void Meet(Rendezvous& a, Rendezvous& b, TimePoint now) {
  a.OnReport(b.report(), now);
  b.OnReport(a.report(), now);
  (void)a.Propose(now);
  (void)b.Propose(now);
}

// So do all but those that are cut off from each other, as often as they need to.
void MeetUnlessCut(const std::vector<Rendezvous*>& all, TimePoint& now,
                   const std::function<bool(int, int)>& cut) {
  for (int again = 0; again < 5; ++again) {
    for (Rendezvous* a : all) {
      for (Rendezvous* b : all) {
        const int high = a->report().name.worker;
        const int low = b->report().name.worker;
        if (low >= high) continue;
        if (!cut(high, low)) {
          Meet(*a, *b, now);
          continue;
        }
        a->OnSilence(low, Silence::kCutOff, now);
        b->OnSilence(high, Silence::kCutOff, now);
      }
    }
    now += Rendezvous::kSilent;
  }
}

TEST_CASE("who is left behind by one that it sees waits for those with whom that one went",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 4, .start_within = Millis(1'000)},
                      Incarnation(static_cast<std::uint64_t>(10 + self)), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2), three = made(3);
  TimePoint now{std::chrono::hours(1)};
  // Workers 1 and 2 train.
  for (Rendezvous* worker : {&one, &two}) {
    worker->Seek("a:1", now);
    worker->OnSilence(0, Silence::kEnded, now);
    worker->OnSilence(3, Silence::kEnded, now);
  }
  now += Millis(1'000);
  for (int look = 0; look < 3; ++look) Meet(one, two, now);
  const auto first = one.Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (Rendezvous* worker : {&one, &two}) {
    REQUIRE(worker->Accept(**first).ok());
    worker->Formed(**first, true);
    worker->Prepared(1);
    worker->Committed(1);
  }
  // Workers 0 and 3 come, which cannot reach worker 2; worker 1 sees all.
  for (Rendezvous* worker : {&zero, &one, &two, &three}) worker->Seek("b:0", now);
  const auto cut = [](int high, int low) {
    return (high == 2 && low == 0) || (high == 3 && low == 2);
  };
  MeetUnlessCut({&zero, &one, &two, &three}, now, cut);  // worker 2 is told
  const auto without = zero.Propose(now);
  REQUIRE(without.ok());
  REQUIRE(without->has_value());
  CHECK((*without)->members.size() == 3);
  REQUIRE(two.report().told.size() == 1);
  CHECK(two.report().told.front() == one.report().leaving);
  for (Rendezvous* worker : {&zero, &one, &three}) REQUIRE(worker->Accept(**without).ok());
  zero.Formed(**without, true);

  // Worker 1 ends at once: worker 0 goes on alone, so worker 2 may not.
  two.OnSilence(1, Silence::kEnded, now);
  const auto alone = two.Propose(now);
  REQUIRE(alone.ok());
  CHECK_FALSE(alone->has_value());
  for (const int other : {0, 3}) two.OnSilence(other, Silence::kEnded, now);
  CHECK(two.Propose(now).status().code() == StatusCode::kUnavailable);
}

TEST_CASE(
    "who was to get a step's state, and is left without those that have it, does not claim it",
    "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(1'000)},
                      Incarnation(static_cast<std::uint64_t>(10 + self)), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2);
  TimePoint now{std::chrono::hours(1)};
  const auto nobody_cut = [](int, int) { return false; };
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Seek("a:0", now);
  MeetUnlessCut({&zero, &one, &two}, now, nobody_cut);
  const auto first = zero.Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (Rendezvous* worker : {&zero, &one, &two}) {
    REQUIRE(worker->Accept(**first).ok());
    worker->Formed(**first, true);
    worker->Prepared(1);
    worker->Committed(1);
  }
  // In step 2 worker 2 stands still. Worker 0 agrees to go on with step 2 done, worker 1 is slow.
  for (Rendezvous* worker : {&zero, &one}) {
    worker->Prepared(2);
    worker->Seek("b:0", now);
    worker->OnSilence(2, Silence::kMute, now);
  }
  now += Rendezvous::kSilent;
  for (Rendezvous* worker : {&zero, &one}) worker->OnSilence(2, Silence::kMute, now);
  for (int look = 0; look < 3; ++look) Meet(zero, one, now);
  const auto pair = zero.Propose(now);
  REQUIRE(pair.ok());
  REQUIRE(pair->has_value());
  REQUIRE((*pair)->target == 2);
  REQUIRE(zero.Accept(**pair).ok());
  zero.GiveUp();
  // It goes on, and is to have their state.
  two.Slept();
  two.Seek("b:0", now);
  MeetUnlessCut({&zero, &one, &two}, now, nobody_cut);
  const auto all = zero.Propose(now);
  REQUIRE(all.ok());
  REQUIRE(all->has_value());
  REQUIRE((*all)->target == 2);
  REQUIRE((*all)->Fresh(2));
  REQUIRE(two.Accept(**all).ok());
  two.GiveUp();

  for (const int other : {0, 1}) two.OnSilence(other, Silence::kEnded, now);
  const Status alone = two.Propose(now).status();

  CHECK(alone.code() == StatusCode::kUnavailable);
  CHECK(Message(alone).find("begin again from a checkpoint") != std::string::npos);
  // With step 2 done nobody takes it from one who has not.
  Formation wrong = **all;
  wrong.generation = wrong.generation.Next();
  wrong.donor = 2;
  zero.GiveUp();
  CHECK(zero.Accept(wrong).code() == StatusCode::kAborted);
}

// Workers 0 and 1 of three have done step 1 together.
struct TwoOfThree {
  static Rendezvous Made(int self, std::uint64_t incarnation) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(1'000)},
                      Incarnation(incarnation), 7, 0);
  }
  TwoOfThree() {
    for (Rendezvous* worker : {&zero, &one}) {
      worker->Seek("a:0", now);
      worker->OnSilence(2, Silence::kEnded, now);
    }
    now += Millis(1'000);
    for (int look = 0; look < 3; ++look) Meet(zero, one, now);
    const auto first = zero.Propose(now);
    REQUIRE(first.ok());
    REQUIRE(first->has_value());
    for (Rendezvous* worker : {&zero, &one}) {
      REQUIRE(worker->Accept(**first).ok());
      worker->Formed(**first, true);
      worker->Prepared(1);
      worker->Committed(1);
    }
  }

  Rendezvous zero = Made(0, 10);
  Rendezvous one = Made(1, 11);
  TimePoint now{std::chrono::hours(1)};
};

TEST_CASE("a group goes on until it is known of one that asks whether it reaches all members",
          "[collectives][elastic][unit]") {
  TwoOfThree both;
  Rendezvous& zero = both.zero;
  Rendezvous& one = both.one;
  TimePoint& now = both.now;
  const Silence silence = GENERATE(Silence::kCutOff, Silence::kMute);
  Rendezvous two = TwoOfThree::Made(2, 12);
  two.Seek("b:2", now);
  CHECK_FALSE(two.report().settled);
  // Worker 2 asks worker 0, then worker 1, which does not answer; worker 0 learns of that in the
  // next look around.
  const auto look = [&](bool reaches_one) {
    zero.OnReport(two.report(), now);
    two.OnReport(zero.report(), now);
    if (reaches_one) {
      one.OnReport(two.report(), now);
      two.OnReport(one.report(), now);
    } else {
      two.OnSilence(1, silence, now);
    }
    return zero.SomebodyWaits(now);
  };
  for (int again = 0; again < 8; ++again) {
    CHECK_FALSE(look(false));
    now += Millis(200);
  }
  CHECK(two.report().settled);
  CHECK(two.report().unreached == std::vector<int>{1});

  // It answers, once; what is known then holds until it has not answered again.
  CHECK_FALSE(look(true));
  CHECK(look(true));
  CHECK(one.SomebodyWaits(now));
  CHECK(look(false));
  CHECK_FALSE(look(false));
  // What it has said long ago does not count.
  CHECK_FALSE(look(true));
  CHECK(look(true));
  CHECK_FALSE(zero.SomebodyWaits(now + Rendezvous::kSilent));
}

TEST_CASE("who stood still does not wait for one that may have gone on and has ended since",
          "[collectives][elastic][unit]") {
  TwoOfThree both;
  Rendezvous& one = both.one;
  TimePoint& now = both.now;
  Rendezvous next = TwoOfThree::Made(0, 20);
  next.Seek("b:0", now);
  one.Slept();
  one.Seek("b:1", now);
  const bool replaced = GENERATE(false, true);
  const Silence third = GENERATE(Silence::kEnded, Silence::kMute);
  const auto look = [&] {
    if (replaced) {
      Meet(next, one, now);
      next.OnSilence(2, third, now);
    } else {
      one.OnSilence(0, Silence::kEnded, now);
    }
    one.OnSilence(2, third, now);
    return one.Propose(now);
  };
  for (int again = 0; again < 8; ++again) {
    const auto waits = look();
    REQUIRE(waits.ok());
    CHECK_FALSE(waits->has_value());
    now += Millis(600);
  }
  now += Millis(1'000);
  const auto at_last = look();

  if (third == Silence::kMute) {  // it may know
    REQUIRE(at_last.ok());
    CHECK_FALSE(at_last->has_value());
    return;
  }
  CHECK(at_last.status().code() == StatusCode::kUnavailable);
  CHECK(Message(at_last.status()).starts_with("worker 0 has ended, and may have gone on"));
  if (replaced) CHECK(next.Propose(now).ok());
  one.SetEnded();  // who starts workers has seen those come to the end
  CHECK(one.Propose(now).status().code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("who stands still after it has seen another one end goes on without it",
          "[collectives][elastic][unit]") {
  TwoOfThree both;
  Rendezvous& one = both.one;
  one.Seek("b:1", both.now);
  for (const int other : {0, 2}) one.OnSilence(other, Silence::kEnded, both.now);
  one.Slept();

  const auto alone = one.Propose(both.now);

  REQUIRE(alone.ok());
  REQUIRE(alone->has_value());
  CHECK((*alone)->members.size() == 1);
  CHECK((*alone)->target == 1);
}

TEST_CASE("who has stood still does not go by a list of workers that may be old",
          "[collectives][elastic][unit]") {
  TwoOfThree both;
  Rendezvous& one = both.one;
  one.Seek("b:1", both.now);
  for (const int other : {0, 2}) one.OnSilence(other, Silence::kVacant, both.now);
  one.Slept();

  const auto alone = one.Propose(both.now);

  REQUIRE(alone.ok());
  CHECK_FALSE(alone->has_value());
}

TEST_CASE("who stood still waits for one that computes in their group yet",
          "[collectives][elastic][unit]") {
  Rendezvous zero({.self = 0, .workers = 3}, Incarnation(10), 7, 0);
  Rendezvous one({.self = 1, .workers = 3}, Incarnation(11), 7, 0);
  TimePoint now{std::chrono::hours(1)};
  WorkerReport runs = zero.report();
  runs.phase = WorkerReport::Phase::kRunning;
  runs.generation = Generation(1'024);
  Formation group;
  group.generation = runs.generation;
  WorkerReport two = runs;
  two.name = {.worker = 2, .incarnation = Incarnation(12)};
  group.members = {runs, one.report(), two};
  one.Formed(group, true);
  one.Slept();
  one.Seek("b:1", now);
  for (int look = 0; look < 20; ++look) {
    runs.signature = one.report().signature;
    one.OnReport(runs, now);
    one.OnSilence(2, Silence::kEnded, now);
    const auto waits = one.Propose(now);
    REQUIRE(waits.ok());
    CHECK_FALSE(waits->has_value());
    now += std::chrono::seconds(5);
  }
}

TEST_CASE("a report that names workers whom this one's list does not have is another run's",
          "[collectives][elastic][unit]") {
  Rendezvous zero({.self = 0, .workers = 2}, Incarnation(10), 7, 0);
  const TimePoint now{std::chrono::hours(1)};
  SECTION("as a report says") {
    Rendezvous one({.self = 1, .workers = 2}, Incarnation(11), 7, 0);
    for (Rendezvous* worker : {&zero, &one}) worker->Seek("a:0", now);
    WorkerReport report = one.report();
    report.generation = Generation(1'024);
    report.settled = true;
    const WorkerName stranger{.worker = GENERATE(2, -1, 1'000'000), .incarnation = Incarnation(3)};
    if (GENERATE(true, false)) {
      report.members = {one.report().name, stranger};
    } else {
      report.sees = {{.name = stranger, .generation = Generation(1), .unreached = {}}};
    }
    zero.OnReport(report, now);
    CHECK_FALSE(zero.Propose(now)->has_value());
    CHECK_FALSE(zero.SomebodyWaits(now));
  }
  SECTION("as a longer list says") {
    Rendezvous one({.self = 1, .workers = 3}, Incarnation(11), 7, 0);
    for (Rendezvous* worker : {&zero, &one}) worker->Seek("a:0", now);
    one.OnReport(zero.report(), now);
    one.OnSilence(2, Silence::kVacant, now);
    const Status refused = one.Propose(now).status();
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(Message(refused).find("or another list of workers") != std::string::npos);
  }
}

TEST_CASE("one that stands still is asked less and less often, and one that is cut off as before",
          "[collectives][elastic][unit]") {
  Rendezvous zero({.self = 0, .workers = 3}, Incarnation(10), 7, 0);
  TimePoint now{std::chrono::hours(1)};
  zero.Seek("a:0", now);
  int mute = 0;
  int cut_off = 0;
  const TimePoint end = now + std::chrono::hours(1);
  for (; now < end; now += Millis(200)) {
    if (zero.IsToBeAsked(1, now)) {
      ++mute;
      zero.OnSilence(1, Silence::kMute, now);
    }
    if (zero.IsToBeAsked(2, now)) {
      ++cut_off;
      zero.OnSilence(2, Silence::kCutOff, now);
    }
  }
  CHECK(mute < 400);
  CHECK(mute > 350);
  CHECK(cut_off == 18'000);
  Rendezvous one({.self = 1, .workers = 3}, Incarnation(11), 7, 0);
  one.Seek("a:0", now);
  zero.OnReport(one.report(), now);
  CHECK(zero.IsToBeAsked(1, now));
}

TEST_CASE("who looks around while its leader asks for its consent agrees all the same",
          "[collectives][elastic][unit]") {
  Rendezvous zero({.self = 0, .workers = 2}, Incarnation(10), 7, 0);
  Rendezvous one({.self = 1, .workers = 2}, Incarnation(11), 7, 0);
  const TimePoint now{std::chrono::hours(1)};
  for (Rendezvous* worker : {&zero, &one}) worker->Seek("a:0", now);
  for (int look = 0; look < 3; ++look) Meet(zero, one, now);
  const auto next = zero.Propose(now);
  REQUIRE(next.ok());
  REQUIRE(next->has_value());
  REQUIRE(zero.Accept(**next).ok());

  Meet(one, zero, now);

  CHECK(one.Accept(**next).ok());
}

TEST_CASE("a first group that is lost before others have its state does not wait for all again",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(60'000)},
                      Incarnation(static_cast<std::uint64_t>(10 + self)), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2);
  const TimePoint now{std::chrono::hours(1)};
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Seek("a:0", now);
  for (int look = 0; look < 3; ++look) {
    Meet(one, two, now);
    Meet(zero, one, now);
    Meet(zero, two, now);
  }
  const auto first = zero.Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (Rendezvous* worker : {&zero, &one, &two}) REQUIRE(worker->Accept(**first).ok());
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Formed(**first, worker == &zero);

  for (Rendezvous* worker : {&one, &two}) {
    worker->Seek("b:0", now);
    worker->OnSilence(0, Silence::kEnded, now);
  }
  for (int look = 0; look < 3; ++look) Meet(one, two, now);

  const auto next = one.Propose(now);
  REQUIRE(next.ok());
  REQUIRE(next->has_value());
  CHECK((*next)->members.size() == 2);
}

TEST_CASE("a group without one that its leader sees has to outweigh those whom nobody sees",
          "[collectives][elastic][unit]") {
  const int workers = GENERATE(5, 6);
  std::vector<std::unique_ptr<Rendezvous>> all;
  TimePoint now{std::chrono::hours(1)};
  for (int i = 0; i < workers; ++i) {
    all.push_back(std::make_unique<Rendezvous>(
        Rendezvous::Options{.self = i, .workers = workers, .start_within = Millis(1'000)},
        Incarnation(static_cast<std::uint64_t>(10 + i)), 7, 0));
  }
  const auto look = [&](const std::function<bool(int, int)>& cut) {
    std::vector<Rendezvous*> workers_there;
    for (const auto& one : all) {
      one->Seek("a:0", now);
      workers_there.push_back(one.get());
    }
    MeetUnlessCut(workers_there, now, cut);
  };
  look([](auto, auto) { return false; });
  const auto first = all[0]->Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (const auto& one : all) {
    REQUIRE(one->Accept(**first).ok());
    one->Formed(**first, true);
  }

  // Workers 1 and 2 do not see each other, and none of the first three sees the rest.
  look([](int high, int low) { return (high == 2 && low == 1) || (high > 2 && low < 3); });
  const auto next = all[0]->Propose(now);

  REQUIRE(next.ok());
  if (workers == 6) {
    CHECK_FALSE(next->has_value());
    return;
  }
  REQUIRE(next->has_value());
  CHECK((*next)->members.back().name.worker == 1);  // 0 and 1
  CHECK(all[2]->report().told.size() == 1);         // by worker 0
}

TEST_CASE("who comes when the run has ended does not begin it again",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 2, .start_within = Millis(1'000)},
                      Incarnation(static_cast<std::uint64_t>(10 + self)), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1);
  TimePoint now{std::chrono::hours(1)};
  zero.Seek("a:0", now);
  zero.OnSilence(1, Silence::kEnded, now);
  now += Millis(1'000);
  const auto alone = zero.Propose(now);
  REQUIRE(alone.ok());
  REQUIRE(alone->has_value());
  REQUIRE(zero.Accept(**alone).ok());
  zero.Formed(**alone, true);

  SECTION("as one that is done says") {
    zero.Finish();
    one.Seek("a:1", now);
    one.OnReport(zero.report(), now);
    const auto late = one.Propose(now);
    CHECK(late.status().code() == StatusCode::kFailedPrecondition);
    CHECK(Message(late.status()) ==
          "the run has ended at step 0 without worker 1: nothing is left to do");
  }
  SECTION("as is known of one that has gone") {
    // Whether it has seen it or not.
    const bool seen = GENERATE(false, true);
    one.Seek("a:1", now);
    if (seen) one.OnReport(zero.report(), now);
    one.SetEnded();
    one.OnSilence(0, Silence::kEnded, now);
    now += Millis(5'000);
    one.OnSilence(0, Silence::kEnded, now);
    const auto late = one.Propose(now);
    CHECK(late.status().code() == StatusCode::kFailedPrecondition);
    CHECK(Message(late.status()) == "the run has ended without worker 1: nothing is left to do");
  }
  SECTION("but waits for one that is not done yet") {
    one.SetEnded();
    one.Seek("a:1", now);
    one.OnReport(zero.report(), now);
    const auto waits = one.Propose(now);
    REQUIRE(waits.ok());
    CHECK_FALSE(waits->has_value());
  }
}

TEST_CASE("the first group does not wait for places that nobody has",
          "[collectives][elastic][unit]") {
  Rendezvous worker({.self = 0, .workers = 4, .start_within = Millis(60'000)}, Incarnation(1), 7,
                    0);
  const TimePoint now{std::chrono::hours(1)};
  worker.Seek("a:0", now);
  for (const int other : {1, 2}) worker.OnSilence(other, Silence::kVacant, now);
  worker.OnSilence(3, Silence::kEnded, now);
  CHECK_FALSE(worker.Propose(now)->has_value());  // it may come yet

  worker.OnSilence(3, Silence::kVacant, now);
  CHECK(worker.Propose(now)->has_value());
  CHECK(worker.Awaited(now) == "1 of at least 1 workers seek a group: no other is there");
}

TEST_CASE("of many workers that have not come some are named", "[collectives][elastic][unit]") {
  Rendezvous worker({.self = 0, .workers = 30}, Incarnation(1), 7, 0);
  const TimePoint now{std::chrono::hours(1)};
  worker.Seek("a:0", now);
  CHECK(worker.Awaited(now).ends_with(", worker 20 has not answered and 9 more"));
}

TEST_CASE("a worker that is missing in another one's list joins it by asking",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(1'000)},
                      Incarnation(static_cast<std::uint64_t>(10 + self)), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2);
  TimePoint now{std::chrono::hours(1)};
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Seek("a:1", now);

  // Worker 1's daemon stands still: its list was made before worker 2 came.
  for (int look = 0; look < 5; ++look) {
    Meet(zero, two, now);
    Meet(zero, one, now);
    one.OnReport(two.report(), now);
    two.OnReport(one.report(), now);
    now += Millis(20);
    one.OnSilence(2, Silence::kVacant, now);
    (void)one.Propose(now);
    (void)two.Propose(now);
  }
  zero.OnReport(one.report(), now);
  zero.OnReport(two.report(), now);
  const auto all = zero.Propose(now);

  REQUIRE(all.ok());
  REQUIRE(all->has_value());
  CHECK((*all)->members.size() == 3);
  for (Rendezvous* worker : {&zero, &one, &two}) CHECK(worker->Accept(**all).ok());

  // It is gone when it has said nothing for a while.
  one.GiveUp();
  now += Rendezvous::kSilent;
  one.OnSilence(2, Silence::kVacant, now);
  CHECK(one.seekers() == 2);
}

}  // namespace
}  // namespace muster::collectives
