#include "strategy/tpu/split_tensor.h"

#include <algorithm>
#include <utility>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/tpu/topology.h"

namespace muster {
namespace {

using internal::on_core;
using internal::product_of;
using internal::text_of;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

torch::Tensor CopyTo(const torch::Tensor& value, device::Place place) {
  const device::PlaceScope there(place);
  // A sparse gradient, of a lookup, has no order of its memory.
  return value.is_sparse() ? value.clone() : value.clone(at::MemoryFormat::Contiguous);
}

// A copy on another core.
struct Move : torch::autograd::Function<Move> {
  static torch::Tensor forward(AutogradContext* saved, const torch::Tensor& value,
                               std::int64_t arena) {
    saved->saved_data["from"] = std::int64_t{device::ArenaOf(device::PlaceOf(value))};
    return CopyTo(value, device::PlaceOfArena(static_cast<int>(arena)));
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const auto from = static_cast<int>(saved->saved_data["from"].toInt());
    return {CopyTo(gradients[0], device::PlaceOfArena(from)), torch::Tensor()};
  }
};

// Part `at` of a value that is cut into `dimensions`, where it lies.
torch::Tensor Slice(torch::Tensor value, const std::vector<int>& dimensions,
                    const std::vector<int>& at) {
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d] == 1) continue;
    const auto dim = static_cast<std::int64_t>(d);
    const std::int64_t length = value.size(dim) / dimensions[d];
    value = value.narrow(dim, at[d] * length, length);
  }
  return value;
}

// The last dimension fastest.
std::vector<int> RowMajor(std::size_t rank) {
  std::vector<int> order;
  for (std::size_t d = rank; d > 0; --d) order.push_back(static_cast<int>(d) - 1);
  return order;
}

// Which part logical device `index` has.
std::vector<int> PartAt(int index, const std::vector<int>& dimensions) {
  return internal::digits_of(index, dimensions, RowMajor(dimensions.size()));
}

void RequireSameCores(const SplitTensor& a, const SplitTensor& b, std::string_view what) {
  if (a.cores() == b.cores()) return;
  raise(
      InvalidArgument("{} of split values that lie on different cores: those of one replica are "
                      "needed",
                      what));
}

// The parts of `value` with these numbers, given along both dimensions, joined on `core`.
torch::Tensor Join(const SplitTensor& value, std::pair<int, int> rows, std::pair<int, int> columns,
                   device::Place core) {
  const int across = value.partition_dimensions()[1];
  std::vector<torch::Tensor> lines;
  for (int row = rows.first; row < rows.second; ++row) {
    std::vector<torch::Tensor> line;
    for (int column = columns.first; column < columns.second; ++column) {
      line.push_back(on_core(value.part(row * across + column), core));
    }
    lines.push_back(line.size() == 1 ? line[0] : torch::cat(line, 1));
  }
  return lines.size() == 1 ? lines[0] : torch::cat(lines, 0);
}

void RequireMatrices(const SplitTensor& a, const SplitTensor& b) {
  RequireSameCores(a, b, "matmul");
  const std::vector<std::int64_t> left = a.sizes(), right = b.sizes();
  if (left.size() == 2 && right.size() == 2 && left[1] == right[0]) return;
  raise(InvalidArgument("matmul of split values: {} and {} are not two matrices that fit",
                        ShapeText(left), ShapeText(right)));
}

// Each core's product of a column of parts and a row of parts is a summand of the whole.
SplitTensor SumOfProducts(const SplitTensor& a, const SplitTensor& b) {
  const std::vector<device::Place>& cores = a.cores();
  std::vector<torch::Tensor> products, parts;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    const device::PlaceScope here(cores[i]);
    const int index = static_cast<int>(i);
    products.push_back(torch::matmul(a.part(index), b.part(index)));
  }
  for (const device::Place core : cores) {
    const device::PlaceScope here(core);
    torch::Tensor total = on_core(products[0], core);
    for (std::size_t i = 1; i < products.size(); ++i) total = total + on_core(products[i], core);
    parts.push_back(std::move(total));
  }
  return {std::move(parts), {1, 1}, cores};
}

// What `b`, which has at most the dimensions of `a` and in each its size or 1, adds to part `index`
// of `a`.
torch::Tensor BroadcastPart(const SplitTensor& a, const torch::Tensor& b, int index) {
  std::vector<int> dimensions = a.partition_dimensions();
  std::vector<int> at = PartAt(a.replicated() ? 0 : index, dimensions);
  const std::size_t missing = dimensions.size() - static_cast<std::size_t>(b.dim());
  dimensions.erase(dimensions.begin(), dimensions.begin() + static_cast<std::ptrdiff_t>(missing));
  at.erase(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(missing));
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (b.size(static_cast<std::int64_t>(d)) == 1) dimensions[d] = 1;
  }
  return Slice(b, dimensions, at);
}

void RequireBroadcast(const SplitTensor& a, const torch::Tensor& b) {
  const std::vector<std::int64_t> sizes = a.sizes();
  bool fits = b.defined() && b.dim() <= static_cast<std::int64_t>(sizes.size());
  for (std::int64_t d = 1; fits && d <= b.dim(); ++d) {
    const std::int64_t size = sizes[sizes.size() - static_cast<std::size_t>(d)];
    fits = b.size(-d) == size || b.size(-d) == 1;
  }
  if (fits) return;
  raise(InvalidArgument("a tensor of shape {} cannot be broadcast to a split value of shape {}",
                        b.defined() ? ShapeText(b) : "nothing", ShapeText(sizes)));
}

template <class Operation>
SplitTensor Elementwise(const SplitTensor& a, const torch::Tensor& b, const Operation& operation) {
  RequireBroadcast(a, b);
  std::vector<torch::Tensor> parts;
  for (int i = 0; i < a.num_logical_devices(); ++i) {
    const device::Place core = a.cores()[static_cast<std::size_t>(i)];
    const device::PlaceScope here(core);
    parts.push_back(operation(a.part(i), on_core(BroadcastPart(a, b, i), core)));
  }
  return {std::move(parts), a.partition_dimensions(), a.cores()};
}

template <class Operation>
SplitTensor Elementwise(const SplitTensor& a, const SplitTensor& b, std::string_view what,
                        const Operation& operation) {
  RequireSameCores(a, b, what);
  if (a.sizes() != b.sizes()) {
    raise(InvalidArgument("{} of split values of shapes {} and {}: they must be equal", what,
                          ShapeText(a.sizes()), ShapeText(b.sizes())));
  }
  const SplitTensor left = a.replicated() ? a.like(b) : a;
  const SplitTensor right = b.like(left);
  std::vector<torch::Tensor> parts;
  for (int i = 0; i < left.num_logical_devices(); ++i) {
    const device::PlaceScope here(left.cores()[static_cast<std::size_t>(i)]);
    parts.push_back(operation(left.part(i), right.part(i)));
  }
  return {std::move(parts), left.partition_dimensions(), left.cores()};
}

const auto kAdd = [](const torch::Tensor& x, const torch::Tensor& y) { return x + y; };
const auto kMultiply = [](const torch::Tensor& x, const torch::Tensor& y) { return x * y; };

}  // namespace

torch::Tensor internal::on_core(const torch::Tensor& value, device::Place core) {
  if (!value.defined()) {
    raise(InvalidArgument("an undefined tensor cannot go to core {}", core.Canonical()));
  }
  if (device::PlaceOf(value) == core) return value;
  return Move::apply(value, std::int64_t{device::ArenaOf(core)});
}

SplitTensor::SplitTensor(std::vector<torch::Tensor> parts, std::vector<int> dimensions,
                         std::vector<device::Place> cores)
    : parts_(std::move(parts)),
      dimensions_(std::move(dimensions)),
      cores_(std::move(cores)),
      replicated_(product_of(dimensions_) == 1) {}

SplitTensor SplitTensor::split(const torch::Tensor& value, std::vector<int> dimensions,
                               std::vector<device::Place> cores) {
  if (!value.defined()) raise(InvalidArgument("an undefined tensor cannot be split"));
  if (static_cast<std::int64_t>(dimensions.size()) != value.dim()) {
    raise(InvalidArgument(
        "a tensor of rank {} cannot be split by partition_dimensions {}: one number for each of "
        "its dimensions is needed",
        value.dim(), text_of(dimensions)));
  }
  long long parts = 1;
  for (std::size_t d = 0; d < dimensions.size(); ++d) {
    if (dimensions[d] < 1) {
      raise(
          InvalidArgument("partition_dimensions {}: dimension {} in {} parts; 1 and more are "
                          "allowed",
                          text_of(dimensions), d, dimensions[d]));
    }
    const std::int64_t size = value.size(static_cast<std::int64_t>(d));
    if (size % dimensions[d] != 0) {
      raise(
          InvalidArgument("dimension {} of a tensor of shape {} cannot be split: {} does not "
                          "divide into {} parts",
                          d, ShapeText(value), size, dimensions[d]));
    }
    parts = std::min<long long>(parts * dimensions[d], 1LL << 32);
  }
  if (parts != static_cast<long long>(cores.size())) {
    raise(InvalidArgument(
        "partition_dimensions {} make {} parts, but a replica has {} cores: it needs a part for "
        "each",
        text_of(dimensions), parts, cores.size()));
  }
  std::vector<torch::Tensor> pieces;
  for (std::size_t i = 0; i < cores.size(); ++i) {
    // A copy where the value lies, too: a part that is a view would keep all of it there.
    pieces.push_back(Move::apply(Slice(value, dimensions, PartAt(static_cast<int>(i), dimensions)),
                                 std::int64_t{device::ArenaOf(cores[i])}));
  }
  return {std::move(pieces), std::move(dimensions), std::move(cores)};
}

SplitTensor SplitTensor::replicate(const torch::Tensor& value, std::vector<device::Place> cores) {
  if (!value.defined()) raise(InvalidArgument("an undefined tensor cannot be replicated"));
  std::vector<torch::Tensor> copies;
  for (const device::Place core : cores) copies.push_back(on_core(value, core));
  return {std::move(copies), std::vector<int>(static_cast<std::size_t>(value.dim()), 1),
          std::move(cores)};
}

std::vector<std::int64_t> SplitTensor::sizes() const {
  std::vector<std::int64_t> sizes = parts_[0].sizes().vec();
  for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] *= dimensions_[d];
  return sizes;
}

const torch::Tensor& SplitTensor::part(int logical_device) const {
  if (logical_device >= 0 && logical_device < num_logical_devices()) {
    return parts_[static_cast<std::size_t>(logical_device)];
  }
  raise(OutOfRange("part {} of a value that is split to {} logical devices", logical_device,
                   num_logical_devices()));
}

std::string SplitTensor::device(int logical_device) const {
  (void)part(logical_device);
  return cores_[static_cast<std::size_t>(logical_device)].Canonical();
}

torch::Tensor SplitTensor::to_tensor() const {
  const device::Place here = device::PlaceScope::Current();
  std::vector<torch::Tensor> pieces;
  for (const torch::Tensor& part : parts_) {
    pieces.push_back(on_core(part, here));
    if (replicated_) return pieces[0];
  }
  // The last dimension first: its neighbours are next to each other.
  for (std::size_t d = dimensions_.size(); d > 0; --d) {
    const auto count = static_cast<std::size_t>(dimensions_[d - 1]);
    if (count == 1) continue;
    std::vector<torch::Tensor> joined;
    for (auto first = pieces.begin(); first != pieces.end();
         first += static_cast<std::ptrdiff_t>(count)) {
      joined.push_back(
          torch::cat(std::vector<torch::Tensor>(first, first + static_cast<std::ptrdiff_t>(count)),
                     static_cast<std::int64_t>(d) - 1));
    }
    pieces = std::move(joined);
  }
  return pieces[0];
}

torch::Tensor SplitTensor::sum() const {
  const device::Place here = device::PlaceScope::Current();
  torch::Tensor total;
  for (std::size_t i = 0; i < parts_.size() && (i == 0 || !replicated_); ++i) {
    torch::Tensor own;
    {
      const device::PlaceScope there(cores_[i]);
      own = parts_[i].sum();
    }
    own = on_core(own, here);
    total = total.defined() ? total + own : own;
  }
  return total;
}

SplitTensor SplitTensor::like(const SplitTensor& other) const {
  if (dimensions_ == other.dimensions_) return *this;
  std::vector<torch::Tensor> pieces;
  // Each core has what it needs of a replicated value.
  const torch::Tensor whole = replicated_ ? torch::Tensor() : to_tensor();
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    const torch::Tensor& from = replicated_ ? parts_[i] : whole;
    pieces.push_back(
        on_core(Slice(from, other.dimensions_,
                      other.replicated_ ? std::vector<int>(dimensions_.size())
                                        : PartAt(static_cast<int>(i), other.dimensions_)),
                cores_[i]));
  }
  return {std::move(pieces), other.dimensions_, cores_};
}

SplitTensor matmul(const SplitTensor& a, const SplitTensor& b) {
  RequireMatrices(a, b);
  const auto cores = static_cast<int>(a.cores().size());
  const int rows = a.partition_dimensions()[0], inner = a.partition_dimensions()[1];
  const int columns = b.partition_dimensions()[1];
  const bool summands = rows == 1 && columns == 1 && inner == cores && cores > 1 &&
                        b.partition_dimensions()[0] == cores;
  if (summands) return SumOfProducts(a, b);
  std::vector<int> grid = {1, 1};
  if (rows * columns == cores) {
    grid = {rows, columns};
  } else if (rows == cores) {
    grid = {rows, 1};
  } else if (columns == cores) {
    grid = {1, columns};
  }
  std::vector<torch::Tensor> parts;
  const bool whole = product_of(grid) == 1;
  // A replicated operand has all of it on each core, as its only part.
  const auto block = [](const SplitTensor& value, int core, std::pair<int, int> row,
                        std::pair<int, int> column) {
    if (value.replicated()) return value.part(core);
    return Join(value, row, column, value.cores()[static_cast<std::size_t>(core)]);
  };
  for (int core = 0; core < cores; ++core) {
    const device::PlaceScope here(a.cores()[static_cast<std::size_t>(core)]);
    const std::vector<int> at = PartAt(whole ? 0 : core, grid);
    const auto some = [](int parts_of_grid, int index, int parts_of_value) {
      return parts_of_grid == 1 ? std::pair(0, parts_of_value) : std::pair(index, index + 1);
    };
    parts.push_back(torch::matmul(
        block(a, core, some(grid[0], at[0], rows), {0, inner}),
        block(b, core, {0, b.partition_dimensions()[0]}, some(grid[1], at[1], columns))));
  }
  return {std::move(parts), std::move(grid), a.cores()};
}

SplitTensor matmul(const SplitTensor& a, const torch::Tensor& b) {
  return matmul(a, SplitTensor::replicate(b, a.cores()));
}
SplitTensor matmul(const torch::Tensor& a, const SplitTensor& b) {
  return matmul(SplitTensor::replicate(a, b.cores()), b);
}

SplitTensor operator+(const SplitTensor& a, const SplitTensor& b) {
  return Elementwise(a, b, "a sum", kAdd);
}
SplitTensor operator+(const SplitTensor& a, const torch::Tensor& b) {
  return Elementwise(a, b, kAdd);
}
SplitTensor operator+(const torch::Tensor& a, const SplitTensor& b) { return b + a; }
SplitTensor operator*(const SplitTensor& a, const SplitTensor& b) {
  return Elementwise(a, b, "a product", kMultiply);
}
SplitTensor operator*(const SplitTensor& a, const torch::Tensor& b) {
  return Elementwise(a, b, kMultiply);
}
SplitTensor operator*(const torch::Tensor& a, const SplitTensor& b) { return b * a; }

SplitTensor relu(const SplitTensor& a) {
  std::vector<torch::Tensor> parts;
  for (int i = 0; i < a.num_logical_devices(); ++i) {
    const device::PlaceScope here(a.cores()[static_cast<std::size_t>(i)]);
    parts.push_back(torch::relu(a.part(i)));
  }
  return {std::move(parts), a.partition_dimensions(), a.cores()};
}

}  // namespace muster
