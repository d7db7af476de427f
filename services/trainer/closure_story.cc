#include "services/trainer/closure_story.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "common/base/task_name.h"
#include "common/base/words.h"
#include "common/messages/task_proto.h"

namespace muster::trainer {
namespace {

constexpr std::size_t kMostReruns = 64;
constexpr std::size_t kMostNews = 1'000;

v1::Task TaskOf(const std::string& name) {
  return ToProto(TaskIn(name).value_or(TaskId{.type = name}));
}

}  // namespace

std::string NameOf(const v1::Closure& closure) {
  return fmt::format("{} {}",
                     closure.kind() == v1::CLOSURE_KIND_EVALUATE ? "evaluation batch" : "closure",
                     closure.id());
}

void ClosureStory::NoteSchedule(ClosureId number, v1::ClosureKind kind, std::uint64_t id) {
  const MutexLock lock(runs_mutex_);
  const bool goes_on =
      !runs_.empty() && runs_.back().kind == kind && runs_.back().IdOf(number) == id;
  if (!goes_on) runs_.push_back({.first = number, .kind = kind, .id = id});
}

v1::Closure ClosureStory::ClosureOf(ClosureId number) const {
  const MutexLock lock(runs_mutex_);
  v1::Closure closure;
  const auto after = std::ranges::upper_bound(runs_, number, {}, &Run::first);
  if (after == runs_.begin()) return closure;
  const Run& run = *std::prev(after);
  closure.set_kind(run.kind);
  closure.set_id(run.IdOf(number));
  return closure;
}

void ClosureStory::OnRequeued(const std::string& task, std::span<const ClosureId> closures) {
  if (closures.empty()) return;
  const MutexLock lock(news_mutex_);
  // For a closure that was waiting already, this is the newer story.
  for (Rerun& rerun : reruns_) {
    for (const ClosureId number : closures) rerun.waiting.erase(number);
  }
  std::erase_if(reruns_, [](const Rerun& rerun) { return rerun.waiting.empty(); });
  reruns_.push_back({.from = task,
                     .waiting = {closures.begin(), closures.end()},
                     .count = closures.size(),
                     .placed = {}});
  if (reruns_.size() > kMostReruns) reruns_.erase(reruns_.begin());
}

// Once for each lost link, when all of its closures are given out again.
void ClosureStory::OnGivenAgain(const std::string& task, ClosureId closure) {
  const MutexLock lock(news_mutex_);
  for (auto rerun = reruns_.begin(); rerun != reruns_.end(); ++rerun) {
    if (rerun->waiting.erase(closure) == 0) continue;
    rerun->placed.push_back(fmt::format("{} on {}", ClosureOf(closure).id(), task));
    if (!rerun->waiting.empty()) continue;
    v1::ClosureNews::Rerun& news = *news_.emplace_back().mutable_rerun();
    *news.mutable_from() = TaskOf(rerun->from);
    news.set_closures(static_cast<std::uint32_t>(rerun->count));
    news.set_placed(Joined(rerun->placed));
    reruns_.erase(rerun);
    return;
  }
}

void ClosureStory::OnReturned(const std::string& task, ClosureId closure, const Status& why) {
  const MutexLock lock(news_mutex_);
  if (news_.size() >= kMostNews) return;
  v1::ClosureNews::Returned& news = *news_.emplace_back().mutable_returned();
  *news.mutable_task() = TaskOf(task);
  *news.mutable_closure() = ClosureOf(closure);
  news.set_why(Message(why));
}

void ClosureStory::OnFailed(const std::string& task, const v1::Closure& closure,
                            const std::string& why) {
  const MutexLock lock(news_mutex_);
  v1::ClosureNews::Failed& failed = *news_.emplace_back().mutable_failed();
  *failed.mutable_task() = TaskOf(task);
  *failed.mutable_closure() = closure;
  failed.set_why(why);
}

bool ClosureStory::HasNews() const {
  const MutexLock lock(news_mutex_);
  return !news_.empty();
}

std::vector<v1::ClosureNews> ClosureStory::TakeNews() {
  const MutexLock lock(news_mutex_);
  return std::exchange(news_, {});
}

}  // namespace muster::trainer
