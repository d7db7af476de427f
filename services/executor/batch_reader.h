// Reads the batches of coming closures while the present one computes.
//
// Threading: Request() from any thread, Take() from one; a thread of its own reads, in the order of
// the requests.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/data/batch_source.h"

namespace muster::executor {

class BatchReader {
 public:
  // Batches read ahead and not yet taken; a request beyond is dropped and Take() reads it then.
  static constexpr std::size_t kMostAhead = 4;

  explicit BatchReader(std::unique_ptr<data::BatchSource> source);
  // Waits for the batch that is being read.
  ~BatchReader();

  const data::BatchSource& source() const { return *source_; }

  // Reads the batch of this closure soon.
  void Request(std::uint64_t closure);
  // The batch of this closure; waits while it is being read. Errors are BatchSource::Batch()'s.
  Result<data::Element> Take(std::uint64_t closure);

 private:
  void Run();

  const std::unique_ptr<data::BatchSource> source_;
  Mutex mutex_;
  Condition changed_;
  bool stop_ MUSTER_GUARDED_BY(mutex_) = false;
  std::deque<std::uint64_t> wanted_ MUSTER_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> reading_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Result<data::Element>> ready_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::executor
