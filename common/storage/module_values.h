// What checkpoints of an archive hold beside its variables: files of their own.
//
// Threading: free functions, any thread.
#pragma once

#include <string>

#include "common/base/status.h"

namespace muster::v1 {
class TensorSet;
}

namespace muster::storage {

inline constexpr char kBuffersFile[] = "buffers.safetensors";
inline constexpr char kFrozenFile[] = "frozen.safetensors";

// The module's buffers; none where the checkpoint has none. Errors are those of Checkpoint.
Result<v1::TensorSet> ReadBuffers(const std::string& directory);

}  // namespace muster::storage
