// Reads a pipeline, and says where it stands.
//
// A position is the number of elements that were taken, with all that the order depends on: the
// seeds that were drawn and the pass. A restored iterator runs the pipeline up to there without
// computing what lies before, wherever that is possible (maps do not run, shuffles draw numbers,
// records are not read), and goes on with exactly the elements that were left.
//
// Threading: one consumer; Cancel() from any thread. Destruction stops the pipeline's threads and
// waits for them: for as long as a user's function takes that does not heed its stop token.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/data/pipeline/pipeline.h"

namespace muster::data {

class Iterator {
 public:
  struct Options {
    // Which pass over the data this is: shuffles that reshuffle give each pass its own order.
    std::uint64_t pass = 0;
    // Go on from here; its pass counts then.
    std::optional<std::string> position = std::nullopt;
    // Called first on each of the pipeline's threads.
    std::function<void()> on_thread_start = nullptr;
  };

  //   The pipeline's own error.
  //   kInvalidArgument: the position is none, or damaged.  kFailedPrecondition: it is another
  //   pipeline's.  kDataLoss: the data has fewer elements than were taken.
  static Result<std::unique_ptr<Iterator>> Make(const Pipeline& pipeline, Options options);
  static Result<std::unique_ptr<Iterator>> Make(const Pipeline& pipeline) {
    return Make(pipeline, Options{});
  }
  ~Iterator();
  Iterator(const Iterator&) = delete;
  Iterator& operator=(const Iterator&) = delete;

  // The next element; nothing at the end, again and again. An error of the pipeline is final: it
  // stands at its element's place and is given again. A position restored from before it tries that
  // element once more.
  //   kCancelled: Cancel().  kResourceExhausted: no thread can be had for a step that needs one.
  Item Next();
  // The same with a limit.
  //   kDeadlineExceeded: not there yet. The element is not lost: the next call gets it.
  Item Next(std::chrono::steady_clock::time_point deadline);

  // Ends a wait in Next(), and all that the pipeline does. For good.
  void Cancel();

  // The next element is number `taken`, counted from 0. Forward it passes over what lies between,
  // back it begins anew; behind the end there is nothing. After an error, too.
  //   The pipeline's own error.  kFailedPrecondition: Next() with a limit was used.
  Status Seek(std::int64_t taken);

  // Before the next element. Bytes that Make() understands; docs/data.md, Positions.
  std::string Position() const;
  // Elements taken, those before a restored position included.
  std::int64_t taken() const;
  std::uint64_t pass() const;

 private:
  struct State;
  explicit Iterator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Waits `length`, or until it is told to stop: false then. For functions that wait.
bool WaitFor(const std::stop_token& stop, std::chrono::nanoseconds length);

}  // namespace muster::data
