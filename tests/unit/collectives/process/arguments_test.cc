// Calls of a group of processes with arguments that cannot be.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

TEST_CASE("a reduce scatter that cannot be says what is wrong with it", "[collectives][process]") {
  const Transport by = GENERATE(Transport::kBest, Transport::kTcp);
  Address address(2);
  address.spec.transport = by;
  struct Wrong {
    DType type;
    std::vector<std::size_t> counts;
    std::string says;
  };
  const Wrong wrong = GENERATE(
      Wrong{DType::kBool, {1, 1}, "bool has no sum; convert it to a number type"},
      Wrong{
          DType::kFloat32, {1, 1, 1}, "3 counts are given for 2 members: one for each is needed"});
  InGroup(address, [&](Group& group) {
    const std::array<float, 3> in{};
    std::array<float, 3> out{};
    const Status status = group.ReduceScatter(
        Reduction::kSum,
        {.type = wrong.type, .counts = wrong.counts, .in = in.data(), .out = out.data()});
    const bool told = Message(status).find(wrong.says) != std::string::npos;
    if (status.code() != StatusCode::kInvalidArgument || !told) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE("a part that a member sends itself needs as much room there", "[collectives][process]") {
  InGroup(Address(2), [](Group& group) {
    std::array<std::byte, 4> sent{}, taken{};
    const std::vector<std::span<const std::byte>> sends(2, std::span(sent).first(3));
    std::vector<std::span<std::byte>> receives(2, std::span(taken).first(3));
    receives[static_cast<std::size_t>(group.rank())] = std::span(taken).first(2);
    const Status status = group.AllToAll(sends, receives);
    const std::string says = "sends itself 3 bytes, and has room for 2";
    const bool told = Message(status).find(says) != std::string::npos;
    if (status.code() != StatusCode::kInvalidArgument || !told) FAIL_CHECK(ToString(status));
  });
}

TEST_CASE(
    "members that call different things are told after how long where their calls have limits",
    "[collectives][process]") {
  Address address(2);
  address.spec.transport = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  InGroup(address, [](Group& group) {
    constexpr std::chrono::seconds kLimit{30};
    std::array<float, 3> values{};
    const ReduceBuffer buffer{
        .type = DType::kFloat32, .shape = {3}, .in = values.data(), .out = values.data()};
    const Status status = group.rank() == 0 ? group.AllReduce(Reduction::kSum, {&buffer, 1}, kLimit)
                                            : group.Barrier(kLimit);
    const std::string text = Message(status);
    const std::size_t at = text.rfind(", after ");
    const bool told = text.find("Shape mismatch") != std::string::npos && at != std::string::npos &&
                      text.ends_with(" ms");
    if (status.code() != StatusCode::kInvalidArgument || !told) FAIL_CHECK(ToString(status));
  });
}

// Before any memory is taken for it.
TEST_CASE("an exchange of more numbers than shapes can have is refused on all members",
          "[collectives][process]") {
  Address address(2);
  address.spec.transport = GENERATE(Transport::kBest, Transport::kTcp);
  constexpr std::size_t kMost = std::size_t{1} << 22;
  InGroup(address, [](Group& group) {
    const std::vector<std::int64_t> mine(group.rank() == 1 ? kMost + 1 : 1);
    const auto all = group.Exchange("lengths", mine);
    const std::string says =
        "lengths: exchange of shapes: worker:1 brings 4194305 numbers; at most 4194304 are allowed";
    const bool told = Message(all.status()).find(says) != std::string::npos;
    if (all.status().code() != StatusCode::kInvalidArgument || !told) {
      FAIL_CHECK(ToString(all.status()));
    }
  });
}

}  // namespace
}  // namespace muster::collectives
