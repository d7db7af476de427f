// Jobs whose steps several workers make together (docs/decisions/0014): each one's executor holds
// all variables and computes its part of every batch. They form a group, which one of them leads:
// it has the closures and saves checkpoints, the home of home_view.h. When a member is lost, or one
// comes, the coordinator asks those who are there into the next group, under a higher generation;
// the view goes on for as long as one member has the variables.
//
// Threading and lifetimes: see Kind and View.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "coordinator/home_view.h"

namespace muster::coordinator {

class GroupKind : public HomeKind {
 public:
  GroupKind(const World& world, const Story& story)
      : HomeKind(world, story), world_(world), story_(story) {}
  // Workers, until as many are there as the steps need; of a view that is to be adopted its leader.
  std::vector<std::string> Missing() const override;
  bool MakeDo() override { return adopts() && HomeKind::MakeDo(); }
  std::unique_ptr<View> NewView(ModelJob& job) override;

 private:
  const World& world_;
  const Story& story_;
};

class GroupView : public HomeView {
 public:
  GroupView(ModelJob& job, HomeKind& kind) : HomeView(job, kind) {}

 private:
  // An executor in a group, in rank order.
  struct Seat {
    TaskId task;
    Incarnation executor;
    bool operator==(const Seat&) const = default;
  };
  using Seats = std::vector<Seat>;
  // A group that forms: what its members have answered.
  struct Round {
    Generation generation = {};
    Seats seats;
    std::size_t left = 0;
    std::size_t failed = 0;
    // One of them has not answered.
    bool silent = false;
    bool any_has_variables = false;
    std::string why;
  };

  // Some of them do not find each other, and nobody says who: these are left out in turn until the
  // rest find together.
  struct Search {
    // The next ones to be left out; false: there are no others, where so many have to be left.
    bool Next(std::size_t least);

    Seats all;
    std::size_t count = 0;     // how many are left out
    std::vector<char> is_out;  // of all
    std::vector<TaskId> out;
  };

  bool OneWorker() const override { return false; }
  std::vector<TaskId> Holders() const override;
  std::string WhereVariablesLive() const override;
  bool NeedsDrainingTask() const override;
  bool Needs(const TaskId& task) const override;
  void StartExecutors() override;
  bool ComesFirst(const TaskId& worker) const override;
  void FillStart(const TaskId& worker, v1::StartExecutor& start) override;
  bool TakesClosures(const TaskId& worker) const override { return home_ == worker; }
  std::string WaitsFor() const override;
  void OnHandedBack(const TaskId& worker, const std::string& why) override;
  void OnReady(const TaskId& worker) override;
  void OnStartEnded(const TaskId&) override { Regroup(); }
  void OnWorkerLost(const Member& worker) override;
  bool OnLeftOut(const TaskId&, const Status&) override { return false; }
  bool OnOtherProcess(const TaskId& worker, const v1::ExecutorEvent& event) override;
  std::string Consequence(const std::vector<ClosureKey>& had) const override;
  bool OnExecutorEnd(const TaskId& worker, const ExecutorEnd& end) override;

  std::size_t Least() const;
  std::size_t Most() const;
  bool IsReady(const Seat& seat) const;
  // As far as is known: the members of the group that stands, of an adopted view its leader, of a
  // new one everybody.
  bool HasVariables(const Seat& seat) const;
  // Somebody has the variables, and none of these, who wait for it: for a while.
  bool WouldLose(const Seats& seats);
  // Those who make the next steps: members that are left, in their order, then others.
  Seats NextSeats() const;
  // Asks them into a group, unless they are one.
  void Regroup();
  void Form(Seats seats, bool lost);
  void OnJoined(Generation generation, const Seat& seat, const Result<v1::CommandResult>& result);
  void OnFormed(const Round& round);
  void OnNotFormed(const Round& round);
  // Leaves others out of the next group; forgets the search when nobody is left to try.
  void SearchOn();
  void LeadBy(const std::optional<TaskId>& worker);
  // Nobody has the variables any more.
  void EndWithoutVariables(const std::string& why);

  std::uint32_t groups_ = 0;
  // The group that stands; empty: none has.
  Seats members_;
  // One of its members cannot reach another, or has said that it is over.
  bool broken_ = false;
  // One of them was killed from outside since the group was formed.
  bool killed_ = false;
  // Its members have met, or begin to.
  bool formed_ = false;
  std::optional<Round> forming_;
  // Who has not come to a group, and until when no other is asked to wait for it.
  std::map<TaskId, TimePoint> left_out_;
  // How many groups in a row did not come about though all have answered.
  int failures_ = 0;
  std::optional<Search> search_;
  // Since when some have waited for those who have the variables.
  std::optional<TimePoint> without_;
  // The first group waits a little for all workers that are starting.
  std::optional<TimePoint> first_ready_;
};

}  // namespace muster::coordinator
