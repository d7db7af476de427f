#include "coordinator/group_view.h"

#include <algorithm>

#include "common/base/forming_time.h"
#include "common/base/words.h"
#include "common/config/job_yaml/validate_strategy.h"
#include "coordinator/model_job.h"

namespace muster::coordinator {
namespace {

// Members find each other, or say that they do not: that is on its way for a second at most.
Millis JoinLimit(std::size_t members) { return TimeToForm(members) + Millis(1'000); }
// Once one executor is ready: others are about to be.
constexpr Millis kStartTogether{5'000};
constexpr Millis kTryAgain{200};
// Who has not come to a group is asked into another when this has passed.
constexpr Millis kLeftOut{5'000};
// When all answer and a group does not come about so often, members are left out of it.
constexpr int kFailuresInARow = 2;
// So many members, or fewer, are left out in all ways that there are: a try takes 3 s.
constexpr std::size_t kSearchedThrough = 8;
// Beyond it a job goes back to its checkpoint sooner than wait for those who have the variables.
constexpr Millis kWaitForVariables{60'000};

std::size_t LeastOf(const v1::StrategySpec& strategy) { return std::max(1u, strategy.workers()); }

}  // namespace

// ---- The kind.

std::vector<std::string> GroupKind::Missing() const {
  if (adopts()) return HomeKind::Missing();
  return world_.members.MissingWorkers(LeastOf(story_.spec().strategy()));
}

std::unique_ptr<View> GroupKind::NewView(ModelJob& job) {
  return std::make_unique<GroupView>(job, *this);
}

// ---- Its view.

std::size_t GroupView::Least() const { return LeastOf(story_.spec().strategy()); }

std::size_t GroupView::Most() const {
  return std::max<std::size_t>(Least(), story_.spec().strategy().max_workers());
}

std::string GroupView::WhereVariablesLive() const {
  const std::uint32_t devices = std::max(1u, story_.spec().strategy().devices());
  const std::string workers = Most() > Least() ? fmt::format("{} to {} workers", Least(), Most())
                                               : Counted(Least(), "worker");
  return fmt::format("{} in step{} ({})", workers,
                     devices == 1 ? "" : fmt::format(", {} devices each", devices),
                     config::NameOf(story_.spec().strategy().kind()));
}

// The leader saves; while there is none whoever led last is asked, in vain, until one does.
std::vector<TaskId> GroupView::Holders() const {
  if (home_) return {*home_};
  return {members_.empty() ? TaskId{"worker", 0} : members_[0].task};
}

// The steps cannot go on without it.
bool GroupView::Needs(const TaskId& task) const {
  if (std::ranges::find(members_, task, &Seat::task) == members_.end()) return false;
  return world_.draining || members_.size() - 1 < Least();
}

bool GroupView::NeedsDrainingTask() const {
  const auto draining =
      std::ranges::count_if(members_, [this](const Seat& seat) { return IsDraining(seat.task); });
  return draining > 0 && members_.size() - static_cast<std::size_t>(draining) < Least();
}

// They have the variables.
bool GroupView::ComesFirst(const TaskId& worker) const {
  if (members_.empty()) return View::ComesFirst(worker);
  return std::ranges::find(members_, worker, &Seat::task) != members_.end();
}

void GroupView::StartExecutors() {
  if (!running()) return;
  StartExecutorsOn(Most());
  RefreshReason();
}

// Others have made steps since the checkpoint: they give what they have.
void GroupView::FillStart(const TaskId&, v1::StartExecutor& start) {
  if (adopted() || formed_) return start.set_joins(true);
  start.set_restore_from(restored_from_);
}

std::string GroupView::WaitsFor() const {
  if (home_ || forming_) return {};
  const auto ready = static_cast<std::size_t>(
      std::ranges::count_if(executors_, [](const auto& one) { return one.second.ready; }));
  if (ready >= Least()) return {};
  return fmt::format("waiting for {}: {} of {} {} there; the steps done are kept by those who are",
                     Counted(Least() - ready, "more worker"), ready, Least(),
                     Agreeing(ready, "is", "are"));
}

void GroupView::OnReady(const TaskId& worker) {
  left_out_.erase(worker);
  if (!first_ready_) {
    first_ready_ = world_.scheduler.Now();
    (void)world_.scheduler.RunAfter(kStartTogether, Guard([this] { Regroup(); }));
  }
  Regroup();
}

void GroupView::OnWorkerLost(const Member& worker) {
  const TaskId task = worker.task;
  const std::string what =
      fmt::format("{} (process {}) was lost: {}", task.ToString(), worker.info.pid(), worker.how);
  AskWhatLostHad(worker, [this, task, what, fields = FieldsOf(worker)](const Had& had) mutable {
    fields.emplace_back("closures", Ids(had.closures));
    story_.Tell("WORKER_LOST", what + "; " + Consequence(had.closures), &task, fields,
                world_.logs.Last(story_.id(), task.ToString()));
  });
  StartExecutors();
  Regroup();
}

std::string GroupView::Consequence(const std::vector<ClosureKey>&) const {
  const auto left = static_cast<std::size_t>(
      std::ranges::count_if(members_, [this](const Seat& seat) { return IsReady(seat); }));
  if (left == 0) return "nobody is left who has the job's variables";
  if (left < Least()) {
    return fmt::format("{} {} the job's variables and {} for others", Counted(left, "worker"),
                       Agreeing(left, "keeps", "keep"), Agreeing(left, "waits", "wait"));
  }
  return fmt::format("{} {} on without it", Counted(left, "worker"), Agreeing(left, "goes", "go"));
}

// The step that ends executors again and again fails the job.
bool GroupView::OnExecutorEnd(const TaskId& worker, const ExecutorEnd& end) {
  if (!end.was_ready) return false;
  // Several of one group that are killed together, as for want of memory, count once.
  if (end.cause == v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE && std::exchange(killed_, true)) {
    return false;
  }
  const bool in_flight = !end.had.empty();
  const ClosureKey blamed =
      in_flight ? end.had.front() : ClosureKey{v1::CLOSURE_KIND_TRAIN, StepsDone() + 1};
  if (const auto why = kind_.BlameFor(blamed, in_flight, end.cause, false, end.what)) {
    GiveUp({blamed, *why}, worker, {});
    return true;
  }
  return false;
}

// ---- Groups

bool GroupView::IsReady(const Seat& seat) const {
  const auto found = executors_.find(seat.task);
  return found != executors_.end() && found->second.ready && found->second.number == seat.executor;
}

bool GroupView::HasVariables(const Seat& seat) const {
  if (formed_) return std::ranges::find(members_, seat) != members_.end();
  return !adopted() || seat.task == TaskId{"worker", static_cast<int>(story_.plan().home())};
}

bool GroupView::WouldLose(const Seats& seats) {
  const auto has = [this](const Seat& seat) { return HasVariables(seat); };
  if (std::ranges::any_of(seats, has)) return false;
  const bool there = std::ranges::any_of(executors_, [&](const auto& one) {
    const Seat seat{one.first, one.second.number};
    return IsReady(seat) && has(seat);
  });
  if (!there) return false;
  if (!without_) without_ = world_.scheduler.Now();
  return world_.scheduler.Now() - *without_ < kWaitForVariables;
}

GroupView::Seats GroupView::NextSeats() const {
  const TimePoint now = world_.scheduler.Now();
  const auto may = [&](const Seat& seat) {
    const auto left_out = left_out_.find(seat.task);
    return IsReady(seat) && (left_out == left_out_.end() || left_out->second <= now);
  };
  Seats seats;
  for (const Seat& seat : members_) {
    if (may(seat)) seats.push_back(seat);
  }
  const auto add = [&](const TaskId& task, const Executor& executor) {
    const Seat seat{task, executor.number};
    if (seats.size() >= Most() || !may(seat)) return;
    if (std::ranges::find(seats, seat) == seats.end()) seats.push_back(seat);
  };
  // In an adopted view the leader alone has the variables.
  if (home_ && executors_.contains(*home_)) add(*home_, executors_.at(*home_));
  for (const auto& [task, executor] : executors_) add(task, executor);
  return seats;
}

void GroupView::Regroup() {
  if (!running() || forming_ || giving_up()) return;
  Seats seats = NextSeats();
  const bool survivors =
      std::ranges::any_of(members_, [this](const Seat& seat) { return IsReady(seat); });
  if (formed_ && !survivors) {
    return EndWithoutVariables("all workers that had the job's variables are lost");
  }
  const bool lost = broken_ || std::ranges::any_of(members_, [&](const Seat& seat) {
                      return std::ranges::find(seats, seat) == seats.end();
                    });
  if (lost && home_ && !(members_.empty() || IsReady(members_[0]))) LeadBy(std::nullopt);
  if (seats.size() < Least() || WouldLose(seats)) {
    LeadBy(std::nullopt);
    return RefreshReason();
  }
  if (!broken_ && seats == members_) {
    if (!home_) LeadBy(members_[0].task);
    return;
  }
  // At the beginning all come at about the same time.
  const std::size_t coming = std::min(Most(), executors_.size());
  if (!formed_ && seats.size() < coming && left_out_.empty() && first_ready_ &&
      world_.scheduler.Now() - *first_ready_ < kStartTogether) {
    return;
  }
  Form(std::move(seats), lost);
}

// Tells all seats the same list under a new generation; the group stands when the last of them has
// answered (OnJoined).
void GroupView::Form(Seats seats, bool lost) {
  Round round;
  round.generation = Generation(InEpoch(world_.epoch, ++groups_));
  round.left = seats.size();
  round.seats = std::move(seats);
  v1::JoinGroup join;
  join.set_job_id(story_.id());
  join.set_epoch(world_.epoch.value());
  join.set_view(story_.plan().view());
  join.set_generation(round.generation.value());
  join.set_lost(lost);
  for (const Seat& seat : round.seats) {
    v1::GroupMember& member = *join.add_members();
    *member.mutable_task() = ToProto(seat.task);
    member.set_executor(seat.executor.value());
    member.set_address(executors_.at(seat.task).group_address);
  }
  forming_ = round;
  for (std::size_t rank = 0; rank < round.seats.size(); ++rank) {
    const Seat& seat = round.seats[rank];
    auto answered = Guard([this, generation = round.generation, seat](const auto& result) {
      OnJoined(generation, seat, result);
    });
    const Member* member = world_.members.Find(seat.task);
    if (member == nullptr) {
      world_.scheduler.Post([answered, seat]() mutable {
        answered(Result<v1::CommandResult>(Unavailable("{} is not there", seat.task.ToString())));
      });
      continue;
    }
    v1::Command command;
    *command.mutable_join_group() = join;
    command.mutable_join_group()->set_rank(static_cast<std::uint32_t>(rank));
    world_.commands.Send(*member, command, JoinLimit(round.seats.size()), answered);
  }
}

void GroupView::OnJoined(Generation generation, const Seat& seat,
                         const Result<v1::CommandResult>& result) {
  if (!forming_ || forming_->generation != generation) return;
  Round& round = *forming_;
  if (result.ok()) {
    round.any_has_variables = round.any_has_variables || result->group().has_variables();
  } else {
    ++round.failed;
    if (round.why.empty()) {
      round.why = fmt::format("{}: {}", seat.task.ToString(), Message(result.status()));
    }
    // It is stopped, or its worker is.
    if (result.status().code() == StatusCode::kDeadlineExceeded) {
      round.silent = true;
      left_out_[seat.task] = world_.scheduler.Now() + kLeftOut;
    }
  }
  if (--round.left > 0) return;
  const Round done = *std::exchange(forming_, std::nullopt);
  if (done.failed > 0) return OnNotFormed(done);
  OnFormed(done);
}

void GroupView::OnFormed(const Round& round) {
  if (!round.any_has_variables) {
    return EndWithoutVariables("no worker that is left has the job's variables");
  }
  failures_ = 0;
  search_.reset();
  without_.reset();
  broken_ = killed_ = false;
  const bool first = !std::exchange(formed_, true);
  members_ = round.seats;
  const std::string names =
      Joined(members_, kMostNamed, [](const Seat& seat) { return seat.task.ToString(); });
  story_.Tell(
      "GROUP_FORMED",
      fmt::format("{} {} the steps together {} step {}: {}", Counted(members_.size(), "worker"),
                  Agreeing(members_.size(), "makes", "make"), first ? "from" : "on from",
                  StepsDone(), names),
      nullptr,
      {{"workers", std::to_string(members_.size())},
       {"leader", members_[0].task.ToString()},
       {"step", std::to_string(StepsDone())}});
  LeadBy(members_[0].task);
  RefreshReason();
  // Somebody may have come, or be lost, meanwhile.
  Regroup();
}

// Each alone, from the last on, who cost the others least; then two, the last ones first, and so
// on.
bool GroupView::Search::Next(std::size_t least) {
  if (count != 1 && all.size() > kSearchedThrough) is_out.clear();
  if (std::ranges::next_permutation(is_out).found) return true;
  ++count;
  if (all.size() < least + count) return false;
  is_out.assign(all.size(), 0);
  std::fill(is_out.end() - static_cast<std::ptrdiff_t>(count), is_out.end(), 1);
  return true;
}

void GroupView::SearchOn() {
  for (const TaskId& task : search_->out) left_out_.erase(task);
  search_->out.clear();
  Seats left;
  do {
    if (!search_->Next(Least())) {
      search_.reset();
      failures_ = 0;
      return;
    }
    left.clear();
    for (std::size_t i = 0; i < search_->all.size(); ++i) {
      if (search_->is_out[i] == 0) left.push_back(search_->all[i]);
    }
  } while (WouldLose(left));
  for (const Seat& seat : search_->all) {
    if (std::ranges::find(left, seat) != left.end()) continue;
    search_->out.push_back(seat.task);
    left_out_[seat.task] = world_.scheduler.Now() + kLeftOut;
  }
}

// The next one is asked without those who have not answered. When all answer and some do not find
// each other, others are left out in turn.
void GroupView::OnNotFormed(const Round& round) {
  broken_ = broken_ || !members_.empty();
  if (search_ &&
      !std::ranges::all_of(search_->all, [&](const Seat& one) { return IsReady(one); })) {
    search_.reset();
    failures_ = 0;
  }
  if (!round.silent) {
    if (!search_ && ++failures_ >= kFailuresInARow) {
      search_ = Search{.all = round.seats, .is_out = {}, .out = {}};
    }
    if (search_) SearchOn();
  }
  story_.Tell("GROUP_FAILED",
              fmt::format("{} did not find together, they are asked again: {}",
                          Counted(round.seats.size(), "worker"), round.why),
              nullptr, {{"workers", std::to_string(round.seats.size())}, {"why", round.why}});
  (void)world_.scheduler.RunAfter(kTryAgain, Guard([this] { Regroup(); }));
  (void)world_.scheduler.RunAfter(kLeftOut + kTryAgain, Guard([this] {
                                    std::erase_if(left_out_, [this](const auto& one) {
                                      return one.second <= world_.scheduler.Now();
                                    });
                                    Regroup();
                                  }));
}

// It takes the closures and saves; nobody does while a group forms without its leader.
void GroupView::LeadBy(const std::optional<TaskId>& worker) {
  if (home_ == worker) return;
  if (worker) {
    SetHome(*worker);
    story_.Persist();
  } else {
    home_.reset();
  }
  TellMembers();
}

// The group that it is in is over for it, or it leads none.
void GroupView::OnHandedBack(const TaskId& worker, const std::string&) {
  if (home_ != worker || forming_) return;
  broken_ = true;
  Regroup();
}

// A member is ready again: its group is over, whoever is to blame.
bool GroupView::OnOtherProcess(const TaskId& worker, const v1::ExecutorEvent& event) {
  const auto is_ready = [&](const Seat& seat) { return seat.task == worker && IsReady(seat); };
  if (event.kind() != v1::ExecutorEvent::KIND_READY || forming_ ||
      std::ranges::none_of(members_, is_ready)) {
    return false;
  }
  broken_ = true;
  Regroup();
  return false;
}

void GroupView::EndWithoutVariables(const std::string& why) { job_.EndView("GROUP_LOST", why); }

}  // namespace muster::coordinator
