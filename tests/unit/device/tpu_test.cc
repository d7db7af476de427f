// Emulated TPU cores, and the memory of each.
#include "device/tpu.h"

#include <string>

#include "device/placing.h"
#include "tests/support/catch.h"

namespace muster::device {
namespace {

TEST_CASE("cores are up from their start to their stop, those of one mesh at a time",
          "[device][unit]") {
  TpuCores cores;
  CHECK(cores.count() == 0);
  CHECK(Message(cores.Check(0)).find("initialize_tpu_system") != std::string::npos);
  CHECK(cores.Stop().code() == StatusCode::kFailedPrecondition);

  CHECK(cores.Start({2, 2, 1, 2}).value());

  CHECK(cores.count() == 8);
  CHECK(cores.Check(7).ok());
  CHECK(cores.Check(8).code() == StatusCode::kInvalidArgument);
  CHECK(Message(cores.Check(8)).find("TPU:0 to TPU:7") != std::string::npos);
  CHECK_FALSE(cores.Start({2, 2, 1, 2}).value());
  CHECK(cores.Start({1, 1, 1, 2}).status().code() == StatusCode::kFailedPrecondition);
  CHECK(cores.Stop().ok());
  CHECK(cores.Start({1, 1, 1, 2}).value());
}

TEST_CASE("a mesh is read from its text", "[device][unit]") {
  CHECK(ParseTpuMesh("2x3x1x2").value() == TpuMesh{2, 3, 1, 2});
  CHECK(ParseTpuMesh("8x8x1x1").value() == TpuMesh{8, 8, 1, 1});
  CHECK(ParseTpuMesh("8x8x1x2").status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("every CPU and every TPU core has memory of its own", "[device][unit]") {
  for (const Place place : {Place::Cpu(0), Place::Cpu(63), Place::Tpu(0), Place::Tpu(63)}) {
    CHECK(ParsePlace(place.ToString()).value() == place);
    CHECK(ParsePlace(place.Canonical()).value() == place);
    CHECK(PlaceOfArena(ArenaOf(place)) == place);
    const PlaceScope scope(place);
    CHECK(PlaceScope::Current() == place);
    void* const block = Arena::Of(ArenaOf(place)).Allocate(100);
    CHECK(PlaceOfArena(Arena::IndexOf(block)) == place);
    Arena::Of(ArenaOf(place)).Free(block);
  }
  CHECK(ParsePlace("tpu:3").value() == Place::Tpu(3));
  CHECK(ParsePlace("/task:0/device:TPU:3").value() == Place::Tpu(3));
  CHECK(ParsePlace("/job:localhost/task:0/device:CPU:1").value() == Place::Cpu(1));
  for (const char* name :
       {"/task:1/device:TPU:3", "/job:worker/task:0/device:TPU:3", "/task:0TPU:3",
        "/task:0/replica:0/device:TPU:3", "/job:localhost/replica:0/task:0CPU:1"}) {
    CAPTURE(name);
    CHECK(ParsePlace(name).status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(ParsePlace("TPU:64").status().code() == StatusCode::kInvalidArgument);
  CHECK(FindPlace("TPU:0").status().code() == StatusCode::kInvalidArgument);
  CHECK_FALSE(IsGpu(Place::Tpu(0)));
}

}  // namespace
}  // namespace muster::device
