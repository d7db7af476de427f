#include <vector>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

TEST_CASE("a group forms though many who say nothing are connected to its members",
          "[collectives][process]") {
  Address address(3);
  address.spec.form_within = Millis(20'000);
  std::vector<net::Fd> strangers;
  for (const net::Listener& listener : address.listeners) {
    for (int i = 0; i < 100; ++i) {
      auto stranger =
          net::ConnectTcp(listener.address, std::chrono::steady_clock::now() + Millis(10'000));
      REQUIRE(stranger.ok());
      strangers.push_back(*std::move(stranger));
    }
  }
  InGroup(address, [](Group& group) {
    std::vector<float> one{1};
    const ReduceBuffer buffer{
        .type = DType::kFloat32, .shape = {1}, .in = one.data(), .out = one.data()};
    if (!group.AllReduce(Reduction::kSum, {&buffer, 1}).ok()) FAIL_CHECK("SUM");
    if (one[0] != 3) FAIL_CHECK(one[0]);
  });
}

}  // namespace
}  // namespace muster::collectives
