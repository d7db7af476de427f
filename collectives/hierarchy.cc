#include "collectives/hierarchy.h"

#include <cstring>

#include "common/base/status.h"

namespace muster::collectives {
namespace {

bool IsIn(std::size_t member, Range members) {
  return member >= members.begin && member < members.end;
}

// Halves cannot be summed in the type of the elements where that rounds twice or cannot hold the
// result: those are summed flat, at the root.
bool SumsInPlace(Reduction reduction, DType type) {
  if (type == DType::kFloat16 || type == DType::kBfloat16) return false;
  return ResultType(reduction, type) == type;
}

}  // namespace

HierarchicalRoute RouteOf(std::size_t buffer, std::size_t members) {
  MUSTER_INVARIANT(members > 0);
  const std::size_t half = members / 2;
  HierarchicalRoute route;
  route.root = buffer % members;
  route.partner = (route.root + half) % members;
  const Range low{0, half};
  const Range high{half, members};
  route.root_members = IsIn(route.root, low) ? low : high;
  route.partner_members = IsIn(route.root, low) ? high : low;
  // With an odd number the partner of the last member falls into its own half.
  if (!IsIn(route.partner, route.partner_members)) route.partner = route.partner_members.begin;
  return route;
}

// The destinations of root and partner hold the sums of their halves until the total is there.
void HierarchicalReduce(Reduction reduction, DType type, std::size_t buffer,
                        std::span<const void* const> sources, std::span<void* const> destinations,
                        Range range) {
  const HierarchicalRoute route = RouteOf(buffer, sources.size());
  const bool alone = route.partner_members.begin == route.partner_members.end;
  if (alone || !SumsInPlace(reduction, type)) {
    return ReduceRange(reduction, type, sources, destinations, range.begin, range.end);
  }
  const auto sum = [&](std::span<const void* const> from, void* to) {
    ReduceRange(Reduction::kSum, type, from, {&to, 1}, range.begin, range.end);
  };
  const auto half = [&](Range members) {
    return sources.subspan(members.begin, members.end - members.begin);
  };
  sum(half(route.root_members), destinations[route.root]);
  sum(half(route.partner_members), destinations[route.partner]);

  // MEAN: the halves are added, then divided by the number of members, not of halves.
  const void* const halves[] = {destinations[route.root], destinations[route.partner]};
  sum(halves, destinations[route.root]);
  if (reduction == Reduction::kMean) {
    DivideRange(type, destinations[route.root], sources.size(), range.begin, range.end);
  }
  const std::size_t size = SizeOf(type);
  const auto copy = [&](std::size_t from, std::size_t to) {
    if (from == to || range.begin == range.end) return;  // an empty tensor has no memory
    std::memcpy(static_cast<std::byte*>(destinations[to]) + range.begin * size,
                static_cast<const std::byte*>(destinations[from]) + range.begin * size,
                (range.end - range.begin) * size);
  };
  copy(route.root, route.partner);
  for (std::size_t member = 0; member < destinations.size(); ++member) {
    const bool with_root = IsIn(member, route.root_members);
    if (member == route.partner) continue;
    copy(with_root ? route.root : route.partner, member);
  }
}

}  // namespace muster::collectives
