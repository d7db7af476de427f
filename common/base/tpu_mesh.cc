#include "common/base/tpu_mesh.h"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace muster {

Result<TpuMesh> ParseTpuMesh(std::string_view text) {
  TpuMesh mesh{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool good = true;
  for (std::size_t i = 0; i < mesh.size() && good; ++i) {
    if (i > 0) {
      good = at != end && *at == 'x';
      if (!good) break;
      ++at;
    }
    const auto parsed = std::from_chars(at, end, mesh[i]);
    good = parsed.ec == std::errc() && mesh[i] >= 1 && mesh[i] <= kMostTpuCores;
    at = parsed.ptr;
  }
  if (!good || at != end || mesh[0] * mesh[1] * mesh[2] * mesh[3] > kMostTpuCores) {
    return InvalidArgument(
        "TPU topology \"{}\" is not chips along x, y and z and cores of a chip, such as 2x2x1x2, "
        "each at least 1 and at most {} cores in all",
        text, kMostTpuCores);
  }
  return mesh;
}

}  // namespace muster
