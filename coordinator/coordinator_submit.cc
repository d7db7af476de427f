// How a job comes in: looked at, checked by a worker, written, made.
#include <utility>

#include <fmt/format.h>

#include "common/base/trouble.h"
#include "common/messages/job_state.h"
#include "coordinator/coordinator.h"
#include "coordinator/plan.h"

namespace muster::coordinator {
namespace {

// For what a disk answers at once, if it is there.
constexpr Millis kLookLimit{10'000};
// Above the limit of a check that gets nowhere, below the deadline of the caller.
constexpr Millis kCheckPatience{115'000};

// Whether a job that has the name stands in the way of this one, which has it too.
absl::Status InTheWay(const Job& job, const v1::SubmitJobRequest& request) {
  const v1::Job& known = job.record().job();
  // What has ended stands in the way of nothing.
  if (job.ended()) return Ok();
  if (SpecHash(known.spec()) != SpecHash(request.spec())) {
    return AlreadyExists(
        "job {} ({}) has the name \"{}\" and another spec: stop it first, choose another name, or "
        "submit what was submitted then",
        job.id(), StateName(known.state()), request.spec().name());
  }
  if (!request.restart()) return Ok();
  return FailedPrecondition(
      "job {} ({}) runs: only a job that has ended begins anew; stop it first", job.id(),
      StateName(known.state()));
}

}  // namespace

template <class Value>
std::function<void(Value)> Coordinator::Within(Millis limit, const absl::Status& late,
                                               std::function<void(Value)> then) {
  auto open = std::make_shared<std::function<void(Value)>>(std::move(then));
  const auto answer = [open, here = lifeline_.Watch()](Value value) {
    auto once = std::exchange(*open, nullptr);
    // Whoever is dropped unanswered is told that the coordinator has ended (services' Responder).
    if (once && here()) once(std::move(value));
  };
  (void)parts_.scheduler.RunAfter(limit, [answer, late] { answer(Value(late)); });
  return answer;
}

// Answers for a job that has the name already: the same job again is that job, which goes on or
// begins anew if it had ended; another one is refused while the first runs. False: it is a new one.
bool Coordinator::Existing(const v1::SubmitJobRequest& request, const ThenSubmitted& then) {
  const v1::JobSpec& spec = request.spec();
  Job* const found = Named(spec.name());
  if (found == nullptr) return false;
  Job& job = *found;
  const v1::Job& known = job.record().job();
  if (const absl::Status clear = InTheWay(job, request); !clear.ok()) {
    then(clear);
    return true;
  }
  // What was edited since the other has ended is a job of its own.
  if (SpecHash(known.spec()) != SpecHash(spec)) return false;
  const v1::JobState before = known.state();
  if (request.restart() || (job.ended() && known.state() != v1::JOB_STATE_SUCCEEDED)) {
    if (const absl::Status used = FolderInUse(job.CheckpointRoot(), &job); !used.ok()) {
      then(used);
      return true;
    }
    job.Resume(request.restart());
    AdmitJobs();
  }
  // Its row may have changed just now.
  job.WhenWritten([&job, then, before](const absl::Status& written) {
    if (!written.ok()) return then(written);
    job.Describe([then, before](Result<v1::Job> described) {
      if (!described.ok()) return then(described.status());
      v1::SubmitJobReply reply;
      *reply.mutable_job() = *std::move(described);
      reply.set_existing(true);
      reply.set_before(before);
      then(std::move(reply));
    });
  });
  return true;
}

// Each step may take its time, so each looks again at what the ones before have seen.
void Coordinator::Submit(const v1::SubmitJobRequest& request, ThenSubmitted then) {
  if (world_.draining) {
    return then(Unavailable("the coordinator was asked to end: submit when it is back"));
  }
  const v1::JobSpec& spec = request.spec();
  std::vector<std::string> problems = FindProblems(spec);
  if (!problems.empty()) {
    if (request.dry_run()) return then(DryRun(spec, std::move(problems), {}));
    return then(InvalidArgument("{}", fmt::join(problems, "\n")));
  }
  if (request.dry_run()) {
    const Job* const there = Named(spec.name());
    const absl::Status clear = there == nullptr ? Ok() : InTheWay(*there, request);
    if (!clear.ok()) return then(clear);
  } else if (Existing(request, then)) {
    return;
  }
  LookForFiles(spec, [this, request, then](const absl::Status& file) {
    if (!file.ok()) return then(file);
    LookAtFolder(request.spec(), [this, request, then](const absl::Status& folder) {
      if (folder.ok()) return Check(request, then);
      if (request.dry_run()) return then(DryRun(request.spec(), {Message(folder)}, {}));
      then(folder);
    });
  });
}

std::set<std::string> Coordinator::FilesOf(const v1::JobSpec& spec) {
  std::set<std::string> files{spec.program().sha256(), spec.model().archive_sha256(),
                              spec.launch().sha256()};
  for (const v1::LaunchFile& file : spec.launch().files()) files.insert(file.sha256());
  files.erase("");
  return files;
}

void Coordinator::LookForFiles(const v1::JobSpec& spec, std::function<void(absl::Status)> then) {
  const std::set<std::string> files = FilesOf(spec);
  if (files.empty()) return then(Ok());
  const auto answer = Within<absl::Status>(
      kLookLimit,
      Unavailable("the coordinator's state directory has not answered for {} s: is its disk there?",
                  kLookLimit.count() / 1000),
      std::move(then));
  const std::string what = spec.has_launch()    ? "launch"
                           : spec.has_program() ? "program"
                                                : "model.archive";
  const auto left = std::make_shared<std::size_t>(files.size());
  for (const std::string& file : files) {
    parts_.has_file(file, [answer, file, what, left](bool there) {
      if (!there) {
        answer(FailedPrecondition("{}: no file with SHA-256 {} has been uploaded", what, file));
      } else if (--*left == 0) {
        answer(Ok());
      }
    });
  }
}

absl::Status Coordinator::FolderInUse(const std::string& folder, const Job* but) const {
  for (const auto& [number, job] : jobs_) {
    if (job.get() == but || job->ended() || job->CheckpointRoot() != folder) continue;
    return FailedPrecondition(
        "checkpoint.directory {} belongs to job {}, which has not ended ({}): give this job a "
        "checkpoint.directory of its own, or wait for that one's end",
        folder, job->id(), StateName(job->record().job().state()));
  }
  return Ok();
}

void Coordinator::LookAtFolder(const v1::JobSpec& spec, std::function<void(absl::Status)> then) {
  if (spec.checkpoint().directory().empty()) return then(Ok());
  const std::string folder = CheckpointFolder(spec);
  if (const absl::Status used = FolderInUse(folder, Named(spec.name())); !used.ok()) {
    return then(used);
  }
  v1::Job job;
  job.set_name(spec.name());
  parts_.checkpoints.Look(
      folder, ClaimantOf(job),
      Within<absl::Status>(kLookLimit,
                           FailedPrecondition("checkpoint.directory {} has not answered for {} s: "
                                              "is its file system there?",
                                              folder, kLookLimit.count() / 1000),
                           std::move(then)));
}

void Coordinator::Check(const v1::SubmitJobRequest& request, ThenSubmitted then) {
  const v1::JobSpec& spec = request.spec();
  if (members_.Up("worker").empty()) {
    if (request.dry_run()) {
      return then(Unavailable(
          "no worker is registered, and a dry run is answered by one; start one, or use "
          "muster-executor --check"));
    }
    return Accept(request, std::nullopt, then);  // looked at when a worker comes
  }
  const absl::Status late = DeadlineExceeded(
      "the workers still fetch the job's files after {} s; they go on: ask again in a while",
      kCheckPatience.count() / 1000);
  const auto checked = [this, request, then](Result<CheckOutcome> outcome) {
    if (request.dry_run()) {
      if (!outcome.ok()) return then(outcome.status());
      return then(DryRun(request.spec(), outcome->problems, *outcome));
    }
    // Every worker's disk is full or fails: no mistake of the spec's, and nothing to begin with.
    if (IsDiskTrouble(outcome.status().code())) return then(outcome.status());
    if (!outcome.ok()) return Accept(request, std::nullopt, then);
    if (!outcome->problems.empty())
      return then(InvalidArgument("{}", fmt::join(outcome->problems, "\n")));
    Accept(request, *std::move(outcome), then);
  };
  checker_.Check(spec, Within<Result<CheckOutcome>>(kCheckPatience, late, checked));
}

v1::SubmitJobReply Coordinator::DryRun(const v1::JobSpec& spec, std::vector<std::string> problems,
                                       const CheckOutcome& outcome) {
  v1::SubmitJobReply reply;
  if (spec.has_program()) {
    *reply.mutable_probe() = outcome.program;
  } else if (problems.empty() && !spec.has_launch()) {
    v1::JobRecord record;
    *record.mutable_job()->mutable_spec() = spec;
    record.set_training_examples(outcome.training_examples);
    for (const v1::VariableLayout& variable : outcome.parameters) {
      *record.add_parameters() = variable;
    }
    std::vector<v1::PsAddress> servers;
    for (const Member* ps : members_.Up("ps")) {
      servers.emplace_back().set_index(static_cast<std::uint32_t>(ps->task.index));
    }
    // A job that waits for servers is not wrong: its variables have no places yet.
    const bool nowhere = servers.empty();
    if (nowhere) servers.emplace_back();
    Result<v1::JobPlan> plan = MakePlan(record, servers);
    if (plan.ok()) {
      if (nowhere) plan->clear_ps();
      for (v1::VariableLayout& variable : *plan->mutable_variables()) {
        if (nowhere) variable.clear_shards();
      }
      *reply.mutable_plan() = *std::move(plan);
    } else {
      problems.push_back(Message(plan.status()));
    }
  }
  if (problems.empty()) reply.set_waits_for(WouldWaitFor(spec));
  for (std::string& problem : problems) reply.add_problems(std::move(problem));
  return reply;
}

// A job that is made for this question alone says it as the real one would.
std::string Coordinator::WouldWaitFor(const v1::JobSpec& spec) {
  StoredJob stored;
  stored.record.mutable_job()->set_name(spec.name());
  *stored.record.mutable_job()->mutable_spec() = spec;
  const std::string missing = Job::Make(world_, std::move(stored))->MissingTasks();
  if (!missing.empty()) return missing;
  return Running() < options_.max_running_jobs
             ? ""
             : fmt::format("another job's end (max-jobs is {})", options_.max_running_jobs);
}

// One at a time: what is found here must still be so when the row is on disk.
void Coordinator::Accept(const v1::SubmitJobRequest& request,
                         const std::optional<CheckOutcome>& outcome, const ThenSubmitted& asked) {
  const auto then = Within<Result<v1::SubmitJobReply>>(
      JournalWriter::kAnswerLimit,
      Unavailable("the disk of the coordinator's database has not answered for {} s: `muster jobs` "
                  "tells whether the job was taken; submitting it again does no harm",
                  JournalWriter::kAnswerLimit.count() / 1000),
      asked);
  accepting_.push_back([this, request, outcome, then] { AcceptNow(request, outcome, then); });
  if (accepting_.size() == 1) accepting_.front()();
}

// The one that was being accepted is, or was refused: it is the next one's turn.
void Coordinator::AcceptNext() {
  accepting_.pop_front();
  if (!accepting_.empty()) accepting_.front()();
}

// Makes the job when its row is on disk.
void Coordinator::AcceptNow(const v1::SubmitJobRequest& request,
                            const std::optional<CheckOutcome>& outcome, const ThenSubmitted& then) {
  // While a worker looked at it, the same may have been submitted again.
  if (Existing(request, then)) return AcceptNext();
  const std::string folder = CheckpointFolder(request.spec());
  absl::Status refused = FolderInUse(folder, nullptr);
  if (refused.ok()) refused = CheckName(request.spec().name());
  if (!refused.ok()) {
    then(refused);
    return AcceptNext();
  }
  // An id that is another job's name would hide it.
  const auto id = [&] { return fmt::format("{}-{}", request.spec().name(), last_number_); };
  do {
    last_number_ = last_number_.Next();
  } while (by_name_.contains(id()));
  const JobNumber number = last_number_;
  v1::JobRecord record;
  record.set_number(number.value());
  v1::Job& job = *record.mutable_job();
  job.set_name(request.spec().name());
  job.set_id(id());
  job.set_state(v1::JOB_STATE_PENDING);
  job.set_owner(request.owner());
  job.set_submitted_ms(
      std::chrono::duration_cast<Millis>(parts_.scheduler.WallNow().time_since_epoch()).count());
  *job.mutable_spec() = request.spec();
  record.set_begin_anew(request.restart());
  if (outcome) {
    record.set_checked(true);
    record.set_training_examples(outcome->training_examples);
    record.set_evaluation_examples(outcome->evaluation_examples);
    for (const v1::VariableLayout& variable : outcome->parameters) {
      *record.add_parameters() = variable;
    }
    record.mutable_data()->insert(outcome->data.begin(), outcome->data.end());
  }
  parts_.journal.SaveJob(
      record, [this, here = lifeline_.Watch(), record, number, then](const absl::Status& written) {
        if (!here()) return;
        if (written.ok()) {
          StoredJob stored;
          stored.record = record;
          auto made = Job::Make(world_, std::move(stored));
          by_id_[made->id()] = number;
          by_name_[record.job().name()] = number;
          Job& kept = *(jobs_[number] = std::move(made));
          AdmitJobs();
          v1::SubmitJobReply reply;
          *reply.mutable_job() = kept.Describe();
          then(std::move(reply));
        } else {
          parts_.journal.Forget(record.job().id());
          then(Annotate(written, fmt::format("the coordinator cannot write to {}",
                                             options_.state_directory)));
        }
        AcceptNext();
      });
}

}  // namespace muster::coordinator
