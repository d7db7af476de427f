#include "services/common/open_files.h"

#include <algorithm>

#include <sys/resource.h>

namespace muster::services {
namespace {

constexpr rlim_t kMostOpen = 1 << 20;
constexpr std::size_t kFewest = 8;

}  // namespace

std::size_t RaiseOpenFiles() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1'024;
  const rlim_t wanted = std::min(limit.rlim_max, kMostOpen);
  if (limit.rlim_cur < wanted) {
    rlimit raised = limit;
    raised.rlim_cur = wanted;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return std::min(limit.rlim_cur, kMostOpen);
}

std::size_t ConnectionsFor(std::size_t limit, double share, std::size_t enough) {
  const auto part = static_cast<std::size_t>(static_cast<double>(limit) * share);
  return std::clamp(part, kFewest, std::max(enough, kFewest));
}

}  // namespace muster::services
