// The functions that closures name by number, and what one of them is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/cancellation.h"
#include "dispatch/core/bookmark.h"
#include "dispatch/core/closure_error.h"

#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::dispatch {

// The executor's side of values that each worker has one of. Threading: builds run alone.
class WorkerValues;

// What an executor has for all closures of one driver. Lifetime: outlives their contexts.
struct ClosureHost {
  Cancellation& cancellation;
  WorkerValues& values;
  std::uint32_t worker_index = 0;
  // See ClosureContext::EndsInTime(); empty: it always does.
  std::function<bool()> ends_in_time = {};
};

// One execution. Lives as long as the call.
class ClosureContext {
 public:
  ClosureContext(ClosureId closure, std::span<const std::byte> arguments, ClosureHost host,
                 std::vector<std::byte>& value, Attempt attempt = {})
      : closure_(closure),
        attempt_(attempt),
        arguments_(arguments),
        host_(std::move(host)),
        value_(value) {}
  ~ClosureContext() {
    if (stop_) host_.cancellation.Forget(closure_);
  }
  ClosureContext(const ClosureContext&) = delete;
  ClosureContext& operator=(const ClosureContext&) = delete;

  ClosureId closure() const { return closure_; }
  // As core/attempt.h numbers it.
  Attempt attempt() const { return attempt_; }
  std::span<const std::byte> arguments() const { return arguments_; }
  // The executor's (Executor::Options).
  std::uint32_t worker_index() const { return host_.worker_index; }
  // Builds this worker's part of a per-worker value: Build() is to be called.
  bool build() const;
  // Its driver takes no result any more: end soon, with kCancelled.
  bool cancelled() const { return host_.cancellation.reached(closure_); }
  // Before what it has written is sent: from now on it is not given up at its deadline. False: it
  // has been, and its driver may have scheduled another one in its place.
  bool EndsInTime() const { return !host_.ends_in_time || host_.ends_in_time(); }
  // cancelled(), for who waits. One thread at a time may ask for it.
  std::stop_token stop_token() {
    if (!stop_) stop_ = host_.cancellation.Watch(closure_);
    return stop_->get_token();
  }
  // What future the driver's holds; empty at first.
  std::vector<std::byte>& value() { return value_; }

  // In a build: this worker's value.
  void Build(std::shared_ptr<void> value);
  // This worker's value of a per-worker one.
  //   The build's error, as an input's; kNotFound: there is none.  kUnavailable, as the worker's:
  //   it is built again soon.
  Result<std::shared_ptr<void>> ValueOf(ClosureId per_worker);
  // Says that what the function is about to return is not its own trouble.
  void Blame(Origin origin, Phase phase, std::string task);

  // Leaves a per-worker value at `place`; see core/bookmark.h. The last of each value counts.
  //   kResourceExhausted: a place of more than kMostBookmark bytes.
  Status LeaveBookmark(ClosureId per_worker, std::uint64_t sequence, std::string place);
  // In a build: what the value's last one on this worker was left with; sequence 0: nothing.
  const Bookmark& bookmark() const { return found_; }

  // What Blame() said; the user's otherwise.
  const ClosureError& blame() const { return blame_; }
  // For who runs it.
  void set_bookmark(const Bookmark& found) { found_ = found; }
  bool has_bookmarks() const { return !left_.empty(); }
  void AppendBookmarksTo(std::vector<std::byte>& to) const;

 private:
  const ClosureId closure_;
  const Attempt attempt_;
  const std::span<const std::byte> arguments_;
  const ClosureHost host_;
  std::vector<std::byte>& value_;
  std::optional<std::stop_source> stop_;
  ClosureError blame_;
  Bookmark found_;
  struct Left {
    ClosureId value;
    std::uint64_t sequence = 0;
    std::string place;
  };
  std::vector<Left> left_;
};

// Built before anything runs, alike in driver and executors.
class FunctionTable {
 public:
  // What it throws is the user's error, too.
  using Function = std::function<Status(ClosureContext&)>;

  // Its number: 0, 1, 2 ...
  std::uint32_t Add(std::string name, Function function);
  // Null: no such number.
  const Function* Find(std::uint32_t number) const;
  const std::string& name(std::uint32_t number) const { return functions_[number].first; }
  std::size_t size() const { return functions_.size(); }
  // Hash of the names in their order: tables that differ there do not work together.
  std::uint64_t hash() const { return hash_; }

 private:
  std::vector<std::pair<std::string, Function>> functions_;
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

// All registered functions of this executable.
FunctionTable& ProgramFunctions();

// Builds all objects of MUSTER_PROGRAM that this process has not built.
//   kUnknown: what a make function threw.  kInvalidArgument: it made nothing.
Status BuildProgramObjects();

namespace internal {
// Returns true, so that it can initialise something.
bool AddProgramObject(std::function<Status()> build);
}  // namespace internal

}  // namespace muster::dispatch
