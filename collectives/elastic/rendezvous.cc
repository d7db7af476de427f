#include "collectives/elastic/rendezvous.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "common/base/words.h"

namespace muster::collectives {

using Phase = WorkerReport::Phase;

namespace {

constexpr std::uint64_t kLeaders = Rendezvous::kMostWorkers;
// Between two questions to one that stands still.
constexpr Millis kLongestPause{10'000};
// So long it may take to hear of one who has come while this worker stood still.
constexpr Millis kHeardWithin{5'000};

bool Has(const std::vector<WorkerName>& names, const WorkerName& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<WorkerName> NamesOf(const std::vector<WorkerReport>& reports) {
  std::vector<WorkerName> names;
  for (const WorkerReport& one : reports) names.push_back(one.name);
  return names;
}

bool HasWorker(const std::vector<WorkerReport>& reports, int worker) {
  return std::any_of(reports.begin(), reports.end(),
                     [&](const WorkerReport& one) { return one.name.worker == worker; });
}

Generation LatestGeneration(const std::vector<WorkerReport>& reports) {
  Generation latest;
  for (const WorkerReport& one : reports) latest = std::max(latest, one.generation);
  return latest;
}

bool Misses(const WorkerReport& one, int worker) {
  return std::find(one.unreached.begin(), one.unreached.end(), worker) != one.unreached.end();
}

bool Apart(const WorkerReport& a, const WorkerReport& b) {
  return Misses(a, b.name.worker) || Misses(b, a.name.worker);
}

// Those of `all` that reach each other, one at least with the state of `generation`. Who does not
// reach most others is left out first, then who has no state, then the highest.
std::vector<WorkerReport> WhoMeet(std::vector<WorkerReport> all, Generation generation) {
  while (true) {
    const auto has_state = [&](const WorkerReport& one) { return one.generation == generation; };
    const bool last = std::count_if(all.begin(), all.end(), has_state) == 1;
    std::tuple<std::ptrdiff_t, bool, std::size_t> worst;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::ptrdiff_t apart = std::count_if(
          all.begin(), all.end(), [&](const WorkerReport& other) { return Apart(all[i], other); });
      if (apart == 0 || (last && has_state(all[i]))) continue;
      worst = std::max(worst, {apart, !has_state(all[i]), i});
    }
    if (std::get<0>(worst) == 0) return all;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(std::get<2>(worst)));
  }
}

// Later than whatever any of them has agreed to, or told others of.
Generation NextGeneration(const std::vector<WorkerReport>& all, int leader) {
  Generation highest;
  for (const WorkerReport& one : all) {
    highest = std::max({highest, one.generation, one.promised, one.leaving.generation});
  }
  return Generation((highest.value() / kLeaders + 1) * kLeaders +
                    static_cast<std::uint64_t>(leader));
}

// Which step counts among `members`, of whom `finished` are none any more; and who has its state.
// False: none of them has.
bool ChooseTarget(Formation& next, Generation generation, std::uint64_t finished) {
  std::vector<WorkerReport>& members = next.members;
  if (generation == Generation()) {  // nobody has trained: who has restored the latest step
    const auto donor = std::max_element(members.begin(), members.end(),
                                        [](auto& a, auto& b) { return a.committed < b.committed; });
    next.donor = static_cast<int>(donor - members.begin());
    next.target = donor->committed;
    return true;
  }
  std::uint64_t committed = finished;
  std::uint64_t prepared = UINT64_MAX;
  for (const WorkerReport& one : members) {
    if (one.generation != generation) continue;
    committed = std::max(committed, one.committed);
    prepared = std::min(prepared, one.prepared);
  }
  // Whether that group has formed for somebody is not known here; if so, it counts what it was to.
  const WorkerReport* agreed = nullptr;
  for (const WorkerReport& one : members) {
    if (one.generation != generation || one.promised <= generation) continue;
    if (agreed == nullptr || one.promised > agreed->promised) agreed = &one;
  }
  next.target = std::max(committed, agreed == nullptr ? prepared : agreed->promised_target);
  const auto donor = std::find_if(members.begin(), members.end(), [&](const WorkerReport& one) {
    return one.generation == generation && one.prepared >= next.target;
  });
  next.donor = static_cast<int>(donor - members.begin());
  return donor != members.end();
}

// What their signatures say.
Status Differs(int worker, int other) {
  return InvalidArgument(
      "worker {} has another program than worker {}, other variables (their names and shapes must "
      "be the same), other steps, seed or logical_shards, or another list of workers",
      worker, other);
}

// One who was with those that have the state of `generation`, and is not among them.
int MissingOf(const Formation& next, Generation generation) {
  for (const WorkerReport& one : next.members) {
    if (one.generation != generation) continue;
    for (const WorkerName& member : one.members) {
      if (next.RankOf(member) < 0) return member.worker;
    }
  }
  return next.members.front().name.worker;
}

}  // namespace

int Formation::RankOf(const WorkerName& name) const {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].name == name) return static_cast<int>(rank);
  }
  return -1;
}

bool Formation::Fresh(int rank) const {
  const WorkerReport& one = members[static_cast<std::size_t>(rank)];
  const WorkerReport& gives = members[static_cast<std::size_t>(donor)];
  if (rank == donor) return false;
  return gives.generation == Generation() || one.generation != gives.generation ||
         one.prepared < target;
}

bool Formation::AnyFresh() const {
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (Fresh(static_cast<int>(rank))) return true;
  }
  return false;
}

Rendezvous::Rendezvous(const Options& options, Incarnation incarnation, std::uint64_t signature,
                       std::uint64_t first_step)
    : options_(options), known_(static_cast<std::size_t>(options.workers)) {
  self_.name = {.worker = options.self, .incarnation = incarnation};
  // Workers of lists of other lengths stay apart, too.
  self_.signature = signature * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(options.workers);
  self_.committed = self_.prepared = first_step;
}

void Rendezvous::Seek(std::string address, TimePoint now) {
  self_.phase = Phase::kSeeking;
  self_.address = std::move(address);
  self_.choice.clear();
  forming_ = false;
  seeking_since_ = now;
  for (Known& one : known_) one = Known{};
  NoteReach(now);
}

void Rendezvous::NoteReach(TimePoint now) {
  self_.unreached.clear();
  self_.sees.clear();
  self_.settled = true;
  for (int worker = 0; worker < options_.workers; ++worker) {
    const Known& known = known_[static_cast<std::size_t>(worker)];
    if (worker != options_.self && !Settled(known, now)) self_.settled = false;
    if (known.silence.has_value() && !Gone(known) && Settled(known, now)) {
      self_.unreached.push_back(worker);
    }
    if (Seeks(known)) {
      self_.sees.push_back({known.report->name, known.report->generation, known.report->unreached});
    }
  }
}

void Rendezvous::Committed(std::uint64_t step) {
  self_.committed = self_.prepared = step;
  // Votes of two steps may have come before it stood still; the third one is of those who waited.
  if (step > slept_after_ + 2) self_.unseen.clear();
}

void Rendezvous::Lose(const WorkerName& member) {
  if (member != self_.name && !Has(self_.unseen, member)) self_.unseen.push_back(member);
}

bool Rendezvous::SawEnd(const WorkerName& member) const {
  const Known& known = known_[static_cast<std::size_t>(member.worker)];
  // Its place may have another process. What is known of a group's members is of the last search.
  const bool ended = known.report.has_value() ? known.report->name != member : Gone(known);
  return self_.phase == Phase::kSeeking && ended;
}

void Rendezvous::Slept() {
  slept_after_ = self_.committed;
  for (const WorkerName& member : self_.members) {
    // A list of workers may be older than what it does not name.
    const Known& known = known_[static_cast<std::size_t>(member.worker)];
    if (!SawEnd(member) || known.silence == Silence::kVacant) Lose(member);
  }
}

void Rendezvous::OnReport(const WorkerReport& report, TimePoint now) {
  const int worker = report.name.worker;
  const auto is_one = [&](int other) { return other >= 0 && other < options_.workers; };
  if (!is_one(worker) || worker == options_.self) return;
  Known& known = known_[static_cast<std::size_t>(worker)];
  known = {.report = report, .at = now, .silence = {}, .silent_since = {}, .asked = {}};
  const bool sound =
      std::ranges::all_of(report.members, is_one, &WorkerName::worker) &&
      std::ranges::all_of(report.sees, is_one, [](const Sight& one) { return one.name.worker; });
  // It has another list, whatever it says of that.
  if (!sound) known.report->signature = ~self_.signature;
  NoteReach(now);
  // One that has gone on says so to whom it can: that it was seen here means nothing for others.
  if (report.generation <= self_.generation) std::erase(self_.unseen, report.name);
  if (known.report->signature != self_.signature) return;
  if (report.generation > heard_.generation) heard_ = report;
  const Leaving& leaving = report.leaving;
  if (leaving.generation <= self_.generation || Has(leaving.with, self_.name)) return;
  std::erase_if(self_.told, [&](const Leaving& one) { return one.who.worker == worker; });
  self_.told.push_back(leaving);
}

void Rendezvous::OnSilence(int worker, Silence silence, TimePoint asked) {
  Known& known = known_[static_cast<std::size_t>(worker)];
  // Who has just spoken is there: a list of workers grows old where their daemon stands still.
  const bool spoke = known.report.has_value() && asked - known.at < kSilent;
  if (silence == Silence::kVacant && spoke) return;
  if (known.silence != silence) known.silent_since = asked;
  known.silence = silence;
  known.asked = asked;
  const bool settled = Settled(known, asked);
  if (settled) known.report.reset();
  NoteReach(asked);
  if (!settled || silence != Silence::kCutOff || self_.phase != Phase::kSeeking) return;
  for (const WorkerName& member : self_.members) {
    if (member.worker == worker) Lose(member);
  }
}

bool Rendezvous::Gone(const Known& known) {
  return known.silence == Silence::kEnded || known.silence == Silence::kVacant;
}

bool Rendezvous::Settled(const Known& known, TimePoint now) {
  if (!known.silence.has_value()) return known.report.has_value();
  return Gone(known) || now - known.silent_since >= kSilent;
}

bool Rendezvous::IsToBeAsked(int worker, TimePoint now) const {
  const Known& known = known_[static_cast<std::size_t>(worker)];
  if (known.silence != Silence::kMute || !Settled(known, now)) return true;
  const TimePoint::duration pause =
      std::min<TimePoint::duration>(kLongestPause, (known.asked - known.silent_since) / 4);
  return now - known.asked >= pause;
}

bool Rendezvous::Seeks(const Known& known) const {
  return known.report.has_value() && known.report->phase == Phase::kSeeking &&
         known.report->signature == self_.signature;
}

bool Rendezvous::SomebodyWaits(TimePoint now) const {
  return std::any_of(known_.begin(), known_.end(), [&](const Known& known) {
    return Seeks(known) && known.report->settled && now - known.at < kSilent &&
           !Has(self_.members, known.report->name) &&
           std::none_of(
               self_.members.begin(), self_.members.end(),
               [&](const WorkerName& member) { return Misses(*known.report, member.worker); });
  });
}

std::vector<WorkerReport> Rendezvous::Seeking() const {
  std::vector<WorkerReport> all;
  for (int worker = 0; worker < options_.workers; ++worker) {
    const Known& known = known_[static_cast<std::size_t>(worker)];
    if (worker == options_.self) all.push_back(self_);
    if (Seeks(known)) all.push_back(*known.report);
  }
  return all;
}

std::vector<WorkerReport> Rendezvous::WithHeardOf(const std::vector<WorkerReport>& seeking) const {
  std::vector<WorkerReport> all = seeking;
  for (const WorkerReport& one : seeking) {
    for (const Sight& other : one.sees) {
      const int worker = other.name.worker;
      if (HasWorker(all, worker) || !Misses(self_, worker)) continue;
      WorkerReport heard;
      heard.name = other.name;
      heard.generation = other.generation;
      heard.unreached = other.unreached;
      all.push_back(std::move(heard));
    }
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.name < b.name; });
  return all;
}

bool Rendezvous::Unseen(const WorkerName& member, const std::vector<WorkerReport>& holders) {
  return std::all_of(holders.begin(), holders.end(),
                     [&](const WorkerReport& one) { return Has(one.unseen, member); });
}

bool Rendezvous::Outweighs(const std::vector<WorkerName>& base,
                           const std::vector<WorkerReport>& holders, const Formation& next) const {
  std::vector<int> cut_off;
  std::vector<int> present;
  for (const WorkerName& member : base) {
    const Known& known = known_[static_cast<std::size_t>(member.worker)];
    const bool answers = known.report.has_value() && known.report->name == member;
    if (next.RankOf(member) >= 0) {
      present.push_back(member.worker);
    } else if (answers) {
      continue;
    } else if (known.silence == Silence::kCutOff) {
      cut_off.push_back(member.worker);
    } else if (Unseen(member, holders)) {
      return false;
    }
  }
  if (cut_off.empty()) return true;
  if (present.size() != cut_off.size()) return present.size() > cut_off.size();
  return present.front() < cut_off.front();
}

bool Rendezvous::MayGoOn(const Formation& next, const std::vector<WorkerReport>& anywhere,
                         TimePoint now) const {
  const auto here = static_cast<int>(next.members.size());
  if (here < options_.min_workers) return false;
  const Generation generation = LatestGeneration(next.members);
  if (generation == Generation()) {
    const auto vacant = std::count_if(known_.begin(), known_.end(), [](const Known& known) {
      return known.silence == Silence::kVacant;
    });
    const bool all = here + vacant == options_.workers;
    const bool first =
        !formed_ && std::chrono::floor<Millis>(now - seeking_since_) < options_.start_within;
    const bool all_heard = std::all_of(self_.unreached.begin(), self_.unreached.end(),
                                       [&](int worker) { return HasWorker(anywhere, worker); });
    return (all || !first) && all_heard && Outweighs(NamesOf(anywhere), {}, next);
  }
  std::vector<WorkerReport> holders = next.members;
  std::erase_if(holders, [&](const WorkerReport& one) { return one.generation != generation; });
  return Outweighs(holders.front().members, holders, next);
}

Result<bool> Rendezvous::WaitForRunning(Generation generation, TimePoint now) const {
  for (const Known& known : known_) {
    if (!known.report.has_value() || known.report->phase == Phase::kSeeking) continue;
    const WorkerReport& other = *known.report;
    if (other.signature != self_.signature) {
      return Differs(options_.self, other.name.worker);
    }
    if (other.phase == Phase::kFinished) {
      if (other.generation <= generation) continue;
      return FailedPrecondition(
          "the run has ended at step {} without worker {}: nothing is left to do", other.committed,
          options_.self);
    }
    // It lets others in at the end of its step; or it will see that its group is over.
    if (other.generation > generation) return true;
    if (std::chrono::floor<Millis>(now - seeking_since_) < options_.stragglers_within) return true;
  }
  return false;
}

// A later group than that of all who seek. One of its members among them that has not come to
// have its state shows that the group has done no step: each needs all members.
Result<bool> Rendezvous::WaitForState(Generation generation,
                                      const std::vector<WorkerReport>& members) const {
  const auto elsewhere = [&](Generation later, const std::vector<WorkerName>& with) {
    return later > generation &&
           std::none_of(members.begin(), members.end(),
                        [&](const WorkerReport& one) { return Has(with, one.name); });
  };
  bool gone = elsewhere(heard_.generation, heard_.members);
  int who = heard_.name.worker;
  for (const WorkerReport& one : members) {
    for (const Leaving& told : one.told) {
      if (gone || !elsewhere(told.generation, told.with)) continue;
      gone = true;
      who = told.who.worker;
    }
  }
  return gone ? WaitForOthers(who) : false;
}

Result<bool> Rendezvous::WaitForOthers(int who) const {
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (worker == options_.self) continue;
    const Known& known = known_[static_cast<std::size_t>(worker)];
    if (known.silence == Silence::kMute || known.silence == Silence::kCutOff) return true;
  }
  return Unavailable(
      "worker {} went on when this one was not with it, and has ended: no worker is left that has "
      "what it has trained since; begin again from a checkpoint",
      who);
}

// Waiting for its report would be waiting for the end of the search, whoever comes.
int Rendezvous::EndedOutOfSight(const std::vector<WorkerReport>& seeking,
                                Generation generation) const {
  if (generation == Generation() || self_.generation != generation) return -1;
  // One that has not seen yet that its group is over may have kept sight.
  for (const Known& known : known_) {
    if (known.report.has_value() && known.report->phase == Phase::kRunning &&
        known.report->generation == generation) {
      return -1;
    }
  }
  std::vector<WorkerReport> holders = seeking;
  std::erase_if(holders, [&](const WorkerReport& one) { return one.generation != generation; });
  for (const WorkerName& member : self_.members) {
    if (SawEnd(member) && Unseen(member, holders)) return member.worker;
  }
  return -1;
}

Status Rendezvous::TooLate() const {
  return FailedPrecondition("the run has ended without worker {}: nothing is left to do",
                            options_.self);
}

// The leader alone gets a formation, and only when every worker is settled, nobody runs or holds a
// state that is missed, and all others have chosen the same members. The others say their choice.
Result<std::optional<Formation>> Rendezvous::Propose(TimePoint now) {
  using Nothing = std::optional<Formation>;
  self_.choice.clear();
  const std::optional<TimePoint> ended_since = std::exchange(ended_out_of_sight_since_, {});
  if (self_.phase != Phase::kSeeking || forming_) return Nothing();
  for (int worker = 0; worker < options_.workers; ++worker) {
    const Known& known = known_[static_cast<std::size_t>(worker)];
    if (worker != options_.self && !Settled(known, now)) return Nothing();
    if (known.report.has_value() && worker < options_.self &&
        known.report->signature != self_.signature) {
      return Differs(options_.self, worker);
    }
  }
  const std::vector<WorkerReport> seeking = Seeking();
  const std::vector<WorkerReport> anywhere = WithHeardOf(seeking);
  const Generation generation = LatestGeneration(anywhere);
  MUSTER_TRY_ASSIGN(const bool runs, WaitForRunning(generation, now));
  if (runs) return Nothing();
  const Result<bool> elsewhere = WaitForState(generation, seeking);
  const bool away = elsewhere.value_or(false);
  // Nobody runs, and nobody of those who seek has a state: they would do all of it again. Whether
  // the state is lost does not matter any more.
  if (ended_ && generation == Generation() && !away) {
    return TooLate();
  }
  MUSTER_TRY(elsewhere.status());
  if (away) return Nothing();
  if (const int lost = EndedOutOfSight(seeking, generation); lost >= 0) {
    ended_out_of_sight_since_ = ended_since.value_or(now);
    if (now - *ended_out_of_sight_since_ >= kHeardWithin && !WaitForOthers(lost).ok()) {
      if (ended_) return TooLate();
      return Unavailable(
          "worker {} has ended, and may have gone on before that, when this one stood still or was "
          "cut off: no worker is left that has what it may have trained; begin again from a "
          "checkpoint",
          lost);
    }
  }

  Formation next;
  next.members = WhoMeet(anywhere, generation);
  if (next.RankOf(self_.name) < 0) return Nothing();
  // The leader, which weighs them, chooses first: nobody is told in vain that it is left behind.
  std::vector<WorkerName> chosen = NamesOf(next.members);
  const WorkerReport& leader = next.members.front();
  const bool leads = leader.name == self_.name;
  if (leads ? !MayGoOn(next, anywhere, now) : leader.choice != chosen) return Nothing();
  next.generation = NextGeneration(seeking, leader.name.worker);
  if (!HasTold(next)) return Nothing();
  self_.choice = std::move(chosen);
  const bool all_agree =
      std::all_of(next.members.begin() + 1, next.members.end(),
                  [&](const WorkerReport& one) { return one.choice == self_.choice; });
  if (!leads || !all_agree) return Nothing();
  std::uint64_t finished = 0;
  for (const Known& known : known_) {
    if (known.report.has_value() && known.report->phase == Phase::kFinished) {
      finished = std::max(finished, known.report->committed);
    }
  }
  if (ChooseTarget(next, generation, finished)) return next;
  // A group was to count a step more, and may have: nobody here has its state.
  MUSTER_TRY(WaitForOthers(MissingOf(next, generation)).status());
  return Nothing();
}

bool Rendezvous::HasTold(const Formation& formation) {
  std::vector<const Known*> behind;
  for (const WorkerName& member : self_.members) {
    const Known& known = known_[static_cast<std::size_t>(member.worker)];
    const bool seen = known.report.has_value() && known.report->name == member;
    if (seen && formation.RankOf(member) < 0) behind.push_back(&known);
  }
  if (behind.empty()) return true;
  Leaving& leaving = self_.leaving;
  std::vector<WorkerName> with = NamesOf(formation.members);
  if (leaving.generation == Generation() || leaving.with != with) {
    leaving = {.who = self_.name, .generation = formation.generation, .with = std::move(with)};
  }
  return std::all_of(behind.begin(), behind.end(), [&](const Known* known) {
    const std::vector<Leaving>& told = known->report->told;
    return std::find(told.begin(), told.end(), leaving) != told.end();
  });
}

Status Rendezvous::Accept(const Formation& formation) {
  const int rank = formation.RankOf(self_.name);
  if (rank < 0) return Aborted("generation {} is without this worker", formation.generation);
  if (forming_ || self_.phase != Phase::kSeeking) {
    return Aborted("worker {} is in a group, or forms one", options_.self);
  }
  const WorkerReport& known = formation.members[static_cast<std::size_t>(rank)];
  const WorkerReport& donor = formation.members[static_cast<std::size_t>(formation.donor)];
  if (donor.prepared < formation.target) {
    return Aborted("generation {} counts step {}, which its worker {} has not done",
                   formation.generation, formation.target, donor.name.worker);
  }
  const Generation least = std::max(self_.promised, self_.leaving.generation);
  if (formation.generation <= least || known.address != self_.address ||
      known.generation != self_.generation || known.committed != self_.committed ||
      known.prepared != self_.prepared) {
    return Aborted("generation {} is over before it began: worker {} has come further",
                   formation.generation, options_.self);
  }
  if (NamesOf(formation.members) != self_.choice || !HasTold(formation)) {
    return Aborted("worker {} sees others than those of generation {}, or has to tell them first",
                   options_.self, formation.generation);
  }
  if (rank > 0) self_.choice.clear();  // the others' depend on the leader's
  self_.promised = formation.generation;
  forming_ = true;
  self_.promised_target = formation.target;
  return Ok();
}

void Rendezvous::Formed(const Formation& formation, bool has_state) {
  forming_ = false;
  formed_ = true;
  self_.phase = Phase::kRunning;
  if (!has_state) return;
  self_.generation = formation.generation;
  self_.members = NamesOf(formation.members);
  self_.unseen.clear();
  self_.leaving = {};
  self_.told.clear();
  Committed(formation.target);
}

std::string Rendezvous::Awaited(TimePoint now) const {
  std::vector<std::string> others;
  for (int worker = 0; worker < options_.workers; ++worker) {
    if (worker == options_.self) continue;
    const Known& known = known_[static_cast<std::size_t>(worker)];
    if (known.silence == Silence::kVacant) continue;
    std::string how = "has not answered";
    if (known.report.has_value()) {
      how = known.report->phase == Phase::kSeeking ? "waits, too" : "trains";
      if (const std::vector<int>& missed = known.report->unreached; !missed.empty()) {
        how += fmt::format(" (and does not reach {})", Joined(missed));
      }
    } else if (known.silence == Silence::kEnded) {
      how = "has ended";
    } else if (known.silence == Silence::kMute && Settled(known, now)) {
      how = "does not answer, though its host does";
    } else if (known.silence == Silence::kCutOff) {
      how = "cannot be reached and may go on";
    }
    others.push_back(fmt::format("worker {} {}", worker, how));
  }
  if (others.empty()) others.emplace_back("no other is there");
  return fmt::format("{} of at least {} workers seek a group: {}", Seeking().size(),
                     options_.min_workers, Joined(others));
}

}  // namespace muster::collectives
