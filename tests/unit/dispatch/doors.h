// Functions for tests of links: some of them wait at a door until the test opens it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "tests/unit/dispatch/cluster.h"

namespace muster::dispatch {

// A door that closures wait at until the test opens it.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  // True: it was opened; else the closure was cancelled.
  bool Pass(const ClosureContext& context) {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    while (!open_ && !context.cancelled()) changed_.wait_for(lock, std::chrono::milliseconds(1));
    return open_;
  }
  // Does not look whether it was cancelled.
  void PassDeaf() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    while (!open_) changed_.wait(lock);
  }
  void AwaitArrivals(int n) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return arrived_ >= n; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

struct Program {
  Program() {
    empty = functions.Add("empty", [](ClosureContext&) { return Ok(); });
    twice = functions.Add("twice", [](ClosureContext& context) {
      const std::int64_t number = 2 * NumberIn(context.arguments());
      const auto bytes = BytesOfValue(number);
      context.value().assign(bytes.begin(), bytes.end());
      return Ok();
    });
    count = functions.Add("count", [this](ClosureContext&) {
      ++counted;
      return Ok();
    });
    fail = functions.Add("fail", [](ClosureContext&) { return Unavailable("the user's own"); });
    thrower = functions.Add("thrower",
                            [](ClosureContext&) -> Status { throw std::runtime_error("thrown"); });
    wait = functions.Add("wait", [this](ClosureContext& context) {
      return gate.Pass(context) ? Ok() : Cancelled("it was told to end");
    });
    deaf = functions.Add("deaf", [this](ClosureContext&) {
      gate.PassDeaf();
      return Ok();
    });
    echo = functions.Add("echo", [](ClosureContext& context) {
      context.value().assign(context.arguments().begin(), context.arguments().end());
      return Ok();
    });
    build = functions.Add("build", [this](ClosureContext& context) {
      if (context.arguments().empty()) return InvalidArgument("no such file");
      context.Build(std::make_shared<std::int64_t>(100 + ++built));
      return Ok();
    });
    use = functions.Add("use", [](ClosureContext& context) -> Status {
      const ClosureId id(static_cast<std::uint64_t>(NumberIn(context.arguments())));
      MUSTER_TRY_ASSIGN(const std::shared_ptr<void> value, context.ValueOf(id));
      const auto bytes = BytesOfValue(*std::static_pointer_cast<std::int64_t>(value));
      context.value().assign(bytes.begin(), bytes.end());
      return Ok();
    });
  }
  FunctionTable functions;
  Gate gate;
  std::atomic<int> counted{0};
  std::atomic<int> built{0};
  std::uint32_t empty = 0, twice = 0, count = 0, fail = 0, thrower = 0, wait = 0, echo = 0,
                build = 0, use = 0, deaf = 0;
};

}  // namespace muster::dispatch
