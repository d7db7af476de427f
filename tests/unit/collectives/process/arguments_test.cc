// Calls of a group of processes with arguments that cannot be.
#include <array>
#include <cstddef>
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

}  // namespace
}  // namespace muster::collectives
