// Which logical GPU is on which card, on machines as they may be.
#include "device/gpu.h"

#include <vector>

#include "device/placing.h"
#include "tests/support/catch.h"

namespace muster::device {
namespace {

using Cards = std::vector<int>;

TEST_CASE("each card is one logical GPU unless it is said to be several", "[device][unit]") {
  LogicalGpus plain({.cards = 3, .cuda = true});
  CHECK(plain.Cards() == Cards{0, 1, 2});
  CHECK_FALSE(plain.Shared(1));

  LogicalGpus cut({.cards = 3, .cuda = true});
  REQUIRE(cut.Configure(1, 5).ok());
  REQUIRE(cut.Configure(1, 2).ok());
  REQUIRE(cut.Configure(2, 3).ok());

  CHECK(cut.Cards() == Cards{0, 1, 1, 2, 2, 2});
  CHECK_FALSE(cut.Shared(0));
  CHECK(cut.Shared(1));
  CHECK(cut.FirstOn(0) == 0);
  CHECK(cut.FirstOn(1) == 1);
  CHECK(cut.FirstOn(2) == 3);
  CHECK(cut.Check(5).ok());
}

TEST_CASE("logical GPUs stay as they are once they are in use", "[device][unit]") {
  LogicalGpus gpus({.cards = 1, .cuda = true});
  CHECK(gpus.Check(0).ok());

  const Status late = gpus.Configure(0, 2);

  CHECK(late.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(late).find("card 0") != std::string::npos);
  CHECK(gpus.Cards() == Cards{0});
}

TEST_CASE("a card or a number of logical GPUs that cannot be is refused with what there is",
          "[device][unit]") {
  LogicalGpus gpus({.cards = 2, .cuda = true});
  const auto refusal = [&](int card, int count) {
    const Status refused = gpus.Configure(card, count);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    return std::string(Message(refused));
  };
  CHECK(refusal(2, 1).find("2 cards") != std::string::npos);
  CHECK(refusal(-1, 1).find("card -1") != std::string::npos);
  CHECK(refusal(0, 0).find("0 logical GPUs") != std::string::npos);
  CHECK(refusal(0, LogicalGpus::kMax).find("64") != std::string::npos);
  CHECK(gpus.Configure(0, LogicalGpus::kMax - 1).ok());
  CHECK(gpus.Cards().size() == LogicalGpus::kMax);
}

TEST_CASE("a GPU that is not there is refused with the reason", "[device][unit]") {
  const auto refusal = [](LogicalGpus::Machine machine, int gpu) {
    const Status refused = LogicalGpus(machine).Check(gpu);
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    return std::string(Message(refused));
  };
  CHECK(refusal({.cards = 2, .cuda = true}, 2).find("2 logical GPUs, GPU:0 to GPU:1, on 2 cards") !=
        std::string::npos);
  CHECK(refusal({.cards = 0, .cuda = true}, 0).find("nvidia-smi") != std::string::npos);
  CHECK(refusal({.cards = 0, .cuda = false}, 0).find("MUSTER_TORCH") != std::string::npos);
  CHECK(LogicalGpus({.cards = 0, .cuda = false}).Configure(0, 2).code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("a place is found by its name, and has one", "[device][unit]") {
  for (const Place place : {Place::Cpu(0), Place::Cpu(63), Place::Gpu(0), Place::Gpu(63)}) {
    CHECK(ParsePlace(place.ToString()).value() == place);
    CHECK(ParsePlace(place.Canonical()).value() == place);
    CHECK(IsGpu(place) == place.ToString().starts_with("GPU"));
  }
  CHECK(FindPlace("cpu:7").value() == Place::Cpu(7));
  CHECK(FindPlace("CPU:64").status().code() == StatusCode::kInvalidArgument);
  CHECK(FindPlace("GPU:63").status().code() == StatusCode::kInvalidArgument);
  CHECK(TorchDevice(Place::Cpu(7)) == c10::Device(c10::DeviceType::CPU));
}

TEST_CASE("a thread computes for the place of its innermost scope", "[device][unit]") {
  CHECK(PlaceScope::Current() == Place::Cpu(0));
  {
    const PlaceScope outer(Place::Cpu(3));
    CHECK(PlaceScope::Current() == Place::Cpu(3));
    CHECK(ArenaScope::Current() == 3);
    {
      const PlaceScope inner(Place::Cpu(0));
      CHECK(PlaceScope::Current() == Place::Cpu(0));
    }
    CHECK(PlaceScope::Current() == Place::Cpu(3));
  }
  CHECK(PlaceScope::Current() == Place::Cpu(0));
}

}  // namespace
}  // namespace muster::device
