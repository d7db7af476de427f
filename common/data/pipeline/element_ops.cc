#include "common/data/pipeline/element_ops.h"

#include <cstring>

#include "common/base/words.h"
#include "common/data/reader.h"

namespace muster::data {
namespace {

std::int64_t RowElements(const ColumnInfo& info) {
  std::int64_t n = 1;
  for (std::size_t d = 1; d < info.shape.size(); ++d) n *= info.shape[d];
  return n;
}

// Columns of `infos` with `rows` rows, to be written.
Result<Element> Allocate(const std::vector<ColumnInfo>& infos, std::int64_t rows) {
  MUSTER_TRY_ASSIGN(Element element, AllocateBatch(infos, static_cast<std::size_t>(rows)));
  for (Column& column : element.columns) {
    if (column.info.dtype != DType::kString) continue;
    std::vector<std::string> values(static_cast<std::size_t>(column.elements()));
    column = MakeColumn(column.info.name, column.info.shape, std::move(values));
  }
  return element;
}

void CopyValues(Column& to, std::int64_t at, const Column& from) {
  const auto count = static_cast<std::size_t>(from.elements());
  if (to.info.dtype == DType::kString) {
    auto* const target = reinterpret_cast<std::string*>(Writable(to)) + at;
    std::copy_n(from.as<std::string>(), count, target);
  } else if (count > 0) {
    const std::size_t width = SizeOf(to.info.dtype);
    std::memcpy(Writable(to) + static_cast<std::size_t>(at) * width, from.data, count * width);
  }
}

std::string ToText(const Element& element) {
  return Joined(element.columns, kMostNamed,
                [](const Column& column) { return ToText(column.info); });
}

// `from`: the first dimension that counts.
bool SameColumns(const Element& a, const Element& b, std::size_t from) {
  const auto same = [&](const Column& x, const Column& y) {
    return x.info.name == y.info.name && x.info.dtype == y.info.dtype &&
           x.info.shape.size() == y.info.shape.size() &&
           std::equal(x.info.shape.begin() +
                          static_cast<std::ptrdiff_t>(std::min(from, x.info.shape.size())),
                      x.info.shape.end(),
                      y.info.shape.begin() +
                          static_cast<std::ptrdiff_t>(std::min(from, y.info.shape.size())));
  };
  return a.columns.size() == b.columns.size() &&
         std::equal(a.columns.begin(), a.columns.end(), b.columns.begin(), same);
}

Status CheckSame(std::span<const Element> elements, std::size_t from, const char* what) {
  for (const Element& element : elements) {
    if (SameColumns(elements[0], element, from)) continue;
    return InvalidArgument("{}: elements differ: {} after {}; make them equal by map() first", what,
                           ToText(element), ToText(elements[0]));
  }
  return Ok();
}

}  // namespace

std::string ToText(const ColumnInfo& info) {
  std::string shape;
  for (const std::int64_t size : info.shape) {
    shape += (shape.empty() ? "" : ", ") + (size < 0 ? "?" : fmt::format("{}", size));
  }
  return fmt::format("{} {} [{}]", info.name, NameOf(info.dtype), shape);
}

Result<std::int64_t> Rows(const Element& element) {
  if (element.columns.empty()) return InvalidArgument("an element without columns has no rows");
  for (const Column& column : element.columns) {
    if (column.info.shape.empty()) {
      return InvalidArgument(
          "column {} has no batch dimension. Call the batch method on the input Dataset in order "
          "to be able to split your input across N replicas",
          ToText(column.info));
    }
    if (column.info.shape[0] != element.columns[0].info.shape[0]) {
      return InvalidArgument("columns of one batch have different numbers of rows: {} and {}",
                             ToText(element.columns[0].info), ToText(column.info));
    }
  }
  return element.columns[0].info.shape[0];
}

Element SliceRows(const Element& element, std::int64_t begin, std::int64_t end) {
  Element slice = element;
  for (Column& column : slice.columns) {
    column.data +=
        static_cast<std::size_t>(begin * RowElements(column.info)) * Stride(column.info.dtype);
    column.info.shape[0] = end - begin;
  }
  return slice;
}

Element Row(const Element& element, std::int64_t row) {
  Element one = SliceRows(element, row, row + 1);
  for (Column& column : one.columns) column.info.shape.erase(column.info.shape.begin());
  return one;
}

Result<Element> Copy(const Element& element) {
  std::vector<ColumnInfo> infos;
  for (const Column& column : element.columns) {
    infos.push_back(column.info);
    infos.back().shape.insert(infos.back().shape.begin(), 1);
  }
  MUSTER_TRY_ASSIGN(Element copy, Allocate(infos, 1));
  for (std::size_t c = 0; c < copy.columns.size(); ++c) {
    CopyValues(copy.columns[c], 0, element.columns[c]);
    copy.columns[c].info.shape = element.columns[c].info.shape;
  }
  return copy;
}

Result<Element> Stack(std::span<const Element> elements) {
  MUSTER_TRY(CheckSame(elements, 0, "batch"));
  std::vector<ColumnInfo> infos;
  for (const Column& column : elements[0].columns) {
    infos.push_back(column.info);
    infos.back().shape.insert(infos.back().shape.begin(), -1);
  }
  MUSTER_TRY_ASSIGN(Element batch, Allocate(infos, static_cast<std::int64_t>(elements.size())));
  for (std::size_t c = 0; c < infos.size(); ++c) {
    std::int64_t at = 0;
    for (const Element& element : elements) {
      CopyValues(batch.columns[c], at, element.columns[c]);
      at += element.columns[c].elements();
    }
  }
  return batch;
}

Result<Element> JoinRows(std::span<const Element> elements) {
  if (elements.size() == 1) return elements[0];
  MUSTER_TRY(CheckSame(elements, 1, "rebatch"));
  std::int64_t rows = 0;
  std::vector<ColumnInfo> infos;
  for (const Element& element : elements) {
    MUSTER_TRY_ASSIGN(const std::int64_t more, Rows(element));
    rows += more;
  }
  for (const Column& column : elements[0].columns) infos.push_back(column.info);
  MUSTER_TRY_ASSIGN(Element joined, Allocate(infos, rows));
  for (std::size_t c = 0; c < infos.size(); ++c) {
    std::int64_t at = 0;
    for (const Element& element : elements) {
      CopyValues(joined.columns[c], at, element.columns[c]);
      at += element.columns[c].elements();
    }
  }
  return joined;
}

Element EmptyRows(const std::vector<ColumnInfo>& columns) {
  static const std::string kNoValues[1];
  Element element;
  for (ColumnInfo info : columns) {
    for (std::int64_t& size : info.shape) size = std::max<std::int64_t>(size, 0);
    if (!info.shape.empty()) info.shape[0] = 0;
    // A place to point to: no library likes a null pointer, of no bytes either.
    element.columns.push_back({.info = std::move(info),
                               .owner = nullptr,
                               .data = reinterpret_cast<const std::byte*>(kNoValues)});
  }
  return element;
}

}  // namespace muster::data
