#include "coordinator/closure_queue.h"

#include <algorithm>

namespace muster::coordinator {

std::string Ids(std::span<const ClosureKey> closures) {
  std::string text;
  for (const ClosureKey& key : closures) text += (text.empty() ? "" : ",") + std::to_string(key.id);
  return text;
}

ClosureQueue::PutResult ClosureQueue::Put(ClosureKey key) {
  if (failed()) return PutResult::kFailed;
  IntervalSet& known = known_[key.kind];
  if (known.Contains(key.id)) return PutResult::kKnown;
  if (queue_.size() >= capacity_) return PutResult::kFull;
  known.Insert(key.id);
  queue_.push_back(key);
  return PutResult::kQueued;
}

void ClosureQueue::Settle(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last) {
  known_[kind].Append(first, last);
}

void ClosureQueue::Readmit(ClosureKey key) {
  known_[key.kind].Append(key.id, key.id);
  queue_.push_back(key);
}

std::optional<ClosureKey> ClosureQueue::Get() {
  if (failed() || queue_.empty()) return std::nullopt;
  const ClosureKey key = queue_.front();
  queue_.pop_front();
  in_flight_.insert(key);
  return key;
}

bool ClosureQueue::Take(ClosureKey key) {
  const auto found = std::find(queue_.begin(), queue_.end(), key);
  if (failed() || found == queue_.end()) return false;
  queue_.erase(found);
  in_flight_.insert(key);
  return true;
}

Status ClosureQueue::TakeFromFlight(ClosureKey key) {
  if (in_flight_.erase(key) == 0) {
    return Internal("closure {} is not in flight ({} are)", key.id, in_flight_.size());
  }
  return Ok();
}

Status ClosureQueue::PutBack(ClosureKey key, Place place) {
  MUSTER_TRY(TakeFromFlight(key));
  if (failed()) {
    known_[key.kind].Erase(key.id);
  } else if (place == Place::kFront) {
    queue_.push_front(key);
  } else {
    queue_.push_back(key);
  }
  return Ok();
}

Status ClosureQueue::MarkFinished(ClosureKey key) { return TakeFromFlight(key); }

Status ClosureQueue::MarkFailed(ClosureKey key, const Status& error) {
  MUSTER_TRY(TakeFromFlight(key));
  if (error_.ok()) error_ = error;
  return Ok();
}

std::optional<Status> ClosureQueue::Raise() {
  if (!failed() || !in_flight_.empty()) return std::nullopt;
  for (const ClosureKey& key : queue_) known_[key.kind].Erase(key.id);
  queue_.clear();
  return std::exchange(error_, Ok());
}

void ClosureQueue::Forget(v1::ClosureKind kind) {
  std::erase_if(queue_, [&](const ClosureKey& key) { return key.kind == kind; });
  IntervalSet& known = known_[kind];
  known.Clear();
  for (const ClosureKey& key : in_flight_) {
    if (key.kind == kind) known.Insert(key.id);
  }
}

}  // namespace muster::coordinator
