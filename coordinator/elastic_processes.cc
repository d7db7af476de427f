// The places of an elastic job, their workers and processes.
#include <algorithm>
#include <map>
#include <set>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/cluster/worker_book.h"
#include "common/messages/status_proto.h"
#include "coordinator/allocation.h"
#include "coordinator/elastic_job.h"
#include "coordinator/launch_commands.h"
#include "coordinator/restarts.h"

namespace muster::coordinator {
namespace {

// A process that ends sooner after its start may have failed of itself.
constexpr Millis kQuick{60'000};
constexpr Millis kSoonAgain{250};
// Processes are told of ends no more often.
constexpr Millis kTellEvery{250};
// Behind one that came too late: those who have done all may be there without being seen.
constexpr Millis kLateAgain{10'000};

// What became of a process with its worker: no process has ended with these words.
std::string LostText(const std::string& how) { return "its worker was lost: " + how; }

// More than there are processes: those of lost workers keep theirs.
int PlacesFor(std::size_t most) { return static_cast<int>(2 * most + 8); }

}  // namespace

std::size_t ElasticJob::Live() const {
  return static_cast<std::size_t>(
      std::count_if(places_.begin(), places_.end(), [](const Place& one) { return one.live(); }));
}

ElasticJob::Place* ElasticJob::Find(LaunchNumber launch) {
  const auto found = std::find_if(places_.begin(), places_.end(), [&](const Place& one) {
    return one.stage != Stage::kVacant && one.launch == launch;
  });
  return found == places_.end() ? nullptr : &*found;
}

std::size_t ElasticJob::NumberOf(const Place& place) const {
  return static_cast<std::size_t>(&place - places_.data());
}

const Member* ElasticJob::WorkerOf(const Place& place) const {
  const Member* worker = world_.members.Find(place.worker);
  return worker != nullptr && worker->session == place.session ? worker : nullptr;
}

// --- Beginning.

// Workers that have no process of it, the least busy first.
std::vector<const Member*> ElasticJob::Choose() const {
  std::set<TaskId> taken;
  for (const Place& place : places_) {
    if (place.stage != Stage::kVacant) taken.insert(place.worker);
  }
  return FreeWorkers(world_, fitness_, taken);
}

bool ElasticJob::Replaces() const {
  return launch().restart() == v1::RESTART_POLICY_ON_FAILURE ||
         launch().restart() == v1::RESTART_POLICY_EXIT_CODE;
}

bool ElasticJob::MayFill() const {
  return phase_ == Phase::kBegun && !complete_ && !ending_ && !record().stop_requested() &&
         !world_.draining && (Replaces() || failures_ == 0) && !(late_ && Live() > 0) &&
         world_.scheduler.Now() >= not_before_;
}

// Gives vacant places to fit workers. Nobody is told before the row is on disk: a coordinator that
// comes back would not know of a process begun without it.
void ElasticJob::Fill() {
  const std::size_t live = Live();
  if (!MayFill() || live >= Most()) return;
  std::vector<const Member*> fit = Choose();
  fit.resize(std::min(fit.size(), Most() - live));
  // Numbers of places follow those of workers where all begin together.
  std::stable_sort(fit.begin(), fit.end(),
                   [](const Member* a, const Member* b) { return a->task < b->task; });
  std::vector<LaunchNumber> begun;
  for (const Member* worker : fit) {
    auto vacant = std::find_if(places_.begin(), places_.end(),
                               [](const Place& one) { return one.stage == Stage::kVacant; });
    if (vacant == places_.end()) {
      if (static_cast<int>(places_.size()) == PlacesFor(Most())) break;
      vacant = places_.insert(places_.end(), Place{});
    }
    (void)NextNumber();
    *vacant = {.stage = Stage::kPreparing,
               .worker = worker->task,
               .session = worker->session,
               .hostname = worker->info.hostname(),
               .address = {},
               .launch = number_,
               .pid = 0,
               .began = {},
               .how = {}};
    begun.push_back(number_);
  }
  if (begun.empty()) return;
  Show();
  story_.Persist(Guard([this, begun](const Status& status) {
    for (const LaunchNumber number : begun) {
      Place* const place = Find(number);
      if (place == nullptr || place->stage != Stage::kPreparing) continue;
      if (status.ok()) {
        SendPrepare(number);
      } else {
        *place = Place{};
      }
    }
    if (!status.ok()) FillAfter(Millis(1'000));
  }));
}

void ElasticJob::FillAfter(Millis pause) {
  (void)world_.scheduler.RunAfter(pause, Guard([this] { GoOn(); }));
}

void ElasticJob::SendPrepare(LaunchNumber number) {
  Place& place = *Find(number);
  const Member* worker = WorkerOf(place);
  if (worker == nullptr) return LeaveOut(place, Unavailable("it was lost before it could begin"));
  v1::Command command;
  v1::PrepareLaunch& prepare = *command.mutable_prepare_launch();
  prepare.set_job_id(id());
  prepare.set_launch(number.value());
  *prepare.mutable_spec() = launch();
  prepare.set_addresses(1);
  world_.commands.Send(*worker, command, world_.options.command_limit,
                       Guard([this, number](const auto& result) { OnPrepared(number, result); }));
}

void ElasticJob::OnPrepared(LaunchNumber number, const Result<v1::CommandResult>& result) {
  Place* const place = Find(number);
  if (place == nullptr || place->stage != Stage::kPreparing) return;
  if (!result.ok()) return LeaveOut(*place, result.status());
  if (result->launch().addresses_size() != 1) {
    return LeaveOut(*place, Internal("{} addresses of 1", result->launch().addresses_size()));
  }
  place->address = result->launch().addresses(0);
  place->stage = Stage::kReady;
  StartReady();
}

void ElasticJob::StartReady() {
  const auto count = [this](Stage stage) {
    return static_cast<std::size_t>(std::count_if(
        places_.begin(), places_.end(), [&](const Place& one) { return one.stage == stage; }));
  };
  const std::size_t ready = count(Stage::kReady);
  // The first ones find each other at once when all know all.
  if (!began_ && (count(Stage::kPreparing) > 0 || ready < Least())) return;
  if (ready == 0) return;
  SendBook();
  const std::string book = Book();
  for (Place& place : places_) {
    if (place.stage == Stage::kReady) SendStart(place, book);
  }
  Show();
  story_.Persist();
}

void ElasticJob::SendStart(Place& place, const std::string& book) {
  place.stage = Stage::kStarting;
  const Member* worker = WorkerOf(place);
  if (worker == nullptr) return;  // OnLost() or OnArrival() tells
  v1::Command command;
  v1::StartLaunch& start = *command.mutable_start_launch();
  start.set_job_id(id());
  start.set_launch(place.launch.value());
  start.set_workers(book);
  *start.add_processes() = ProcessOf(place);
  world_.commands.Send(*worker, command, world_.options.command_limit,
                       Guard([this, number = place.launch](const auto& result) {
                         OnStarted(number, result.status());
                       }));
}

// One more takes part, and the first makes the job one that runs; a worker that could not start its
// process is left out for a while.
void ElasticJob::OnStarted(LaunchNumber number, const Status& status) {
  Place* const place = Find(number);
  if (place == nullptr || place->stage != Stage::kStarting) return;
  if (!status.ok()) {
    const bool is_there = WorkerOf(*place) != nullptr;
    // A worker that was lost is told by OnLost(). One that is there could not start a process.
    if (!is_there && IsTransient(status.code())) return;
    return LeaveOut(*place, status, is_there);
  }
  fitness_.Forget(place->worker);
  place->stage = Stage::kRunning;
  place->heard = true;
  place->began = world_.scheduler.Now();
  const std::size_t live = Live();
  const TaskId task{"worker", static_cast<int>(NumberOf(*place))};
  NoteBegun();
  story_.Tell("PROCESS_STARTED", fmt::format("{} takes part", NameOf(NumberOf(*place))), &task,
              {{"worker", place->worker.ToString()},
               {"hostname", place->hostname},
               {"processes", std::to_string(live)}});
  GoOn();
}

// A process is known to run: with the first one the job has begun.
void ElasticJob::NoteBegun() {
  if (std::exchange(began_, true)) return;
  const std::size_t live = Live();
  v1::Job& job = *story_.record().mutable_job();
  if (job.started_ms() == 0) job.set_started_ms(story_.WallMs());
  story_.Tell(
      "JOB_RUNNING",
      fmt::format("{} begin; {} to {} train together", Counted(live, "process"), Least(), Most()),
      nullptr, {{"processes", std::to_string(live)}, {"restarts", std::to_string(job.restarts())}});
}

// The job fails only when every worker says that the job itself is wrong.
void ElasticJob::LeaveOut(Place& place, const Status& why, bool is_there) {
  const TaskId worker = place.worker;
  Vacate(place, Message(why));
  place = Place{};
  if (IsTransient(why.code()) && !is_there) {
    FillAfter(kSoonAgain);
  } else {
    const Millis pause = NoteUnfit(worker, why);
    if (Live() == 0 && fitness_.AllRefuse(world_.members.Up("worker"))) {
      return Refuse(Annotate(why, worker.ToString()));
    }
    FillAfter(pause);
  }
  StartReady();
  GoOn();
}

std::string ElasticJob::Book() const {
  cluster::WorkerBook book{.job = id(),
                           .least = static_cast<int>(Least()),
                           .most = static_cast<int>(Most()),
                           .places = PlacesFor(Most()),
                           .addresses = {},
                           .ended = complete_};
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].listed()) book.addresses[static_cast<int>(i)] = places_[i].address;
  }
  return cluster::ToText(book);
}

void ElasticJob::SendBook(const TaskId* alone) {
  const std::string book = Book();
  for (const Place& place : places_) {
    if (alone != nullptr && place.worker != *alone) continue;
    const bool runs = place.stage == Stage::kStarting || place.stage == Stage::kRunning;
    const Member* worker = runs ? WorkerOf(place) : nullptr;
    if (worker == nullptr) continue;
    v1::Command command;
    v1::UpdateLaunch& update = *command.mutable_update_launch();
    update.set_job_id(id());
    update.set_launch(place.launch.value());
    update.set_workers(book);
    world_.commands.Send(*worker, command, world_.options.command_limit, [](auto) {});
  }
}

v1::LaunchProcess ElasticJob::ProcessOf(const Place& place) const {
  std::string addresses;
  std::map<std::size_t, std::string> hosts;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].listed()) continue;
    addresses +=
        fmt::format(R"({}"{}": "{}")", addresses.empty() ? "" : ", ", i, places_[i].address);
    hosts[i] = places_[i].hostname;
  }
  return ProcessAt(NumberOf(place), fmt::format("{{{}}}", addresses), hosts, Most());
}

// --- What becomes of them.

bool ElasticJob::OnLaunchEvent(const Member& member, const v1::LaunchEvent& event) {
  const LaunchNumber told(event.launch());
  Place* const place = phase_ == Phase::kBegun ? Find(told) : nullptr;
  if (place == nullptr || place->worker != member.task) {
    // It is over: the worker was away when it was stopped, or has not heard of it yet.
    world_.commands.Send(member, StopCommand(id(), told, Millis(0), ended()),
                         world_.options.command_limit, [](auto) {});
    return true;
  }
  place->session = member.session;
  const bool first = !std::exchange(place->heard, true);
  if (event.pid() != 0) place->pid = event.pid();
  if (event.kind() == v1::LaunchEvent::KIND_EXITED) {
    OnExited(member, *place, event);
  } else {
    // It was not there when the others were asked to end.
    if (first && ending_) SendStop(*place, GraceLeft());
    if (place->stage == Stage::kLost) {
      place->stage = Stage::kRunning;
      if (!ending_) NoteBegun();
      if (!ending_) LetOneGo();
    }
    // It was in the others' books all the while. What they were told meanwhile it was not.
    if (first) SendBook(&member.task);
  }
  GoOn();
  return true;
}

// Tells the end as what it was (asked to, too late, done, failed), then makes the place free. One
// that ends well by itself completes the job; only a failure goes by the restart policy.
void ElasticJob::OnExited(const Member& member, Place& place, const v1::LaunchEvent& end) {
  const std::size_t number = NumberOf(place);
  const TaskId task{"worker", static_cast<int>(number)};
  const bool well = end.exit_code() == 0 && end.signal() == 0;
  const bool asked = end.asked() || place.leaving;
  const bool late = end.too_late() && !asked;
  const std::string what = fmt::format("{} {}", NameOf(number), EndText(end));
  const Story::Fields fields{{"pid", std::to_string(place.pid)},
                             {"how", end.how()},
                             {"worker", place.worker.ToString()},
                             {"hostname", place.hostname}};
  late_ = late;
  if (asked && !ending_) {
    const bool leaves = member.state == Member::State::kDraining;
    story_.Tell("PROCESS_LEFT",
                what + (leaves ? "; its worker was asked to end" : "; it was asked to"), &task,
                fields);
  } else if (late) {
    story_.Tell("PROCESS_LEFT", what + "; the run had ended before it could take part", &task,
                fields);
    GiveUpUnstarted();
    not_before_ = world_.scheduler.Now() + kLateAgain;
    FillAfter(kLateAgain);
  } else if (well && !asked) {
    complete_ = true;
    GiveUpUnstarted();
  } else if (!asked) {
    story_.Tell("PROCESS_ENDED", what, &task, fields,
                {end.last_lines().begin(), end.last_lines().end()});
    NoteFailure(place, end);
  }
  // A coordinator that is started again must not take it for one that has done its work.
  Vacate(place, end.how() + (asked ? kAsAsked : late ? kTooLate : ""));
}

// A process has ended by itself, and not well: the job ends by its restart policy, or goes on with
// those that are left and fills the place after a pause.
void ElasticJob::NoteFailure(const Place& place, const v1::LaunchEvent& end) {
  const std::size_t number = NumberOf(place);
  const auto fail = [&](const std::string& then) {
    WillFail(Internal("{} {}{}; `muster logs {} worker:{}` shows what it wrote", NameOf(number),
                      EndText(end), then, id(), number));
  };
  if (ending_) return;
  // The others have come to their end: what this one left undone nobody does any more.
  if (complete_) return fail(", when others had ended well");
  // It is no program for such a job: no other process of it is tried.
  if (end.final()) {
    fail(", as any other in its place would");
    return BeginEnding(EndGraceOf(launch()));
  }
  failures_ = world_.scheduler.Now() - place.began < kQuick ? failures_ + 1 : 1;
  const bool never = !Replaces();
  const auto most = launch().max_restarts() == 0
                        ? static_cast<std::uint32_t>(kDefaultRestarts * Most())
                        : launch().max_restarts();
  if (launch().restart() == v1::RESTART_POLICY_EXIT_CODE && IsOwnWord(end)) {
    fail("");
  } else if (!never && failures_ > most) {
    fail(fmt::format(", and {} processes before it, each within {} s of its start", most,
                     kQuick.count() / 1000));
  } else if (never && Live() <= Least()) {
    fail(fmt::format(", and fewer than {} are left", Least()));
  }
  if (fails()) return BeginEnding(EndGraceOf(launch()));
  if (never) return;
  story_.record().mutable_job()->set_restarts(record().job().restarts() + 1);
  const Millis pause = RestartPause(failures_ - 1);
  not_before_ = world_.scheduler.Now() + pause;
  FillAfter(pause);
}

// A process that failed is not started again, so that nobody is who could still bring the job to
// its least: whoever was left has been lost since.
bool ElasticJob::IsBeyondHope() const {
  const auto may_be_back = static_cast<std::size_t>(std::count_if(
      places_.begin(), places_.end(), [](const Place& one) { return one.stage == Stage::kLost; }));
  return began_ && !complete_ && !ending_ && !world_.draining && failures_ > 0 && !Replaces() &&
         Live() + may_be_back < Least();
}

void ElasticJob::Vacate(Place& place, const std::string& how) {
  const bool listed = place.listed();
  SendStop(place, Millis(0));
  place.stage = Stage::kVacant;
  place.how = how;
  place.leaving = false;
  if (world_.on_settled) world_.on_settled();
  if (listed) TellOfEnds();
}

// At once, and together with what comes soon after: where hundreds end in one second each would
// have all others told again.
void ElasticJob::TellOfEnds() {
  const TimePoint now = world_.scheduler.Now();
  if (now >= told_until_) {
    told_until_ = now + kTellEvery;
    return SendBook();
  }
  if (std::exchange(tells_, true)) return;
  (void)world_.scheduler.RunAfter(std::chrono::ceil<Millis>(told_until_ - now), Guard([this] {
                                    tells_ = false;
                                    TellOfEnds();
                                  }));
}

void ElasticJob::OnLost(const Member& member) {
  if (phase_ != Phase::kBegun || !Occupies(member.task)) return;
  late_ = false;  // who was lost may be who has done all
  for (Place& place : places_) {
    if (place.worker != member.task || !place.live()) continue;
    // What was on its way there may have arrived.
    const bool may_live = place.stage == Stage::kStarting || place.stage == Stage::kRunning;
    place.stage = may_live ? Stage::kLost : Stage::kVacant;
    place.heard = false;
    // Should it come back, who is one too many is looked for anew.
    place.leaving = false;
    place.how = may_live ? member.how : LostText(member.how);
  }
  story_.Tell("WORKER_LOST",
              fmt::format("{} (process {}) was lost: {}; the others go on without its process",
                          member.task.ToString(), member.info.pid(), member.how),
              &member.task,
              {{"pid", std::to_string(member.info.pid())},
               {"session", std::to_string(member.session.value())},
               {"how", member.how}});
  StartReady();
  GoOn();
}

// A worker that is the same process as before tells what it has; with another one it has ended.
void ElasticJob::OnArrival(const Member& member, const Arrival& arrival) {
  if (!arrival.same_process) fitness_.Forget(member.task);
  if (phase_ != Phase::kBegun) return;
  for (Place& place : places_) {
    if (place.worker != member.task || place.stage == Stage::kVacant) continue;
    if (!arrival.same_process) {
      // A coordinator that was started again does not know which process it was.
      if (place.session == SessionId()) {
        AwaitNews(place, member.session);
        continue;
      }
      Vacate(place, place.how.empty() ? "its worker was started anew" : LostText(place.how));
    } else if (place.stage == Stage::kPreparing || place.stage == Stage::kReady ||
               place.stage == Stage::kStarting) {
      // What was on its way to it may have been lost with the old stream.
      place.session = member.session;
      Vacate(place, "its worker has registered again");
    } else {
      place.session = member.session;
      if (!place.heard) AwaitNews(place, member.session);
      // The stop, too, may have been lost with the old stream.
      if (ending_ || place.leaving) SendStop(place, GraceLeft());
    }
  }
  // The others have heard of what has changed: with each arrival of hundreds it would be a flood.
  SendBook(&member.task);
  GoOn();
}

// With those that are back there may be too many: the last one goes.
void ElasticJob::LetOneGo() {
  for (auto place = places_.rbegin(); place != places_.rend() && Live() > Most(); ++place) {
    if (place->stage != Stage::kRunning || place->leaving) continue;
    place->leaving = true;
    SendStop(*place, EndGraceOf(launch()));
    return;
  }
}

// Its worker is there and may have the process, or may never have heard of it: which tells at once
// what it has (worker/launches.h), before its first heartbeat. Who has said nothing by then is back
// without it.
void ElasticJob::AwaitNews(const Place& place, SessionId session) {
  const auto look = [this, number = place.launch, session] {
    Place* const silent = Find(number);
    if (silent == nullptr || silent->heard) return;
    const Member* worker = world_.members.Find(silent->worker);
    if (worker == nullptr || worker->session != session) return;
    if (worker->heartbeat.sequence() == 0) return AwaitNews(*silent, session);
    silent->session = session;
    Vacate(*silent, "its worker is back without it");
    GoOn();
  };
  (void)world_.scheduler.RunAfter(kSoonAgain, Guard(look));
}

// Whose worker has not come until now to the coordinator that goes on with what one before it
// began.
void ElasticJob::OnAdoptLimit() {
  for (Place& place : places_) {
    if (place.stage != Stage::kRunning || place.session != SessionId()) continue;
    if (world_.members.Find(place.worker) != nullptr) continue;
    place.stage = Stage::kLost;
    place.how = "it has not come back with its processes";
  }
  GoOn();
}

// --- Ending.

void ElasticJob::GiveUpUnstarted() {
  for (Place& place : places_) {
    if (place.stage == Stage::kPreparing || place.stage == Stage::kReady) {
      Vacate(place, "its job ends before it has begun");
    }
  }
}

void ElasticJob::BeginEnding(Millis grace) {
  ending_ = true;
  GiveUpUnstarted();
  for (const Place& place : places_) {
    if (place.live()) SendStop(place, grace);
  }
  (void)world_.scheduler.RunAfter(grace + kEndMargin, Guard([this, ending = ++endings_] {
                                    if (endings_ == ending) Conclude();
                                  }));
}

void ElasticJob::WillFail(const Status& cause) {
  if (!fails()) SetStatus(cause, *story_.record().mutable_failure());
}

void ElasticJob::SendStop(const Place& place, Millis grace) {
  const Member* worker = WorkerOf(place);
  if (worker == nullptr) return;
  world_.commands.Send(*worker, StopCommand(id(), place.launch, grace), grace + kEndMargin,
                       [](auto) {});
}

}  // namespace muster::coordinator
