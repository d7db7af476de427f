#include "common/storage/module_values.h"

#include <cstdint>
#include <span>
#include <vector>

#include "common/storage/checkpoint.h"
#include "common/storage/safetensors.h"
#include "muster/v1/checkpoint.pb.h"
#include "muster/v1/common.pb.h"

namespace muster::storage {

Result<v1::TensorSet> ReadBuffers(const std::string& directory) {
  v1::TensorSet set;
  MUSTER_TRY_ASSIGN(const auto checkpoint, Checkpoint::Open(directory));
  for (const v1::TensorSlice& slice : checkpoint->manifest().slices()) {
    if (slice.file() != kBuffersFile) continue;
    const std::vector<std::int64_t> shape(slice.shape().begin(), slice.shape().end());
    MUSTER_TRY_ASSIGN(const std::uint64_t bytes,
                      TensorBytes(static_cast<DType>(slice.dtype()), shape));
    v1::TensorValue& value = *set.add_tensors();
    value.set_name(slice.name());
    value.set_dtype(slice.dtype());
    *value.mutable_shape() = slice.shape();
    value.mutable_data()->resize(bytes);
    MUSTER_TRY(checkpoint->ReadRows(slice.name(), 0, slice.rows(),
                                    std::as_writable_bytes(std::span(*value.mutable_data()))));
  }
  return set;
}

}  // namespace muster::storage
