// Which core is which replica's: the orders of section 2.7, coordinates written xyzc.
#include "strategy/tpu/device_assignment.h"

#include <cstddef>
#include <string>
#include <vector>

#include "strategy/tpu/internal/ring.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/logged.h"

namespace muster {
namespace {

using testing::code_of;
using testing::log_of;
using testing::throws;
using Shape = std::vector<int>;

// All chips of a mesh of `x` by `y` chips of two cores, on hosts of `hx` by `hy` chips.
Topology chips(int x, int y, int hx, int hy) {
  Topology::Devices devices;
  for (int host_y = 0; host_y < y; host_y += hy) {
    for (int host_x = 0; host_x < x; host_x += hx) {
      auto& task = devices.emplace_back();
      for (int chip = 0; chip < hx * hy; ++chip) {
        for (int core = 0; core < 2; ++core) {
          task.push_back({host_x + chip % hx, host_y + chip / hx, 0, core});
        }
      }
    }
  }
  return {{x, y, 1, 2}, std::move(devices)};
}
Topology mesh() { return chips(2, 2, 2, 2); }

// "0000 0001 | 1000 1001": replicas, and the coordinates of their cores.
std::string text(const DeviceAssignment& assignment) {
  std::string written;
  for (const auto& replica : assignment.core_assignment()) {
    if (!written.empty()) written += "| ";
    for (const Topology::Coordinates& core : replica) {
      for (const int number : core) written += std::to_string(number);
      written += ' ';
    }
  }
  written.pop_back();
  return written;
}

std::string built(const Topology& topology, Shape shape, int replicas,
                  DeviceOrderMode mode = DeviceOrderMode::kAuto, Shape stride = {}) {
  return text(DeviceAssignment::build(topology, {.computation_shape = std::move(shape),
                                                 .computation_stride = std::move(stride),
                                                 .num_replicas = replicas,
                                                 .device_order_mode = mode}));
}

TEST_CASE("an assignment that is written out has its replicas, cores and devices",
          "[strategy][spec][TPA-01]") {
  const DeviceAssignment one(mesh(), {{{0, 0, 0, 0}}});
  CHECK(one.num_replicas() == 1);
  CHECK(one.num_cores_per_replica() == 1);
  CHECK(one.tpu_device() == "/task:0/device:TPU:0");
  CHECK(one.host_device() == "/task:0/device:CPU:0");
  CHECK(one.tpu_device(0, 0, "worker") == "/job:worker/task:0/device:TPU:0");
  CHECK(one.host_device(0, 0, "worker") == "/job:worker/task:0/device:CPU:0");
  CHECK(one.num_hosts() == 1);

  const DeviceAssignment two(mesh(), {{{0, 0, 0, 1}, {1, 0, 0, 0}}, {{1, 1, 0, 1}, {0, 1, 0, 0}}});
  CHECK(two.tpu_ordinal(0, 0) == 1);
  CHECK(two.tpu_ordinal(1, 1) == 4);
  CHECK(two.coordinates(1, 0) == Topology::Coordinates{1, 1, 0, 1});
  CHECK(code_of([&] { (void)two.tpu_ordinal(2, 0); }) == ErrorCode::kOutOfRange);
  CHECK(code_of([&] { (void)two.tpu_device(0, -1); }) == ErrorCode::kOutOfRange);
}

TEST_CASE("an assignment that does not fit its topology is refused", "[strategy][spec][TPA-02]") {
  const auto refused = [](const std::string& part, DeviceAssignment::Cores cores) {
    INFO(part);
    CHECK(throws(ErrorCode::kInvalidArgument, part,
                 [&] { (void)DeviceAssignment(mesh(), std::move(cores)); }));
  };
  refused("empty", {});
  refused("empty", {{}});
  refused("[0, 0, 0]", {{{0, 0, 0}}});
  refused("[0, 0, 0, 0, 0]", {{{0, 0, 0, 0, 0}}});
  refused("[0, 0, 0, 2]", {{{0, 0, 0, 2}}});
  refused("replica 1 has 1 cores, replica 0 has 2", {{{0, 0, 0, 0}, {0, 0, 0, 1}}, {{1, 0, 0, 0}}});
  refused("[1, 0, 0, 0] of replica 1 is assigned twice", {{{1, 0, 0, 0}}, {{1, 0, 0, 0}}});
  const Topology holes{{2, 1, 1, 1}, {{{0, 0, 0, 0}}}};
  CHECK(throws(ErrorCode::kInvalidArgument, "no device at [1, 0, 0, 0]",
               [&] { (void)DeviceAssignment(holes, {{{1, 0, 0, 0}}}); }));
}

TEST_CASE("replicas of one core go along the cores of a chip, then x, then y",
          "[strategy][spec][TPA-03]") {
  const std::string all = "0000 | 0001 | 1000 | 1001 | 0100 | 0101 | 1100 | 1101";
  CHECK(built(mesh(), {}, 8) == all);
  CHECK(built(mesh(), {1, 1, 1, 1}, 8) == all);
  CHECK(built(mesh(), {1, 1, 1, 1}, 8, DeviceOrderMode::kAuto, {2, 1, 1, 1}) == all);
  CHECK(built(mesh(), {}, 2) == "0000 | 0001");
  CHECK(built(mesh(), {}, 3) == "0000 | 0001 | 1000");
  CHECK(DeviceAssignment::build(mesh()).num_replicas() == 1);
}

TEST_CASE("replicas of whole chips lie on rings where that is possible, else along the mesh",
          "[strategy][spec][TPA-03]") {
  CHECK(built(mesh(), {1, 1, 1, 2}, 4) == "0000 0001 | 1000 1001 | 1100 1101 | 0100 0101");
  CHECK(built(mesh(), {1, 1, 1, 2}, 4, DeviceOrderMode::kRing) == built(mesh(), {1, 1, 1, 2}, 4));
  CHECK(built(mesh(), {1, 1, 1, 2}, 4, DeviceOrderMode::kMesh) ==
        "0000 0001 | 1000 1001 | 0100 0101 | 1100 1101");
  CHECK(built(mesh(), {1, 1, 1, 2}, 2) == "0000 0001 | 1000 1001");
  CHECK(built(mesh(), {2, 2, 1, 2}, 1) == "0000 0001 1000 1001 1100 1101 0100 0101");
  CHECK(built(mesh(), {2, 2, 1, 2}, 1, DeviceOrderMode::kMesh) ==
        "0000 0001 0100 0101 1000 1001 1100 1101");
  CHECK(built(chips(4, 4, 4, 4), {1, 1, 1, 2}, 16) ==
        "0000 0001 | 1000 1001 | 2000 2001 | 3000 3001 | 3100 3101 | 2100 2101 | 1100 1101 | "
        "1200 1201 | 2200 2201 | 3200 3201 | 3300 3301 | 2300 2301 | 1300 1301 | 0300 0301 | "
        "0200 0201 | 0100 0101");
}

TEST_CASE("the cores of a replica lie as far apart as its stride says with others between them",
          "[strategy][spec][TPA-03]") {
  CHECK(built(chips(8, 1, 8, 1), {2, 1, 1, 1}, 8, DeviceOrderMode::kAuto, {2, 1, 1, 1}) ==
        "0000 2000 | 0001 2001 | 1000 3000 | 1001 3001 | 4000 6000 | 4001 6001 | 5000 7000 | "
        "5001 7001");
  CHECK(built(chips(4, 4, 4, 4), {2, 1, 1, 2}, 4, DeviceOrderMode::kAuto, {2, 1, 1, 1}) ==
        "0000 0001 2000 2001 | 1000 1001 3000 3001 | 0100 0101 2100 2101 | 1100 1101 3100 3101");
}

TEST_CASE("blocks of chips lie on a ring of hosts, and the chips of each on one of their own",
          "[strategy][spec][TPA-03]") {
  const auto assignment = DeviceAssignment::build(
      chips(4, 4, 2, 2), {.computation_shape = {2, 2, 1, 2}, .num_replicas = 4});

  std::vector<int> hosts, ordinals;
  for (int r = 0; r < 4; ++r) {
    hosts.push_back(
        assignment.topology().task_ordinal_at_coordinates(assignment.coordinates(r, 0)));
  }
  for (int core = 0; core < 8; ++core) ordinals.push_back(assignment.tpu_ordinal(0, core));

  using Coordinates = Topology::Coordinates;
  CHECK(assignment.coordinates(1, 0) == Coordinates{2, 0, 0, 0});
  CHECK(assignment.coordinates(2, 0) == Coordinates{2, 2, 0, 0});
  CHECK(assignment.coordinates(3, 0) == Coordinates{0, 2, 0, 0});
  CHECK(hosts == std::vector<int>{0, 1, 3, 2});
  CHECK(ordinals == std::vector<int>{0, 1, 2, 3, 6, 7, 4, 5});
  CHECK(assignment.num_hosts() == 4);
}

TEST_CASE("what does not fit the mesh is refused, and the numbers are named",
          "[strategy][spec][TPA-03]") {
  const auto refused = [](const std::string& part, Shape shape, int replicas,
                          DeviceOrderMode mode = DeviceOrderMode::kAuto, Shape stride = {}) {
    INFO(part);
    CHECK(throws(ErrorCode::kInvalidArgument, part, [&] {
      (void)built(mesh(), std::move(shape), replicas, mode, std::move(stride));
    }));
  };
  refused("no ring order for 4 replicas", {1, 1, 1, 1}, 4, DeviceOrderMode::kRing);
  refused(
      "5 replicas with computation_shape [1, 1, 1, 2] and computation_stride [1, 1, 1, 1] do "
      "not fit the mesh [2, 2, 1, 2]: from 1 to 4 do",
      {1, 1, 1, 2}, 5);
  refused("0 replicas", {1, 1, 1, 2}, 0);
  refused("[1, 1, 1, 4] with computation_stride [1, 1, 1, 1] goes beyond", {1, 1, 1, 4}, 1);
  refused("computation_shape [1, 1, 1]", {1, 1, 1}, 1);
  refused("computation_shape [1, 0, 1, 1]", {1, 0, 1, 1}, 1);
  refused("computation_stride [1, 1]", {}, 1, DeviceOrderMode::kAuto, {1, 1});
  refused("computation_stride [1, 1, 1, 0]", {}, 1, DeviceOrderMode::kAuto, {1, 1, 1, 0});
  refused("goes beyond", {2, 1, 1, 1}, 1, DeviceOrderMode::kAuto, {2000000000, 1, 1, 1});
}

TEST_CASE("on a mesh with holes devices are taken as they come", "[strategy][spec][TPA-03]") {
  const Topology holes{{2, 2, 1, 2}, {{{0, 0, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}, {1, 0, 0, 1}}}};
  CHECK(built(holes, {1, 1, 1, 2}, 2) == "0000 0001 | 1000 1001");
  // By task, then by ordinal, wherever in the mesh they are.
  const Topology hosts{{2, 2, 1, 2}, {{{1, 1, 0, 1}, {1, 1, 0, 0}}, {{0, 1, 0, 0}, {0, 0, 0, 1}}}};
  for (const DeviceOrderMode mode : {DeviceOrderMode::kAuto, DeviceOrderMode::kMesh}) {
    CHECK(built(hosts, {1, 1, 1, 2}, 2, mode) == "1101 1100 | 0100 0001");
    CHECK(built(hosts, {}, 3, mode) == "1101 | 1100 | 0100");
  }
  CHECK(throws(ErrorCode::kInvalidArgument, "5 replicas",
               [&] { (void)built(holes, {1, 1, 1, 2}, 5); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "the topology has 4",
               [&] { (void)built(holes, {1, 1, 1, 2}, 3); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "stride",
               [&] { (void)built(holes, {}, 2, DeviceOrderMode::kAuto, {2, 1, 1, 1}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "4 devices are missing",
               [&] { (void)built(holes, {1, 1, 1, 2}, 2, DeviceOrderMode::kRing); }));
}

TEST_CASE("the replicas of a task are found by logical core", "[strategy][spec][TPA-04]") {
  const auto assignment =
      DeviceAssignment::build(mesh(), {.computation_shape = {1, 1, 1, 2}, .num_replicas = 4});
  CHECK(assignment.lookup_replicas(0, 1) == std::vector<int>{0, 1, 2, 3});
  CHECK(assignment.tpu_ordinal(3, 1) == 5);
  CHECK(throws(ErrorCode::kInvalidArgument, "task 1",
               [&] { (void)assignment.lookup_replicas(1, 0); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "logical core 2",
               [&] { (void)assignment.lookup_replicas(0, 2); }));
  const auto hosts = DeviceAssignment::build(
      chips(4, 4, 2, 2), {.computation_shape = {1, 1, 1, 2}, .num_replicas = 16});
  CHECK(hosts.lookup_replicas(0, 0) == std::vector<int>{0, 1, 6, 15});
}

std::string ring(internal::Chip sizes, const std::vector<std::size_t>& shown) {
  std::string written;
  for (const internal::Chip& chip : internal::ring_of(sizes)) {
    for (const std::size_t d : shown) written += std::to_string(chip[d]);
    written += ' ';
  }
  return written;
}

TEST_CASE("rings go from neighbour to neighbour and come home, but for odd sizes",
          "[strategy][spec][TPA-03]") {
  CHECK(ring({2, 2, 1}, {0, 1}) == "00 10 11 01 ");
  CHECK(ring({1, 4, 2}, {1, 2}) == "00 10 20 30 31 21 11 01 ");
  CHECK(ring({2, 2, 2}, {0, 1, 2}) == "000 100 110 010 011 111 101 001 ");
  CHECK(ring({3, 2, 1}, {0, 1}) == "00 10 20 01 11 21 ");
  CHECK(ring({5, 1, 1}, {0}) == "0 1 2 3 4 ");
  CHECK_FALSE(internal::lacks_ring({5, 1, 1}));
  CHECK(internal::lacks_ring({3, 2, 1}));
  std::string odd;
  const std::string said = log_of([&] { odd = built(chips(3, 2, 3, 2), {1, 1, 1, 2}, 6); });
  CHECK(odd == "0000 0001 | 1000 1001 | 2000 2001 | 0100 0101 | 1100 1101 | 2100 2101");
  CHECK(said.find("3x2x1 has no ring") != std::string::npos);
  for (const internal::Chip& sizes :
       {internal::Chip{4, 4, 1}, {2, 6, 1}, {1, 8, 4}, {4, 1, 2}, {4, 2, 6}, {8, 8, 8}}) {
    const std::vector<internal::Chip> chips = internal::ring_of(sizes);
    REQUIRE(chips.size() == static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2]));
    for (std::size_t i = 0; i < chips.size(); ++i) {
      const internal::Chip& next = chips[(i + 1) % chips.size()];
      int distance = 0;
      for (std::size_t d = 0; d < 3; ++d) distance += std::abs(chips[i][d] - next[d]);
      REQUIRE(distance == 1);
    }
  }
}

}  // namespace
}  // namespace muster
