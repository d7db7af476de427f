#include "dispatch/functions.h"

#include "dispatch/core/per_worker_values.h"
#include "dispatch/worker_values.h"

namespace muster::dispatch {

bool ClosureContext::build() const { return PerWorkerValues::IsPinned(closure_); }

void ClosureContext::Build(std::shared_ptr<void> value) {
  host_.values.Set(closure_, {.value = std::move(value)});
}

Result<std::shared_ptr<void>> ClosureContext::ValueOf(ClosureId per_worker) {
  WorkerValues::Entry found = host_.values.Get(per_worker);
  if (found.value.ok()) return std::move(found.value);
  Blame(found.again ? Origin::kWorker : Origin::kInput, Phase::kInputs, "");
  if (!found.again) return std::move(found.value);
  return Unavailable("a per-worker value that it uses is built again: {}",
                     Message(found.value.status()));
}

Status ClosureContext::LeaveBookmark(ClosureId per_worker, std::uint64_t sequence,
                                     std::string place) {
  if (place.size() > kMostBookmark) {
    return ResourceExhausted(
        "the place of its data takes {} bytes, at most {} are kept for the worker's next executor",
        place.size(), kMostBookmark);
  }
  std::erase_if(left_, [&](const Left& one) { return one.value == per_worker; });
  left_.push_back({.value = per_worker, .sequence = sequence, .place = std::move(place)});
  return Ok();
}

void ClosureContext::AppendBookmarksTo(std::vector<std::byte>& to) const {
  std::vector<Bookmark> all;
  for (const Left& one : left_) {
    all.push_back({.value = one.value,
                   .sequence = one.sequence,
                   .place = std::as_bytes(std::span(one.place))});
  }
  AppendBookmarks(all, to);
}

void ClosureContext::Blame(Origin origin, Phase phase, std::string task) {
  blame_.origin = origin;
  blame_.phase = phase;
  blame_.task = std::move(task);
}

FunctionTable& ProgramFunctions() {
  // Filled before main() begins, by whatever is linked: a function's own, so that it is there by
  // then.
  static FunctionTable functions;
  return functions;
}

namespace {

std::vector<std::function<Status()>>& ProgramBuilders() {
  // As above.
  static std::vector<std::function<Status()>> builders;
  return builders;
}

}  // namespace

bool internal::AddProgramObject(std::function<Status()> build) {
  ProgramBuilders().push_back(std::move(build));
  return true;
}

Status BuildProgramObjects() {
  for (const auto& build : ProgramBuilders()) MUSTER_TRY(build());
  return Ok();
}

std::uint32_t FunctionTable::Add(std::string name, Function function) {
  // FNV-1a, the terminating zero included: "ab", "c" is another table than "a", "bc".
  for (const char* c = name.c_str(); c <= name.c_str() + name.size(); ++c) {
    hash_ = (hash_ ^ static_cast<unsigned char>(*c)) * 0x100000001b3;
  }
  functions_.emplace_back(std::move(name), std::move(function));
  return static_cast<std::uint32_t>(functions_.size() - 1);
}

const FunctionTable::Function* FunctionTable::Find(std::uint32_t number) const {
  return number < functions_.size() ? &functions_[number].second : nullptr;
}

}  // namespace muster::dispatch
