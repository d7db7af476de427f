#include "worker/engine/buffer_values.h"

#include <cstring>
#include <utility>

#include <fmt/ranges.h>

#include "muster/v1/common.pb.h"
#include "worker/engine/tensors.h"

namespace muster::engine {

bool Travels(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.numel() != 0 &&
         DTypeOf(tensor.scalar_type()) != DType::kUnspecified;
}

void AddValues(const std::vector<NamedTensor>& tensors, v1::TensorSet& set) {
  for (const NamedTensor& one : tensors) {
    if (!Travels(one.tensor)) continue;
    const at::Tensor plain = one.tensor.detach().contiguous();
    v1::TensorValue& value = *set.add_tensors();
    value.set_name(one.name);
    value.set_dtype(static_cast<v1::DType>(DTypeOf(plain.scalar_type())));
    for (const std::int64_t size : plain.sizes()) value.add_shape(size);
    value.set_data(plain.data_ptr(), plain.nbytes());
  }
}

Result<std::map<std::string, at::Tensor>> BuffersFrom(const Network& network,
                                                      const v1::TensorSet& set) {
  std::map<std::string, at::Tensor> own, values;
  for (const NamedTensor& buffer : network.buffers()) own.emplace(buffer.name, buffer.tensor);
  for (const v1::TensorValue& value : set.tensors()) {
    const auto found = own.find(value.name());
    if (found == own.end()) continue;
    const std::vector<std::int64_t> shape(value.shape().begin(), value.shape().end());
    const auto type = ScalarTypeOf(static_cast<DType>(value.dtype()));
    if (found->second.sizes().vec() != shape || found->second.scalar_type() != type ||
        found->second.nbytes() != value.data().size()) {
      return FailedPrecondition(
          "buffer \"{}\": {} bytes of shape [{}] were saved; the archive's is {}", value.name(),
          value.data().size(), fmt::join(shape, ", "), Describe(found->second));
    }
    at::Tensor tensor = at::empty(shape, at::TensorOptions(*type));
    std::memcpy(tensor.data_ptr(), value.data().data(), value.data().size());
    values.emplace(value.name(), std::move(tensor));
  }
  return values;
}

void PutBuffers(const Network& network, const std::map<std::string, at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& buffer : network.buffers()) {
    const auto value = values.find(buffer.name);
    if (value != values.end()) at::Tensor(buffer.tensor).set_data(value->second);
  }
}

BorrowedBuffers::BorrowedBuffers(const Network& network,
                                 const std::map<std::string, at::Tensor>& values)
    : network_(network) {
  if (values.empty()) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> lent;
  for (const NamedTensor& buffer : network_.buffers()) {
    const auto value = values.find(buffer.name);
    if (value == values.end()) continue;
    own_.emplace(buffer.name, buffer.tensor.detach());
    // A copy: forward may write into it, and the next batch begins from the same.
    lent.emplace_back(buffer.tensor, value->second.clone());
  }
  // Not before all are there: nobody would give them back where memory runs out on the way.
  for (auto& [buffer, copy] : lent) buffer.set_data(copy);
}

BorrowedBuffers::~BorrowedBuffers() { PutBuffers(network_, own_); }

}  // namespace muster::engine
