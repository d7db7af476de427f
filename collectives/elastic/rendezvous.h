// Who trains together next, where workers of a run come and go: sans-IO, reports and the time go
// in, the next group comes out.
//
// Every worker knows all addresses at which there may be workers, and asks them for their reports
// whenever it needs a group: at its start, when its group is over, when the group lets others in.
// Each also says whom it sees and whom it does not reach, so all know of everybody, and each
// chooses by the same rule whom it would go on with: of workers that do not reach each other some
// are left out, as few as possible, until they do. The lowest of the chosen leads: when all of them
// have chosen the same it says which step counts, and who gives the state to those that have none.
//
// What counts. A step is *prepared* on a worker when its function has returned there, and
// *committed* when the worker knows that it is prepared on all members. So if it is committed
// anywhere all survivors have prepared it: they take it when all have, and undo it when one has
// not.
//
// Who may go on. Of the last group's members those that have ended, or are stopped, are gone; those
// that cannot be reached may go on elsewhere, so survivors need to be more, or as many and have the
// lowest worker. Workers that were cut off or stopped themselves lost sight of others, who may have
// gone on without them: unless one of them has kept sight, they wait until those report; of one
// that has ended meanwhile nothing can be known any more, and they give up. Who is to go on without
// a member that it sees itself (the leader does not) tells it so first: if it then ends, that
// member knows that others may have gone on. So what has counted is never done again by somebody
// else. Workers that have no state begin when every address either answers or refuses, or one of
// them sees that it has none either: else others may be training there.
//
// Threading: not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::collectives {

// One process of a worker; another process of the same worker has another incarnation, by chance.
struct WorkerName {
  int worker = 0;
  Incarnation incarnation;
  auto operator<=>(const WorkerName&) const = default;
};

// A member of a group may go on, in this generation or a later one, with these, and without others
// of that group whom it sees.
struct Leaving {
  WorkerName who;
  Generation generation;
  std::vector<WorkerName> with;
  bool operator==(const Leaving&) const = default;
};

// What one worker tells of another that seeks to those that do not reach that one.
struct Sight {
  WorkerName name;
  Generation generation;
  std::vector<int> unreached;
};

struct WorkerReport {
  enum class Phase : std::uint8_t { kSeeking, kRunning, kFinished };

  WorkerName name;
  Phase phase = Phase::kSeeking;
  // The last group whose state it has, and that group's members; 0: none yet.
  Generation generation;
  std::vector<WorkerName> members;
  std::uint64_t committed = 0;
  std::uint64_t prepared = 0;  // committed, or one more
  // The highest generation that it has agreed to, and that one's last step: who formed it goes on
  // from there, so who has agreed and not formed it does the same.
  Generation promised;
  std::uint64_t promised_target = 0;
  // Members of its last group that may have gone on while it could not see them.
  std::vector<WorkerName> unseen;
  // What it tells members of its last group; generation 0: nothing.
  Leaving leaving;
  // What it was told so, and is not in.
  std::vector<Leaving> told;
  // Workers, as numbers, that may be there and do not answer it.
  std::vector<int> unreached;
  // Each other worker has answered it, or has not for long enough to count: before, `unreached` may
  // lack some.
  bool settled = false;
  // Who else seeks.
  std::vector<Sight> sees;
  // With whom it would go on, as the lowest of them has said first; empty before it is settled, and
  // while it has to tell somebody.
  std::vector<WorkerName> choice;
  // A hash of the names and shapes of its state: workers of other programs stay apart.
  std::uint64_t signature = 0;
  // Where it listens for the next group.
  std::string address;
};

// The next group. Its members in rank order, as the leader knows them.
struct Formation {
  Generation generation;
  std::vector<WorkerReport> members;
  // The last step that counts, and the rank of a member that has its state.
  std::uint64_t target = 0;
  int donor = 0;

  // -1: no member.
  int RankOf(const WorkerName& name) const;
  // That member gets the state from the donor.
  bool Fresh(int rank) const;
  bool AnyFresh() const;
};

// Why a worker did not answer.
enum class Silence : std::uint8_t {
  kEnded,   // its host says that nobody listens
  kMute,    // its host answers, its process does not
  kCutOff,  // nothing answers
  kVacant,  // there is no such worker now, says who starts them: not of one that has just spoken
};

class Rendezvous {
 public:
  struct Options {
    int self = 0;
    int workers = 1;
    // Fewer do not begin, nor go on.
    int min_workers = 1;
    // The first group waits so long for all workers; not again, when it is lost.
    Millis start_within{10'000};
    // A member that lives, but still computes in the group that is over, is waited for so long.
    Millis stragglers_within{60'000};
  };
  Rendezvous(const Options& options, Incarnation incarnation, std::uint64_t signature,
             std::uint64_t first_step);

  const WorkerReport& report() const { return self_; }

  // --- This worker.
  // It needs a group, for which it listens at `address`.
  void Seek(std::string address, TimePoint now);
  void Prepared(std::uint64_t step) { self_.prepared = step; }
  void Committed(std::uint64_t step);
  void Finish() { self_.phase = WorkerReport::Phase::kFinished; }
  // It stood still for longer than kSilent. To be said before what it hears afterwards: of members
  // that it knew to have ended before, it has not lost sight.
  void Slept();
  // Who starts workers has seen one come to the end of the run.
  void SetEnded() { ended_ = true; }

  // --- Others.
  void OnReport(const WorkerReport& report, TimePoint now);
  // `asked`: when it was asked.
  void OnSilence(int worker, Silence silence, TimePoint asked);
  // One whose host answers and whose process does not is asked less and less often: each question
  // is a connection that lies at its door until it looks, and the door takes so many.
  bool IsToBeAsked(int worker, TimePoint now) const;
  // While this worker runs: one that may be let in asks. Not one that does not reach all members,
  // or does not know yet: it would be left out again.
  bool SomebodyWaits(TimePoint now) const;

  // --- The next group.
  // Chooses, to be asked after each look around; as the leader of those whom all of them have
  // chosen, says so. Nothing: it does not lead, or not everything is known yet.
  //   kUnavailable: those who had the run's state have ended, all of them, or may have.
  //   kFailedPrecondition: the run has ended without this worker.
  //   kInvalidArgument: another worker has another program or state.
  Result<std::optional<Formation>> Propose(TimePoint now);
  // As a member: agrees, once; then Formed() or GiveUp() follows.
  //   kAborted: this worker has come further, or elsewhere, or has chosen others.
  Status Accept(const Formation& formation);
  bool forming() const { return forming_; }
  void GiveUp() { forming_ = false; }
  // The group is there. `has_state`: this worker has the state of the target.
  void Formed(const Formation& formation, bool has_state);
  // How many are known to look for a group, this worker included.
  int seekers() const { return static_cast<int>(Seeking().size()); }
  // In words: who has not answered, and what else is waited for.
  std::string Awaited(TimePoint now) const;

  // Silence that its host does not explain counts after this time.
  static constexpr Millis kSilent{600};
  // Generations of different leaders differ.
  static constexpr std::size_t kMostWorkers = 1'024;

 private:
  struct Known {
    std::optional<WorkerReport> report;
    TimePoint at;
    std::optional<Silence> silence;
    TimePoint silent_since;
    TimePoint asked;  // in vain
  };
  void Lose(const WorkerName& member);
  // In this search that process of a worker is known to have ended.
  bool SawEnd(const WorkerName& member) const;
  static bool Settled(const Known& known, TimePoint now);
  bool Seeks(const Known& known) const;
  // Nobody is there, for certain.
  static bool Gone(const Known& known);
  // The members of the last group that may go on elsewhere.
  // None of `holders`, who have that member's state, has kept sight of it.
  static bool Unseen(const WorkerName& member, const std::vector<WorkerReport>& holders);
  // Those of `base` that are members of the next group stand against those that may go on
  // elsewhere; who is seen and left out has been told, and counts for nobody.
  bool Outweighs(const std::vector<WorkerName>& base, const std::vector<WorkerReport>& holders,
                 const Formation& next) const;
  // Whether those of `next`, of all that seek anywhere, are enough, and nobody trains beside them.
  bool MayGoOn(const Formation& next, const std::vector<WorkerReport>& anywhere,
               TimePoint now) const;
  // What this worker says of whom it reaches and sees, after news of them.
  void NoteReach(TimePoint now);
  // Whether who runs or has run is to be waited for; what it says.
  Result<bool> WaitForRunning(Generation generation, TimePoint now) const;
  // The state of a later generation is not with any of them: kUnavailable, or it is waited for.
  Result<bool> WaitForState(Generation generation, const std::vector<WorkerReport>& members) const;
  // Nobody who is there has it: kUnavailable, or somebody who does not answer may.
  Result<bool> WaitForOthers(int who) const;
  // One of its last group that may have gone on without all of `seeking` who have that group's
  // state, and has ended since; -1: none.
  int EndedOutOfSight(const std::vector<WorkerReport>& seeking, Generation generation) const;
  Status TooLate() const;
  // Those whom it sees and would leave behind have been told so.
  bool HasTold(const Formation& formation);
  std::vector<WorkerReport> Seeking() const;
  // And those whom this worker does not reach and one of `seeking` sees, as that one tells.
  std::vector<WorkerReport> WithHeardOf(const std::vector<WorkerReport>& seeking) const;

  const Options options_;
  WorkerReport self_;
  bool forming_ = false;
  TimePoint seeking_since_;
  // It was in a group, with whatever came of that.
  bool formed_ = false;
  bool ended_ = false;
  // Since when there has been one, at each look around.
  std::optional<TimePoint> ended_out_of_sight_since_;
  std::vector<Known> known_;
  // The last step that counted when this worker stood still.
  std::uint64_t slept_after_ = 0;
  // Who had the latest state that this worker knows of.
  WorkerReport heard_;
};

}  // namespace muster::collectives
