#include "coordinator/fitness.h"

#include <algorithm>

#include "common/base/words.h"

namespace muster::coordinator {
namespace {

// How long a worker that cannot start an executor is left alone, doubled each time.
constexpr Millis kFirstPause{1'000};
constexpr Millis kLongestPause{60'000};
// Refusals for a peer's sake before they are told: most pass by themselves.
constexpr int kQuietRefusals = 4;

// The same on every host: the spec, the model, the program or the plan. What is left is the host's
// own: a file that is not there, a full disk, too many open files, a program that does not start.
bool IsUsersError(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kOutOfRange || status.code() == StatusCode::kDataLoss ||
         status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kInternal;
}

}  // namespace

Millis RestartDelay(int crashes) { return Millis(std::min(5'000, 100 << std::min(crashes, 6))); }

std::string LeftOutText(const TaskId& worker, const Status& why, Millis pause) {
  return fmt::format(
      "{} cannot start an executor and is left out of this job: {}; it is asked again in {} s, "
      "then less often",
      worker.ToString(), Message(why), pause.count() / 1000);
}

std::string RefusalText(const TaskId& worker, const Status& why, int refusals) {
  return fmt::format("{} could not start an executor {} times; it goes on trying: {}",
                     worker.ToString(), refusals, Message(why));
}

bool Fitness::IsPausing(const TaskId& worker, TimePoint now) const {
  const auto found = unfit_.find(worker);
  return found != unfit_.end() && now < found->second.until;
}

Status Fitness::EndsTooEarly(const TaskId& worker, bool from_outside, const std::string& how,
                             const Limits& limits) {
  Unfit& unfit = unfit_[worker];
  if (!from_outside) {
    if (++unfit.crashes < limits.own) return Ok();
    return Internal(
        "its executors end before they are ready, {} times until now, the last one by {}",
        unfit.crashes, how);
  }
  if (++unfit.kills < limits.kills) return Ok();
  return Unavailable(
      "its executors are killed before they are ready, {} times until now, the last one by {}: is "
      "there enough memory on its host?",
      unfit.kills, how);
}

int Fitness::NoteRefusal(const TaskId& worker, const Status& why) {
  Unfit& unfit = unfit_[worker];
  unfit.why = why;
  return ++unfit.refusals == kQuietRefusals ? unfit.refusals : 0;
}

Fitness::LeftOut Fitness::LeaveOut(const TaskId& worker, const Status& why, TimePoint now) {
  Unfit& unfit = unfit_[worker];
  const bool told = unfit.left_out && Message(unfit.why) == Message(why);
  const Millis pause = std::min(kLongestPause, kFirstPause * (1 << std::min(unfit.refusals, 6)));
  unfit.why = why;
  unfit.left_out = true;
  ++unfit.refusals;
  unfit.until = now + pause;
  return {.pause = pause, .told = told};
}

bool Fitness::AllRefuse(const std::vector<const Member*>& workers) const {
  const auto refuses = [this](const Member* worker) {
    const auto found = unfit_.find(worker->task);
    return found != unfit_.end() && found->second.left_out && IsUsersError(found->second.why);
  };
  return !workers.empty() && std::ranges::all_of(workers, refuses);
}

std::string Fitness::Reasons(const std::vector<const Member*>& workers) const {
  std::string text;
  std::size_t named = 0;
  for (const Member* worker : workers) {
    const auto found = unfit_.find(worker->task);
    if (found == unfit_.end() || found->second.why.ok()) return {};
    if (named++ >= kMostNamed) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", worker->task.ToString(),
                        Message(found->second.why));
  }
  return named <= kMostNamed ? text : fmt::format("{}; and {} more", text, named - kMostNamed);
}

}  // namespace muster::coordinator
