// A format behind one interface: numbered records that become columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/cache.h"
#include "common/data/element.h"
#include "common/data/file_state.h"

namespace muster::v1 {
class IdxData;
}  // namespace muster::v1

namespace muster::data {

// Random access to the good records of all files of a spec, numbered from 0 in the order of the
// files. Threading: any thread.
class Reader {
 public:
  virtual ~Reader() = default;

  virtual std::uint64_t records() const = 0;
  // What a batch has: the first dimension is -1.
  virtual const std::vector<ColumnInfo>& columns() const = 0;
  // Records that were skipped, and the first `limit` of their places ("/a.csv:7 on host h: ...").
  virtual std::uint64_t bad_records() const = 0;
  virtual std::vector<std::string> BadRecordPlaces(std::size_t limit) const = 0;

  // The files as they were when they were opened, in the order in which they are read.
  virtual std::vector<FileState> files() const = 0;
  // Where these records are: "records 3, 7-9 of /a.csv; record 1 of /b.csv". Long lists are cut.
  virtual std::string Name(std::span<const std::uint64_t> records) const = 0;
  // These records, in this order, in memory of their own. Every number is below records().
  //   kDataLoss: a file was changed after it was opened.
  virtual Result<Element> Read(std::span<const std::uint64_t> records) const = 0;
};

Result<std::unique_ptr<Reader>> OpenIdx(const v1::IdxData& spec, const Cache& cache);

// "records 3, 7-9 of /a.csv; record 1 of /b.csv": the file with paths[i] begins with record
// starts[i], and `starts` has one more at the end.
std::string NameRecords(std::span<const std::uint64_t> records,
                        std::span<const std::uint64_t> starts, std::span<const std::string> paths);

// Room for `rows` rows of `columns` in one piece of memory, each column aligned to 64 bytes.
//   kResourceExhausted: there is not that much memory.
Result<Element> AllocateBatch(const std::vector<ColumnInfo>& columns, std::size_t rows);
// Where a column of an AllocateBatch() element may be written, before it is shared.
inline std::byte* Writable(Column& column) { return const_cast<std::byte*>(column.data); }
// Bytes of one row.
std::size_t RowBytes(const ColumnInfo& column);

}  // namespace muster::data
