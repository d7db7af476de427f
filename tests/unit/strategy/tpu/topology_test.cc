// Where the cores of a TPU system are.
#include "strategy/tpu/topology.h"

#include <string>

#include <stdlib.h>

#include "strategy/base/logical_devices.h"
#include "strategy/resolver/cluster_resolver.h"
#include "strategy/tpu/tpu_system.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/tpu/cores.h"

namespace muster {
namespace {

using testing::code_of;
using testing::Cores;
using testing::throws;

Topology one_chip() { return {{1, 1, 1, 2}, {{{0, 0, 0, 0}, {0, 0, 0, 1}}}}; }

// A mesh of 2x2 chips of two cores, of which the chips with y = 1 are missing.
Topology with_holes() {
  return {{2, 2, 1, 2}, {{{0, 0, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 0}, {1, 0, 0, 1}}}};
}

TEST_CASE("a topology is what its serialized form was made of", "[strategy][spec][TPT-01]") {
  const Topology topology = one_chip();

  const Topology parsed = Topology::parse(topology.serialized());

  CHECK(parsed == topology);
  CHECK(parsed.mesh_shape() == std::vector<int>{1, 1, 1, 2});
  CHECK(parsed.mesh_rank() == 4);
  CHECK(parsed.num_tasks() == 1);
  CHECK(parsed.num_tpus_per_task() == 2);
  CHECK(Topology::parse(with_holes().serialized()) == with_holes());
  CHECK_FALSE(parsed == with_holes());
}

TEST_CASE("a mesh or coordinates that cannot be are refused with what they are",
          "[strategy][spec][TPT-02]") {
  const auto refused = [](const std::string& part, std::vector<int> mesh,
                          Topology::Devices devices) {
    INFO(part);
    CHECK(throws(ErrorCode::kInvalidArgument, part,
                 [&] { (void)Topology(std::move(mesh), std::move(devices)); }));
  };
  const Topology::Devices one = {{{0, 0, 0, 0}}};
  refused("[1, 1, 2]", {1, 1, 2}, one);
  refused("[1, 1, 0, 2]", {1, 1, 0, 2}, one);
  refused("[1, -1, 1, 2]", {1, -1, 1, 2}, one);
  refused("[100000, 100000, 100000, 2]", {100000, 100000, 100000, 2}, one);
  refused("empty", {1, 1, 1, 2}, {});
  refused("empty", {1, 1, 1, 2}, {{}});
  refused("[0, 0, 0]", {1, 1, 1, 2}, {{{0, 0, 0}}});
  refused("[0, 0, 0, -1]", {1, 1, 1, 2}, {{{0, 0, 0, -1}}});
  refused("[0, 0, 0, 2]", {1, 1, 1, 2}, {{{0, 0, 0, 2}}});
  refused("task 1 has 2 devices, task 0 has 1", {2, 2, 1, 1},
          {{{0, 0, 0, 0}}, {{0, 1, 0, 0}, {1, 1, 0, 0}}});
  refused("device 0 of task 0 and 0 of task 1", {1, 1, 1, 2}, {{{0, 0, 0, 0}}, {{0, 0, 0, 0}}});
  for (const char* text :
       {"", "{}", "[1]", R"({"mesh_shape":[1,1,1,1]})",
        R"({"mesh_shape":[1,1,1,1],"device_coordinates":[[0,0,0,0]]})",
        R"({"mesh_shape":[1,1,1,"x"],"device_coordinates":[[[0,0,0,0]]]})",
        R"({"mesh_shape":[1,1,1,1],"device_coordinates":[[[0,0,0]]]})",
        // These would be meshes of one core, cut off or wrapped.
        R"({"mesh_shape":[1,1,1,1.5],"device_coordinates":[[[0,0,0,0]]]})",
        R"({"mesh_shape":[1,1,1,true],"device_coordinates":[[[0,0,0,0]]]})",
        R"({"mesh_shape":[4294967297,1,1,1],"device_coordinates":[[[0,0,0,0]]]})",
        R"({"mesh_shape":[1,1,1,1],"device_coordinates":[[[0,0,0,0.5]]]})",
        R"({"mesh_shape":[1,1,1,1],"device_coordinates":[[[0,0,0,4294967296]]]})"}) {
    INFO(text);
    CHECK(code_of([&] { (void)Topology::parse(text); }) == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("at its coordinates a device has a task, a number and names",
          "[strategy][spec][TPT-03]") {
  const Topology topology{{1, 2, 1, 2},
                          {{{0, 0, 0, 1}, {0, 0, 0, 0}}, {{0, 1, 0, 0}, {0, 1, 0, 1}}}};
  CHECK(topology.task_ordinal_at_coordinates({0, 0, 0, 0}) == 0);
  CHECK(topology.tpu_device_ordinal_at_coordinates({0, 0, 0, 0}) == 1);
  CHECK(topology.task_ordinal_at_coordinates({0, 1, 0, 1}) == 1);
  CHECK(topology.tpu_device_name_at_coordinates({0, 1, 0, 1}, "worker") ==
        "/job:worker/task:1/device:TPU:1");
  CHECK(topology.cpu_device_name_at_coordinates({0, 1, 0, 1}, "worker") ==
        "/job:worker/task:1/device:CPU:0");
  CHECK(topology.tpu_device_name_at_coordinates({0, 0, 0, 0}) == "/task:0/device:TPU:1");
  CHECK(topology.cpu_device_name_at_coordinates({0, 0, 0, 0}) == "/task:0/device:CPU:0");
  CHECK(throws(ErrorCode::kInvalidArgument, "[0, 2, 0, 0]",
               [&] { (void)topology.task_ordinal_at_coordinates({0, 2, 0, 0}); }));
}

TEST_CASE("holes of the mesh are listed, and nobody is there", "[strategy][spec][TPT-04]") {
  const Topology topology = with_holes();
  using List = std::vector<Topology::Coordinates>;
  CHECK(topology.missing_devices() == List{{0, 1, 0, 0}, {0, 1, 0, 1}, {1, 1, 0, 0}, {1, 1, 0, 1}});
  CHECK(topology.task_ordinal_at_coordinates({1, 1, 0, 1}) == -1);
  CHECK(topology.tpu_device_ordinal_at_coordinates({1, 1, 0, 1}) == -1);
  CHECK(throws(ErrorCode::kInvalidArgument, "[1, 1, 0, 1]",
               [&] { (void)topology.tpu_device_name_at_coordinates({1, 1, 0, 1}); }));
  CHECK(one_chip().missing_devices().empty());
}

TEST_CASE("emulated cores are numbered along a chip, then x, y and z", "[strategy][spec]") {
  CHECK(list_logical_devices("TPU").empty());
  {
    const Cores cores("2x2x1x2");
    CHECK(cores.topology.num_tasks() == 1);
    CHECK(cores.topology.tpu_device_ordinal_at_coordinates({0, 0, 0, 1}) == 1);
    CHECK(cores.topology.tpu_device_ordinal_at_coordinates({1, 0, 0, 0}) == 2);
    CHECK(cores.topology.tpu_device_ordinal_at_coordinates({0, 1, 0, 1}) == 5);
    const std::vector<std::string> names = list_logical_devices("TPU");
    CHECK(names.size() == 8);
    CHECK(names[7] == "/job:localhost/replica:0/task:0/device:TPU:7");
  }
  const Cores others("1x1x1x4");
  CHECK(list_logical_devices("TPU").size() == 4);
}

TEST_CASE("the environment says which topology is emulated where the program does not",
          "[strategy][spec]") {
  CHECK(throws(ErrorCode::kFailedPrecondition, "MUSTER_TPU_TOPOLOGY",
               [] { (void)initialize_tpu_system(); }));
  ::setenv("MUSTER_TPU_TOPOLOGY", "1x2x1x1", 1);
  const Topology topology = initialize_tpu_system();
  ::unsetenv("MUSTER_TPU_TOPOLOGY");
  CHECK(topology.mesh_shape() == std::vector<int>{1, 2, 1, 1});
  CHECK(initialize_tpu_system() == topology);
  shutdown_tpu_system();
}

TEST_CASE("a topology that cannot be emulated, or beside another one, is refused",
          "[strategy][spec]") {
  for (const char* text : {"2x2x1", "2x2x1x2x1", "0x1x1x1", "ax1x1x1", "2x2x1x", "2X2X1X2",
                           "-1x1x1x1", "9x9x1x1", "65x1x1x1", "99999999999x1x1x1", " 1x1x1x1"}) {
    INFO(text);
    CHECK(throws(ErrorCode::kInvalidArgument, text,
                 [&] { (void)initialize_tpu_system({.topology = text}); }));
  }
  CHECK(code_of([] { shutdown_tpu_system(); }) == ErrorCode::kFailedPrecondition);
  const Cores cores("1x1x1x2");
  CHECK(throws(ErrorCode::kFailedPrecondition, "1x1x1x2",
               [] { (void)initialize_tpu_system({.topology = "2x1x1x1"}); }));
}

TEST_CASE("a resolver of the local TPU counts the cores that are up, and others have no runtime",
          "[strategy][spec][TPR-02]") {
  TPUClusterResolver local({.tpu = "local"});
  CHECK(local.num_accelerators() == AcceleratorCounts{{"TPU", 0}});

  const Topology topology = initialize_tpu_system(local, {.topology = "1x2x1x2"});

  CHECK(local.num_accelerators() == AcceleratorCounts{{"TPU", 4}});
  CHECK(local.master().empty());
  CHECK(topology.num_tpus_per_task() == 4);
  shutdown_tpu_system();

  TPUClusterResolver remote({.tpu = "grpc://10.0.0.1"});
  CHECK(throws(ErrorCode::kUnimplemented, "10.0.0.1",
               [&] { (void)initialize_tpu_system(remote, {.topology = "1x2x1x2"}); }));
}

}  // namespace
}  // namespace muster
