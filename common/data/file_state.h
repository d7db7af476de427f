// What a data file was when a job's data was first opened, compared whenever it is opened again,
// and now and then while it is read: a batch is a function of the files, so other files are other
// batches.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/real_clock.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/data/source_file.h"

namespace muster::data {

struct FileState {
  std::string path;
  std::uint64_t size = 0;
  // 0: not compared.
  std::int64_t mtime_ns = 0;
  // Good ones.
  std::uint64_t records = 0;
  // Hash of where its records begin, or of the header that says so.
  std::uint64_t index_hash = 0;
};

// Looks at the files themselves, before they are read. One that is not there is passed over:
// whoever opens it says so.
//   kDataLoss: one has another size or time (named, found against expected).
Status CompareOnDisk(std::span<const FileState> expected);
// The same for what was read.
//   kDataLoss: other files, or one differs.
Status CompareFiles(std::span<const FileState> expected, std::span<const FileState> found);

// Looks after files that are read where they lie (mapped): one that is written to in place gives
// other bytes from one batch to the next. A file that another was moved over is not touched by
// that, so it is no change here; whoever opens it again sees it.
//
// Threading: any thread. Lifetime: the clock outlives it.
class FileWatch {
 public:
  // A file is looked at no more often than this.
  static constexpr Millis kEvery{2'000};

  explicit FileWatch(std::vector<SourceFile> files, const Clock& clock = RealClock());

  // The time to hand to Look(): one reading for a batch.
  TimePoint Now() const { return clock_->Now(); }
  // Before file `number` is read. The first call looks, later ones every kEvery; all of them from
  // the one on that found it changed.
  //   kDataLoss: the file itself has another size or time than when it was opened.
  Status Look(std::size_t number, TimePoint now) const;

 private:
  std::vector<SourceFile> files_;
  // When each is due, in the clock's ticks.
  std::unique_ptr<std::atomic<TimePoint::rep>[]> due_;
  const Clock* clock_;
};

}  // namespace muster::data
