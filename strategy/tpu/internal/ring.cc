#include "strategy/tpu/internal/ring.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace muster::internal {
namespace {

using Point = std::array<int, 2>;

// A ring over `width` x `height` points, both even, from (0, 0): along the first row, back and
// forth over the others without their first column, then home along that.
std::vector<Point> Ring2d(int width, int height) {
  std::vector<Point> ring = {{0, 0}};
  for (int row = 0; row < height; ++row) {
    for (int step = 1; step < width; ++step) {
      ring.push_back({row % 2 == 0 ? step : width - step, row});
    }
  }
  for (int row = height - 1; row > 0; --row) ring.push_back({0, row});
  return ring;
}

// The dimensions in which the box is longer than one.
std::vector<std::size_t> LongDimensions(const Chip& sizes) {
  std::vector<std::size_t> dimensions;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1) dimensions.push_back(d);
  }
  return dimensions;
}

std::vector<Chip> XFastest(const Chip& sizes) {
  std::vector<Chip> chips;
  for (int z = 0; z < sizes[2]; ++z) {
    for (int y = 0; y < sizes[1]; ++y) {
      for (int x = 0; x < sizes[0]; ++x) chips.push_back({x, y, z});
    }
  }
  return chips;
}

// Layer by layer, each its ring without (0, 0), every other one backwards; then home along (0, 0).
std::vector<Chip> Ring3d(const Chip& sizes) {
  std::vector<Point> layer = Ring2d(sizes[0], sizes[1]);
  layer.erase(layer.begin());
  std::vector<Chip> ring = {{0, 0, 0}};
  for (int z = 0; z < sizes[2]; ++z) {
    for (const Point& point : layer) ring.push_back({point[0], point[1], z});
    std::reverse(layer.begin(), layer.end());
  }
  for (int z = sizes[2] - 1; z > 0; --z) ring.push_back({0, 0, z});
  return ring;
}

}  // namespace

bool lacks_ring(const Chip& sizes) {
  return LongDimensions(sizes).size() > 1 &&
         std::any_of(sizes.begin(), sizes.end(), [](int n) { return n > 1 && n % 2 != 0; });
}

std::vector<Chip> ring_of(const Chip& sizes) {
  const std::vector<std::size_t> dimensions = LongDimensions(sizes);
  if (dimensions.size() < 2 || lacks_ring(sizes)) return XFastest(sizes);
  if (dimensions.size() == 3) return Ring3d(sizes);
  std::vector<Chip> ring;
  for (const Point& point : Ring2d(sizes[dimensions[0]], sizes[dimensions[1]])) {
    Chip chip{};
    chip[dimensions[0]] = point[0];
    chip[dimensions[1]] = point[1];
    ring.push_back(chip);
  }
  return ring;
}

}  // namespace muster::internal
