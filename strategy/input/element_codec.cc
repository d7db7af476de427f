#include "strategy/input/element_codec.h"

#include <array>
#include <utility>

#include "common/base/status.h"
#include "common/base/words.h"
#include "common/data/pipeline/element_ops.h"
#include "common/torch/dtypes.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/values/internal/copies.h"

namespace muster::internal {

static_assert(std::string_view(kOnlyColumn) == data::kValueColumn);

namespace {

// The deleter of a column whose memory is a card's: it knows the tensor.
struct CardMemory {
  torch::Tensor tensor;
  void operator()(const void*) { tensor.reset(); }
};

}  // namespace

torch::ScalarType scalar_type(DType dtype) {
  return ScalarTypeOf(dtype).value_or(torch::ScalarType::Undefined);
}

torch::Tensor to_tensor(const data::Column& column) {
  if (const auto* const card = std::get_deleter<CardMemory>(column.owner)) return card->tensor;
  const torch::ScalarType type = scalar_type(column.info.dtype);
  if (type == torch::ScalarType::Undefined) {
    raise(InvalidArgument("column {} is no tensor; take it as a std::string, or map it to numbers",
                          data::ToText(column.info)));
  }
  const auto options = torch::TensorOptions().dtype(type);
  // Columns are shared: the tensor may be read by many.
  auto* const memory = const_cast<std::byte*>(column.data);
  return torch::from_blob(memory, column.info.shape, [owner = column.owner](void*) {}, options);
}

torch::Tensor to_number(const data::Column& column) {
  torch::Tensor tensor = to_tensor(column);
  if (tensor.numel() != 1) {
    raise(InvalidArgument(
        "column {} has {}, and the dataset's type is one number; batches, and the empty ones of "
        "replicas for which nothing is left, need tensors: map numbers to tensors before them",
        data::ToText(column.info), Counted(static_cast<std::uint64_t>(tensor.numel()), "value")));
  }
  return tensor;
}

data::Column card_column(const data::Column& column, device::Place place) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor there = copy_to(to_tensor(column), place);
  const void* const memory = there.data_ptr();
  return {.info = column.info,
          .owner = std::shared_ptr<const void>(memory, CardMemory{there}),
          .data = static_cast<const std::byte*>(memory)};
}

data::Column to_column(std::string name, const torch::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != torch::kStrided || !tensor.device().is_cpu()) {
    raise(InvalidArgument("column {}: a dense tensor in host memory is wanted", name));
  }
  const DType dtype = DTypeOf(tensor.scalar_type());
  if (dtype == DType::kUnspecified) {
    raise(InvalidArgument("column {}: tensors of {} cannot be elements of a dataset", name,
                          torch::toString(tensor.scalar_type())));
  }
  auto owner = std::make_shared<const torch::Tensor>(plain_of(tensor.detach()));
  const auto* const memory = static_cast<const std::byte*>(owner->data_ptr());
  return {.info = {.name = std::move(name), .dtype = dtype, .shape = tensor.sizes().vec()},
          .owner = std::move(owner),
          .data = memory};
}

data::Column to_column(std::string name, const std::string& text) {
  return data::MakeColumn<std::string>(std::move(name), {}, {text});
}

std::string to_string_leaf(const data::Column& column) {
  if (column.info.dtype != DType::kString || column.elements() != 1) {
    raise(InvalidArgument("column {} is no string", data::ToText(column.info)));
  }
  return *column.as<std::string>();
}

void check_member(const std::string& path, const std::string& name, std::size_t count) {
  if (count == 0) {
    raise(InvalidArgument(
        "'{}' of an element has no tensors: an empty list or map within a list or a map is lost; "
        "leave it out, or give it a tensor without rows",
        join_path(path, name)));
  }
  if (name.find('/') != std::string::npos) {
    raise(InvalidArgument(
        "key '{}' of an element: keys of a map of lists, maps or structures have no '/', which "
        "stands between the names of a column",
        name));
  }
}

void raise_columns(const data::Element& element, std::size_t used) {
  const std::string columns = Joined(element.columns, kMostNamed, [](const data::Column& column) {
    return data::ToText(column.info);
  });
  raise(Internal("an element of {} ({}) does not fit the dataset's type, which took {}",
                 Counted(element.columns.size(), "column"), columns, used));
}

}  // namespace muster::internal
