#include "dispatch/core/per_worker_values.h"

#include "dispatch/core/attempt.h"

namespace muster::dispatch {

ClosureId PerWorkerValues::Create(std::uint32_t function, std::span<const std::byte> arguments) {
  const ClosureId id = last_ = last_.Next();
  Value& value = values_[id];
  value.function = function;
  value.arguments = KeptBytes::CopyOf(arguments);
  value.places.resize(workers_.size());
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    value.places[i].result = results_.Create();
    if (workers_[i].here) {
      Await(workers_[i], id);
    } else {
      results_.SetAborted(value.places[i].result, workers_[i].why);
    }
  }
  return id;
}

void PerWorkerValues::Release(ClosureId value) {
  const auto found = values_.find(value);
  if (found == values_.end()) return;
  for (const Place& place : found->second.places) results_.Release(place.result);
  for (Worker& worker : workers_) waiting_ -= std::erase(worker.waiting, value);
  values_.erase(found);
  released_.push_back(value);
}

std::optional<ResultSlab::Slot> PerWorkerValues::At(ClosureId value, std::uint32_t worker) const {
  const auto found = values_.find(value);
  if (found == values_.end() || worker >= found->second.places.size()) return std::nullopt;
  return found->second.places[worker].result;
}

void PerWorkerValues::Join(std::uint32_t worker) {
  if (worker >= workers_.size()) workers_.resize(worker + 1);
  workers_[worker].here = true;
  AwaitNone(workers_[worker]);
  for (auto& [id, value] : values_) {
    while (value.places.size() < workers_.size()) {
      value.places.emplace_back().result = results_.Create();
    }
    Place& place = value.places[worker];
    if (place.given_up) continue;
    place.sent = false;
    results_.SetNotReady(place.result);
    Await(workers_[worker], id);
  }
}

void PerWorkerValues::Leave(std::uint32_t worker, const ClosureError& why) {
  if (worker >= workers_.size()) return;
  workers_[worker].here = false;
  workers_[worker].why = why;
  AwaitNone(workers_[worker]);
  for (auto& [id, value] : values_) {
    Place& place = value.places[worker];
    if (place.given_up) continue;
    place.sent = false;
    results_.SetAborted(place.result, why);
  }
}

std::optional<Assignment> PerWorkerValues::Next(std::uint32_t worker, std::uint64_t number) {
  if (!waiting(worker)) return std::nullopt;
  const ClosureId id = workers_[worker].waiting.front();
  workers_[worker].waiting.pop_front();
  --waiting_;
  Value& value = values_.at(id);
  Place& place = value.places[worker];
  place.sent = true;
  place.number = number;
  ++place.executions;
  Assignment build{.closure = id,
                   .attempt = MakeAttempt(epoch_, incarnation_, place.executions),
                   .function = value.function,
                   .arguments = value.arguments};
  if (place.sequence > 0) {
    sending_.assign(value.arguments.begin(), value.arguments.end());
    AppendBookmark(place.sequence, place.bookmark, sending_);
    build.flags = kFlagBookmark;
    build.arguments = sending_;
  }
  return build;
}

void PerWorkerValues::Remember(std::uint32_t worker, const Bookmark& bookmark) {
  const auto found = values_.find(bookmark.value);
  if (found == values_.end() || worker >= found->second.places.size()) return;
  Place& place = found->second.places[worker];
  if (bookmark.sequence <= place.sequence || bookmark.place.size() > kMostBookmark) return;
  place.sequence = bookmark.sequence;
  place.bookmark.assign(bookmark.place.begin(), bookmark.place.end());
}

std::uint64_t PerWorkerValues::TakeTurn(ClosureId value) {
  const auto found = values_.find(value);
  if (found == values_.end()) return 0;
  std::set<std::uint64_t>& returned = found->second.returned;
  if (returned.empty()) return found->second.turns++;
  return returned.extract(returned.begin()).value();
}

void PerWorkerValues::ReturnTurn(ClosureId value, std::uint64_t turn) {
  const auto found = values_.find(value);
  if (found != values_.end()) found->second.returned.insert(turn);
}

std::optional<std::uint64_t> PerWorkerValues::Running(std::uint32_t worker,
                                                      const ClosureResult& result) const {
  const auto found = values_.find(result.closure);
  if (found == values_.end() || worker >= found->second.places.size()) return std::nullopt;
  const Place& place = found->second.places[worker];
  const bool current =
      place.sent && result.attempt == MakeAttempt(epoch_, incarnation_, place.executions);
  return current ? std::optional(place.number) : std::nullopt;
}

void PerWorkerValues::OnResult(std::uint32_t worker, const ClosureResult& result) {
  Place& place = values_.at(result.closure).places[worker];
  place.sent = false;
  place.ends = {};
  if (result.error == nullptr) {
    results_.SetValue(place.result, result.value);
  } else {
    results_.SetError(place.result, *result.error);
  }
}

bool PerWorkerValues::Again(std::uint32_t worker, ClosureId value) {
  Place& place = values_.at(value).places[worker];
  if (place.executions == kMostExecutions) return false;
  place.sent = false;
  place.ends = {};
  Await(workers_[worker], value);
  return true;
}

std::optional<PerWorkerValues::Ends> PerWorkerValues::CountEnd(std::uint32_t worker,
                                                               ClosureId value, bool from_outside) {
  const auto found = values_.find(value);
  if (found == values_.end() || worker >= found->second.places.size()) return std::nullopt;
  Place& place = found->second.places[worker];
  if (place.given_up) return std::nullopt;
  ++place.ends.all;
  if (!from_outside) ++place.ends.itself;
  return place.ends;
}

void PerWorkerValues::GiveUp(std::uint32_t worker, ClosureId value, ClosureError error) {
  Place& place = values_.at(value).places[worker];
  place.sent = false;
  place.given_up = true;
  waiting_ -= std::erase(workers_[worker].waiting, value);
  results_.SetError(place.result, std::move(error));
}

}  // namespace muster::dispatch
