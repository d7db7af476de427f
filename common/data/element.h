// One element of a dataset: named columns over shared buffers. Knows nothing of libtorch; the
// engine and the strategies look at the buffers as tensors without copying.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"

namespace muster::data {

// Name, element type and shape of a column. In a batch the first dimension is the batch; -1 stands
// for a size that is not known before the data is read.
struct ColumnInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  bool operator==(const ColumnInfo&) const = default;
};

// The column of that name; nullptr: none has it.
inline const ColumnInfo* FindColumn(std::span<const ColumnInfo> columns, std::string_view name) {
  for (const ColumnInfo& column : columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

// A column's values: dense, row-major, little-endian, contiguous from `data`.
struct Column {
  ColumnInfo info;
  // Keeps the memory alive; `data` may point into the middle of it.
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;

  std::int64_t elements() const {
    std::int64_t n = 1;
    for (const std::int64_t size : info.shape) n *= size;
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * SizeOf(info.dtype); }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

// Columns in a fixed order; immutable once shared.
struct Element {
  std::vector<Column> columns;

  const Column* Find(std::string_view name) const {
    for (const Column& column : columns) {
      if (column.info.name == name) return &column;
    }
    return nullptr;
  }
};

}  // namespace muster::data
