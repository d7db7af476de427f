#include "collectives/process/group_state.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/words.h"

namespace muster::collectives {

GroupState::GroupState(int rank, std::vector<std::string> tasks)
    : rank_(rank), tasks_(std::move(tasks)), peers_(tasks_.size()) {}

void GroupState::OnProgress(int from, Progress progress) {
  peers_[static_cast<std::size_t>(from)].progress = progress;
}

void GroupState::OnEnd(int from, const Status& why) {
  OnProgress(from, {UINT64_MAX, 0});  // whatever it was in, it is not what we wait for
  End(why);
}

void GroupState::OnLeft(int from, Progress progress) {
  peers_[static_cast<std::size_t>(from)] = {.progress = progress, .left = true};
}

void GroupState::OnLost(int from, const Status& why) {
  if (peers_[static_cast<std::size_t>(from)].left) return;
  End(Unavailable("{} was lost: {}", task(from), Message(why)));
}

void GroupState::Fail(const Status& why) { End(why); }

void GroupState::End(const Status& why) {
  if (failure_.ok() && !why.ok()) failure_ = why;
}

void GroupState::Compare(Progress mine) {
  for (int r = 0; r < size() && mine.begun > 0; ++r) {
    const Progress& theirs = peers_[static_cast<std::size_t>(r)].progress;
    if (r == rank_ || theirs.begun != mine.begun || theirs.signature == mine.signature) continue;
    return End(InvalidArgument("Shape mismatch: in operation {}, {} and {} call different things",
                               mine.begun, task(rank_), task(r)));
  }
}

GroupState::News GroupState::Tick(Progress mine, TimePoint now) {
  News news;
  Compare(mine);
  if (!failure_.ok()) {
    if (!std::exchange(end_said_, true)) news.end = failure_;
    return news;
  }
  if (mine != seen_) {
    seen_ = mine;
    seen_since_ = now;
  }
  if (mine != said_ && now - seen_since_ >= kSayEvery) {
    said_ = mine;
    news.progress = mine;
  }
  return news;
}

Status GroupState::Check(std::uint64_t operation) const {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (!peers_[r].left || peers_[r].progress.done >= operation) continue;
    return Unavailable("{} has left the group after operation {}; this is operation {}", tasks_[r],
                       peers_[r].progress.done, operation);
  }
  return Ok();
}

std::vector<int> GroupState::NotBegun(std::uint64_t operation) const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && peers_[static_cast<std::size_t>(r)].progress.begun < operation) {
      missing.push_back(r);
    }
  }
  return missing;
}

std::string GroupState::Awaited(std::uint64_t operation, const std::vector<int>& waiting) const {
  // Who has not come makes those wait whose bytes are missing here.
  const std::vector<int> missing = NotBegun(operation);
  std::vector<std::string> names;
  for (const int r : missing.empty() ? waiting : missing) names.push_back(task(r));
  return fmt::format("{}{}", Joined(names),
                     missing.empty()      ? ""
                     : missing.size() > 1 ? " (which have not begun it)"
                                          : " (which has not begun it)");
}

}  // namespace muster::collectives
