// What a data file was when a job's data was first opened, compared whenever it is opened again: a
// batch is a function of the files, so other files are other batches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace muster::data {

struct FileState {
  std::string path;
  std::uint64_t size = 0;
  // 0: not compared.
  std::int64_t mtime_ns = 0;
  // Good ones.
  std::uint64_t records = 0;
  // Of where its records begin, or of the header that says so.
  std::uint64_t index_hash = 0;
};

// Looks at the files themselves, before they are read. One that is not there is passed over:
// whoever opens it says so.
//   kDataLoss: one has another size or time (named, found against expected).
Status CompareOnDisk(std::span<const FileState> expected);
// The same for what was read.
//   kDataLoss: other files, or one differs.
Status CompareFiles(std::span<const FileState> expected, std::span<const FileState> found);

}  // namespace muster::data
