// The cores of a TPU, as people write them: "2x2x1x2".
#pragma once

#include <array>
#include <string_view>

#include "common/base/status.h"

namespace muster {

// Chips along x, y and z, and the cores of each.
using TpuMesh = std::array<int, 4>;

inline constexpr int kMostTpuCores = 64;
// Says which one a process has.
inline constexpr const char* kTpuTopologyVariable = "MUSTER_TPU_TOPOLOGY";

// INVALID_ARGUMENT: another form, a number below 1, or more than kMostTpuCores.
Result<TpuMesh> ParseTpuMesh(std::string_view text);

}  // namespace muster
