// Where workers that read parts of one dataset agree, step by step, whether to go on: all of them
// do as many steps, and one without data gives its replicas empty batches.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/data/element.h"
#include "strategy/base/error.h"

namespace muster {

// Threading: join() and rounds() from any thread; a session from one.
class InputLink {
 public:
  // What one worker brings to a step, and what all of them make of it.
  struct Report {
    bool has_data = false;
    // The columns of a batch, where it has seen one: what an empty batch is made of on a worker
    // that has not.
    std::optional<std::vector<data::ColumnInfo>> columns = std::nullopt;
    // Its input failed: all workers fail.
    std::optional<Error> error = std::nullopt;
  };
  // One pass over the data.
  class Session {
   public:
    virtual ~Session() = default;
    // Waits until every worker has reported. `error` is then the lowest failed worker's, which
    // it names.
    //   DEADLINE_EXCEEDED (thrown): a worker (named) has not come by the deadline.
    //   UNAVAILABLE (thrown): a worker (named) has ended its session.
    virtual Report agree(const Report& mine, std::chrono::steady_clock::time_point deadline) = 0;
  };

  virtual ~InputLink() = default;
  virtual int workers() const = 0;
  // A worker's n-th session meets the others' n-th.
  //   INVALID_ARGUMENT (thrown): no such worker.
  virtual std::unique_ptr<Session> join(int worker) = 0;

  // For workers that are threads of one process. `rounds`, when given, counts the agreements.
  static std::shared_ptr<InputLink> in_memory(
      int workers, std::shared_ptr<std::atomic<std::int64_t>> rounds = nullptr);
};

}  // namespace muster
