// Sums of float16 and bfloat16 between processes: rounded once, whatever they travel by.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// A large number, and what is added to it twice: in its own width each 1 would be rounded away.
struct Narrow {
  DType type;
  std::uint16_t large;
  std::uint16_t one;
  std::uint16_t sum;
  std::uint16_t mean;
};
constexpr Narrow kNarrow[] = {
    {DType::kBfloat16, 0x4380, 0x3f80, 0x4381, 0x42ac},  // 256, 1; 258, 86
    {DType::kFloat16, 0x6800, 0x3c00, 0x6801, 0x6157}};  // 2,048, 1; 2,050, 683.5

TEST_CASE("processes add float16 and bfloat16 in float32 and round once",
          "[collectives][process][COL-01]") {
  const int large = GENERATE(0, 1, 2);
  Address address(3);
  address.spec.transport = GENERATE(Transport::kBest, Transport::kSockets, Transport::kTcp);
  // Costs by which sums would be passed on from member to member, and rounded by each.
  address.spec.costs.emplace().of_kind.fill(CheapestBy(Algorithm::kTree));
  InGroup(address, [&](Group& group) {
    for (const Narrow& narrow : kNarrow) {
      for (const std::size_t count : {1U, 1'000U, 100'000U}) {
        const std::vector<std::uint16_t> mine(count,
                                              group.rank() == large ? narrow.large : narrow.one);
        for (const auto& [reduction, expected] :
             {std::pair{Reduction::kSum, narrow.sum}, {Reduction::kMean, narrow.mean}}) {
          std::vector<std::uint16_t> result(count);
          const ReduceBuffer buffer{.type = narrow.type,
                                    .shape = {static_cast<std::int64_t>(count)},
                                    .in = mine.data(),
                                    .out = result.data()};
          const Status status = group.AllReduce(reduction, {&buffer, 1});
          if (!status.ok()) FAIL_CHECK(ToString(status));
          if (result != std::vector<std::uint16_t>(count, expected)) {
            FAIL_CHECK(NameOf(reduction) << " of " << count << " " << NameOf(narrow.type) << " is "
                                         << result[0] << " in bits and not " << expected);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace muster::collectives
