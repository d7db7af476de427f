#include "tests/unit/coordinator/fake_driver.h"

#include "program/driver_links.h"

#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

TaskId TaskOf(const std::string& name) {
  const std::size_t colon = name.find(':');
  return {name.substr(0, colon), std::stoi(name.substr(colon + 1))};
}

}  // namespace

void FakeDriver::Begin() {
  const Result<Job*> job = cluster_.core->Find(start_.job_id());
  if (!job.ok() || (*job)->driver() != number()) return;
  v1::OpenJobRequest request;
  request.set_driver(number().value());
  Result<v1::OpenJobReply> opened = Unknown("no answer");
  (*job)->AsModel()->OpenJob(request, [&](auto reply) { opened = std::move(reply); });
  if (!opened.ok()) return;
  done_ = opened->steps_done();
  view_ = opened->plan().view();
  scheduled_ = done_;
  dispatcher_.emplace(dispatch::ClosureDispatcher::Options{
      .epoch = Epoch(start_.epoch()),
      .incarnation = static_cast<std::uint16_t>(number().value()),
      .credit = {.least = 2, .most = 2},
      .settled = ClosureId(done_),
      .given = ClosureId(opened->scheduled()),
      .name = [this](ClosureId closure) { return trainer::NameOf(story_.ClosureOf(closure)); }});
  for (const v1::ToProgram& message : std::exchange(waiting_, {})) Obey(message);
  if (opened->scheduled() > done_) {
    (void)Schedule(v1::CLOSURE_KIND_TRAIN, done_ + 1, opened->scheduled());
  }
  Say();
}

void FakeDriver::Obey(const v1::ToProgram& message) {
  if (!begun()) return waiting_.push_back(message);
  if (message.has_members()) SetMembers(message.members());
  if (message.has_verdict()) OnVerdict(message.verdict());
  if (message.has_pace()) {
    pace_ = message.pace();
    dispatcher_->set_paused(pace_.kind() == v1::ModelPace::KIND_PAUSE);
    dispatcher_->set_draining(pace_.kind() == v1::ModelPace::KIND_DRAIN);
  }
  Pump();
  Say();
}

void FakeDriver::Remove(const std::string& task) {
  const auto member = members_.extract(task);
  if (member.empty()) return;
  story_.OnRequeued(task, dispatcher_->RemoveWorker(member.mapped().first, Unavailable("gone")));
}

void FakeDriver::SetMembers(const v1::ProgramMembers& members) {
  std::map<std::string, std::uint64_t> now;
  for (const v1::ProgramWorker& worker : members.workers()) {
    now[FromProto(worker.task()).ToString()] = worker.incarnation();
  }
  for (auto member = members_.begin(); member != members_.end();) {
    const auto [task, known] = *member++;
    const auto found = now.find(task);
    if (found == now.end() || found->second != known.second) Remove(task);
  }
  for (const auto& [task, number] : now) {
    if (members_.contains(task)) continue;
    members_[task] = {dispatcher_->AddWorker(task, Incarnation(number), 1), number};
  }
}

void FakeDriver::OnVerdict(const v1::ExecutorVerdict& verdict) {
  const std::string task = FromProto(verdict.task()).ToString();
  Remove(task);
  const dispatch::ClosureDispatcher::Crash crash = dispatcher_->CrashWorker(
      task, verdict.how(), program::internal::CauseOf(verdict.cause()), {});
  v1::FromProgram message;
  v1::VerdictAnswer& answer = *message.mutable_answer();
  answer.set_number(verdict.number());
  for (const ClosureId number : crash.had) *answer.add_closures() = story_.ClosureOf(number);
  if (crash.given_up) {
    *answer.mutable_given_up() = story_.ClosureOf(*crash.given_up);
    answer.set_why(crash.why);
  }
  cluster_.time.Post(
      [this, message] { cluster_.core->OnDriverMessage(start_.job_id(), number(), message); });
}

Status FakeDriver::Schedule(v1::ClosureKind kind, std::uint64_t from, std::uint64_t to) {
  if (!begun()) return Unavailable("it has not begun");
  const bool trains = kind == v1::CLOSURE_KIND_TRAIN;
  if (trains) from = std::max(from, scheduled_ + 1);
  for (std::uint64_t id = from; id <= to; ++id) {
    story_.NoteSchedule(dispatcher_->last_scheduled().Next(), kind, id);
    const auto scheduled = dispatcher_->Schedule(0, {});
    if (scheduled.result != dispatch::ResultSlab::kNone) {
      dispatcher_->results().Release(scheduled.result);
    }
    if (scheduled.admission != dispatch::ClosureDispatcher::Admission::kQueued) {
      return Join().status();
    }
    if (trains) scheduled_ = id;
  }
  Say();
  Pump();
  Say();
  return Ok();
}

Result<bool> FakeDriver::Join() {
  if (!begun()) return false;
  if (dispatcher_->failed()) {
    const auto error = dispatcher_->Raise();
    if (!error) return false;
    // As the trainer says it.
    std::string text = Message(error->status);
    text.insert(std::min(text.find(": "), text.size()), " on " + error->task);
    return MakeStatus(error->status.code(), text);
  }
  return dispatcher_->idle();
}

void FakeDriver::Pump() {
  const auto send = [this](dispatch::WorkerHandle worker, const dispatch::Assignment& one) {
    for (const auto& [task, member] : members_) {
      if (member.first != worker) continue;
      if ((one.attempt.value() & 0xffff) > 1) story_.OnGivenAgain(task, one.closure);
      cluster_.at(TaskOf(task))
          .given.push_back({.job = start_.job_id(),
                            .view = view_,
                            .what = story_.ClosureOf(one.closure),
                            .number = one.closure,
                            .by = number(),
                            .attempt_number = one.attempt.value(),
                            .buffers_version = buffers});
    }
  };
  dispatcher_->Pump(cluster_.time.Now(), send);
}

void FakeDriver::OnResult(const TaskId& worker, const Given& given, const Status& status) {
  const auto member = members_.find(worker.ToString());
  if (!begun() || given.by != number() || member == members_.end()) return;
  dispatch::ClosureError error{
      .status = status,
      .origin = IsTransient(status.code()) ? dispatch::Origin::kWorker : dispatch::Origin::kUser};
  const auto outcome = dispatcher_->OnResult(member->second.first,
                                             {.closure = given.number,
                                              .attempt = Attempt(given.attempt_number),
                                              .error = status.ok() ? nullptr : &error},
                                             cluster_.time.Now());
  if (outcome == dispatch::ClosureDispatcher::Outcome::kAgain) {
    story_.OnReturned(worker.ToString(), given.number, status);
  } else if (outcome == dispatch::ClosureDispatcher::Outcome::kFailed) {
    story_.OnFailed(worker.ToString(), given.what, Message(status));
  } else if (outcome == dispatch::ClosureDispatcher::Outcome::kDone) {
    v1::ExecutorWork& work = work_[member->second.second];
    work.set_executor(member->second.second);
    work.set_closures(work.closures() + 1);
    if (given.what.kind() == v1::CLOSURE_KIND_TRAIN) {
      work.set_steps(work.steps() + 1);
      ended_[given.what.id()] = true;
      while (ended_.erase(done_ + 1) > 0) ++done_;
    }
  }
  Pump();
  Say();
}

v1::ModelReport FakeDriver::Report(bool with_news) {
  v1::ModelReport report;
  if (!begun()) return report;
  report.set_scheduled(scheduled_);
  report.set_done(done_);
  if (dispatcher_->drained()) report.set_drained(pace_.number());
  report.set_reruns(dispatcher_->reruns());
  for (const auto& [number, work] : work_) *report.add_executors() = work;
  if (!with_news) return report;
  for (v1::ClosureNews& one : story_.TakeNews()) *report.add_news() = std::move(one);
  return report;
}

void FakeDriver::Tick() {
  if (!begun()) return;
  Pump();
  Say();
}

// Soon, as over a pipe.
void FakeDriver::Say() {
  v1::FromProgram message;
  *message.mutable_model() = Report(true);
  cluster_.time.Post([&cluster = cluster_, job = start_.job_id(), driver = number(), message] {
    cluster.core->OnDriverMessage(job, driver, message);
  });
}

}  // namespace muster::coordinator::testing
