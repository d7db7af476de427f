// Reads a file's records as the index does, then once more as a batch does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/batch_source.h"
#include "common/data/declared_columns.h"
#include "common/data/record_format.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {

inline void ParseRecords(const data::RecordFormat& format, std::string_view content) {
  const auto parser = format.Begin("input", "input on host h", content);
  if (!parser.ok()) return;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<std::byte*> rows;
  // Each of its own size: a value that is too long is seen.
  for (const data::ColumnInfo& column : format.columns()) {
    memory.push_back(std::make_unique<std::byte[]>(data::RowBytes(column)));
    rows.push_back(memory.back().get());
  }
  for (std::uint64_t offset = (*parser)->first(); offset < content.size();) {
    const data::Parsed parsed = (*parser)->Parse(offset, rows);
    Require(parsed.next > offset, "a parser goes forward");
    Require(parsed.next <= content.size(), "a parser stays within the file");
    const data::Parsed again = (*parser)->Parse(offset, rows);
    Require(again.kind == parsed.kind && again.next == parsed.next, "a record is the same twice");
    offset = parsed.next;
  }
}

// A spec is a constant of its target.
inline std::vector<data::ColumnInfo> Columns(const v1::DataSpec& spec) {
  auto columns = data::DeclaredColumns(spec);
  Require(columns.ok(), "the target's spec is good");
  return *std::move(columns);
}

}  // namespace muster::fuzz
