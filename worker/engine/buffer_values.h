// Values of a network's buffers in messages and back. Internal: includes libtorch.
//
// Threading: the thread that made the network. Calls throw libtorch's exceptions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker/engine/network.h"

namespace muster::v1 {
class TensorSet;
}

namespace muster::engine {

// Together, the buffers of a job with `buffers: worker_local`: they travel in one message.
inline constexpr std::uint64_t kMostBufferBytes = 12 << 20;

// Empty tensors, sparse ones, and those of a type that no DType names, do not.
bool Travels(const at::Tensor& tensor);
// Leaves out what does not travel.
void AddValues(const std::vector<NamedTensor>& tensors, v1::TensorSet& set);
// Tensors with memory of their own. Names that are no buffer here are passed over.
//   kFailedPrecondition: another shape or type than the buffer's.
Result<std::map<std::string, at::Tensor>> BuffersFrom(const Network& network,
                                                      const v1::TensorSet& set);
// The buffers are these tensors from now on.
void PutBuffers(const Network& network, const std::map<std::string, at::Tensor>& values);

// While it lives, the buffers named by `values` hold copies of these; then what they held before.
// Lifetime: both arguments outlive it.
class BorrowedBuffers {
 public:
  BorrowedBuffers(const Network& network, const std::map<std::string, at::Tensor>& values);
  ~BorrowedBuffers();
  BorrowedBuffers(const BorrowedBuffers&) = delete;
  BorrowedBuffers& operator=(const BorrowedBuffers&) = delete;

 private:
  const Network& network_;
  std::map<std::string, at::Tensor> own_;
};

}  // namespace muster::engine
