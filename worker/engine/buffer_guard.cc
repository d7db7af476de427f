#include "worker/engine/buffer_guard.h"

#include "worker/engine/torch.h"

namespace muster::engine {

BufferGuard::BufferGuard(const Network& network, bool worker_local)
    : network_(network), worker_local_(worker_local) {
  if (worker_local_) return;
  for (const NamedTensor& buffer : network.buffers()) {
    seen_.push_back({buffer.name, buffer.tensor.unsafeGetTensorImpl(), buffer.tensor._version(),
                     buffer.tensor.detach().clone()});
  }
}

Status BufferGuard::Check() {
  if (worker_local_ || seen_.empty()) return Ok();
  const std::vector<NamedTensor> now = network_.buffers();
  for (std::size_t i = 0; i < seen_.size() && i < now.size(); ++i) {
    const at::Tensor& tensor = now[i].tensor;
    bool same =
        tensor.unsafeGetTensorImpl() == seen_[i].identity && tensor._version() == seen_[i].version;
    // libtorch does not compare sparse tensors; no operator writes into one without saying so.
    if (!compared_ && same && tensor.layout() == at::kStrided) {
      same = at::equal(tensor, seen_[i].value);
    }
    if (!same) {
      return InvalidArgument(
          "buffer \"{}\" changes in training, and the workers would not share it; set buffers: "
          "worker_local if each worker may keep its own, or remove what updates it (batch norm: "
          "track_running_stats=False)",
          seen_[i].name);
    }
  }
  if (!compared_) {
    compared_ = true;
    for (Seen& seen : seen_) seen.value = at::Tensor();
  }
  return Ok();
}

}  // namespace muster::engine
