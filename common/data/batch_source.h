// The batches of a job's data: the batch of closure c is a function of (data spec, seed, c) alone,
// so a re-run or a resume reads the same examples, and each example is used exactly once in an
// epoch.
//
// Sources are indexed by record offset on first use; compressed files are decoded once into a
// bounded cache on this host. Shuffling permutes blocks, then records within windows of blocks.
//
// Threading: Batch() from any thread. Lifetime: none beyond the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/data/element.h"
#include "common/data/file_state.h"

namespace muster::v1 {
class DataSpec;
}

namespace muster::data {

class BatchSource {
 public:
  struct Options {
    // Record indexes and decoded copies of compressed files; made if missing. Shared by processes.
    std::string cache_directory;
    std::uint64_t seed = 0;
    std::uint32_t batch_size = 1;
    // Used where the spec does not say: true for training, false for evaluation.
    bool shuffle = true;
    // What the files must be, from an earlier files(). Empty: whatever they are.
    std::vector<FileState> expected = {};
  };

  // Finds, checks and indexes the files.
  //   kNotFound: a file or glob matches nothing (named, with this host's name).
  //   kDataLoss: a file is cut short or damaged (file, line or offset), beyond the skip budget, or
  //   is not what was expected.
  //   kInvalidArgument: the spec names no reader or a column that the files do not have.
  static Result<std::unique_ptr<BatchSource>> Open(const v1::DataSpec& spec, Options options);
  virtual ~BatchSource() = default;

  // Good records; the same on every host that has the same files.
  virtual std::uint64_t examples() const = 0;
  // ceil(examples / batch_size); floor with drop_remainder.
  virtual std::uint64_t batches_per_epoch() const = 0;
  // Columns of a batch, the first dimension -1.
  virtual const std::vector<ColumnInfo>& columns() const = 0;
  // Records skipped under the policy, counted once for each file and place.
  virtual std::uint64_t bad_records() const = 0;
  // Where the first `limit` of them are and what is wrong: "/a.csv:7 on host h: 3 fields, ...".
  virtual std::vector<std::string> BadRecordPlaces(std::size_t limit) const {
    (void)limit;
    return {};
  }

  // The files as they were when they were opened.
  virtual std::vector<FileState> files() const { return {}; }
  // Which records the batch of this closure has, without reading them: "records 3, 7-9 of /a.csv"
  // (good records, counted from 1 in each file). Empty: the source does not say.
  virtual std::string RecordsOf(std::uint64_t closure) {
    (void)closure;
    return {};
  }

  // The batch of closure c, c from 1: batch (c-1) mod batches_per_epoch of epoch
  // (c-1) div batches_per_epoch. The last one of an epoch may be smaller than batch_size.
  //   kDataLoss: as Open().  kOutOfRange: c = 0.
  virtual Result<Element> Batch(std::uint64_t closure) = 0;
};

// An error's text as one of `section` ("data", "evaluation.data"). What it says of "data.csv" it
// then says of "evaluation.data.csv"; a text that names no place in the spec gets the section in
// front.
std::string InSection(std::string_view section, std::string_view message);

}  // namespace muster::data
