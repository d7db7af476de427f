// What an archive's module holds beside its variables: buffers, and parameters that do not train.
//
// With `buffers: worker_local` every executor trains with buffers of its own, and worker 0's count:
// at a quiesced cut they are fetched, saved with the checkpoint, and handed to whoever evaluates.
#include <algorithm>

#include "coordinator/model_job.h"
#include "coordinator/view.h"
#include "coordinator/view_save.h"

namespace muster::coordinator {
namespace {

constexpr Millis kAskAgain{300};
// About a minute: executors start again, workers come back.
constexpr int kMostFetches = 200;
// As much as an archive may hold, and what it takes to say so.
constexpr std::uint64_t kMostValues = (256u << 20) + (16u << 20);
// For those of a checkpoint, when a view is adopted: workers end executors that nobody has asked
// for within a minute.
constexpr Millis kRecallLimit{20'000};

}  // namespace

bool View::WorkerLocal() const {
  return HasArchive() && story_.spec().model().buffers() == v1::BUFFER_POLICY_WORKER_LOCAL;
}

// Before anybody is asked: a home says where it serves as soon as it has answered. Where one worker
// has all closures nobody starts anew in the view.
void View::RecallBuffers() {
  const bool saved = std::ranges::any_of(story_.checkpoints(),
                                         [](const auto& info) { return info.refused().empty(); });
  if (!WorkerLocal() || OneWorker() || !saved) return AskHolders();
  (void)world_.scheduler.RunAfter(
      kRecallLimit, Guard([this] { OnRecalled(DeadlineExceeded("no answer of the folder")); }));
  Checkpoints::Search search = NewestOfJob();
  search.verify = false;
  world_.checkpoints.FindNewest(std::move(search), Guard([this](Result<Checkpoints::Found> found) {
                                  OnRecalled(std::move(found));
                                }));
}

// Without them the view goes on all the same: those who go on have theirs. Executors that start
// before they come begin with the archive's.
void View::OnRecalled(Result<Checkpoints::Found> found) {
  const bool late = std::exchange(recalled_, true);
  if (found.ok() && buffers_version_ == 0) buffers_ = std::move(found->buffers);
  if (late) return;
  if (found.ok()) {
    for (const Checkpoints::Refusal& refusal : found->refused) story_.MarkRefused(refusal);
  }
  // Some may have been lost meanwhile.
  if (job_.TasksAreThere()) AskHolders();
}

const TaskId* View::BuffersOf() const {
  const TaskId* first = nullptr;
  for (const auto& [task, executor] : executors_) {
    if (!executor.ready) continue;
    if (executor.trained) return &task;
    if (first == nullptr) first = &task;
  }
  return first;
}

void View::FetchValues(bool frozen, ThenValues then) {
  const TaskId* task = BuffersOf();
  if (task == nullptr) {
    world_.scheduler.Post(
        Guard([then = std::move(then)] { then(Unavailable("no executor is ready")); }));
    return;
  }
  FetchPiece(*task, frozen, std::make_shared<std::string>(), std::move(then));
}

// Asks for what follows `got`, again and again until all of it is there, then reads it.
void View::FetchPiece(const TaskId& task, bool frozen, std::shared_ptr<std::string> got,
                      ThenValues then) {
  const Member* member = world_.members.Find(task);
  if (member == nullptr) return then(Unavailable("{} is not there", task.ToString()));
  v1::Command command;
  v1::GetValues& get = *command.mutable_get_values();
  get.set_job_id(story_.id());
  get.set_epoch(world_.epoch.value());
  get.set_view(story_.plan().view());
  get.set_frozen(frozen);
  get.set_offset(got->size());
  world_.commands.Send(
      *member, command, world_.options.command_limit,
      Guard([this, task, frozen, got, then = std::move(then)](Result<v1::CommandResult> result) {
        if (!result.ok()) return then(Annotate(result.status(), "values of " + task.ToString()));
        const v1::Piece& piece = result->values();
        got->append(piece.data());
        if (piece.total() > kMostValues || got->size() > piece.total() ||
            (piece.data().empty() && got->size() < piece.total())) {
          return then(Internal("{} sent {} bytes of its model's values, announced {}, limit {}",
                               task.ToString(), got->size(), piece.total(), kMostValues));
        }
        if (got->size() < piece.total()) return FetchPiece(task, frozen, got, then);
        v1::ModelValues values;
        if (!values.ParseFromString(*got)) {
          return then(Internal("{} sent values that are none", task.ToString()));
        }
        got->clear();
        if (buffers_of_ != task && WorkerLocal() && task.index != 0 && !OneWorker()) {
          story_.Tell(
              "BUFFERS_OF_ANOTHER",
              fmt::format(
                  "worker:0 is not there or has made no step: the buffers of {} are saved and "
                  "evaluated with",
                  task.ToString()),
              &task);
        }
        buffers_of_ = task;
        then(std::move(values));
      }));
}

void View::TakeBuffers(const v1::ModelValues& values) {
  if (!WorkerLocal()) return;
  buffers_ = values.buffers();
  buffers_version_ = InEpoch(world_.epoch, ++buffers_taken_);
  buffers_step_ = StepsDone();
}

bool View::BuffersReady() {
  const std::uint64_t step = StepsDone();
  if (!WorkerLocal() || buffers_step_ == step) return true;
  if (std::exchange(fetching_buffers_, true)) return false;
  FetchValues(/*frozen=*/false, [this](const Result<v1::ModelValues>& values) {
    if (values.ok()) {
      fetching_buffers_ = false;
      TakeBuffers(*values);
      return story_.parked().Recheck();
    }
    if (values.status().code() == StatusCode::kInternal) return job_.Fail(values.status());
    // The worker is gone or its executor starts again: whoever has the lowest index then.
    (void)world_.scheduler.RunAfter(kAskAgain, Guard([this] {
                                      fetching_buffers_ = false;
                                      story_.parked().Recheck();
                                    }));
  });
  return false;
}

void View::GiveBuffers(const TaskId& task) {
  Executor& executor = executors_.at(task);
  const Member* member = world_.members.Find(task);
  if (member == nullptr || executor.buffers == buffers_version_) return;
  executor.buffers = buffers_version_;
  v1::Command command;
  v1::SetBuffers& set = *command.mutable_set_buffers();
  set.set_job_id(story_.id());
  set.set_epoch(world_.epoch.value());
  set.set_view(story_.plan().view());
  set.set_version(buffers_version_);
  *set.mutable_buffers() = buffers_;
  // Unanswered it does no harm: closures name the version.
  world_.commands.Send(*member, command, world_.options.command_limit, [](auto) {});
}

// Before the parameter servers' files; then it is their turn.
void View::SaveValues(std::shared_ptr<Save> save) {
  if (!HasArchive()) return SaveOnHolders(save);
  FetchValues(/*frozen=*/true, [this, save](Result<v1::ModelValues> values) {
    if (!values.ok()) {
      if (values.status().code() == StatusCode::kInternal || ++save->tries >= kMostFetches) {
        return OnCommitted(save, values.status());
      }
      (void)world_.scheduler.RunAfter(kAskAgain, Guard([this, save] { SaveValues(save); }));
      return;
    }
    TakeBuffers(*values);
    save->tries = 0;
    world_.checkpoints.WriteValues(
        save->directory, *std::move(values),
        FromFolder<std::vector<v1::SaveReport>>(
            world_.options.save_limit, [this, save](Result<std::vector<v1::SaveReport>> reports) {
              if (!reports.ok()) {
                return OnCommitted(save, Annotate(reports.status(), "the archive's buffers"));
              }
              save->values = *std::move(reports);
              SaveOnHolders(save);
            }));
  });
}

}  // namespace muster::coordinator
