// The pickle in what Python's torch.save(module.state_dict(), path) writes: where each tensor lies.
// Nothing that it says is run: only the instructions are followed of which a dictionary of tensors
// consists. Knows nothing of libtorch, so that it can be searched by a fuzzer.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/base/status.h"

namespace muster::internal {

inline constexpr std::string_view kStateRemedy =
    "save it in Python by torch.save(module.state_dict(), path), or by "
    "torch.jit.script(module).save(path)";

// Lifetime: views of the pickle, as those below.
struct PythonName {
  std::string_view module, name;  // "torch", "FloatStorage"
  std::string Both() const { return fmt::format("{} {}", module, name); }
};

struct StateTensor {
  PythonName type;       // of its storage
  std::string_view key;  // of its storage, in which others may lie, too
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
  // So many elements must be there; 0: the tensor has none.
  std::int64_t needs = 0;
};

// Its tensors by name; what is no tensor is left out. Takes memory in proportion to the pickle.
//   kInvalidArgument: damaged, or it holds Python objects (a whole module) in place of a
//   dictionary; says what to save instead.
Result<std::map<std::string, StateTensor>> ReadStatePickle(std::string_view pickle);

}  // namespace muster::internal
