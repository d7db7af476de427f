// By whose figures the members of a group choose their algorithms.
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "collectives/costs_file.h"
#include "collectives/kernels.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

constexpr int kSize = 4;
constexpr std::size_t kNumbers = 3'001;

// Figures by which this algorithm is the cheapest for everything.
LinkCosts Prefer(Algorithm algorithm) {
  LinkCosts costs;
  costs.of_kind.fill(CheapestBy(algorithm));
  return costs;
}

std::vector<float> NumbersOf(int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 17U);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> values(kNumbers);
  for (float& value : values) value = number(random);
  return values;
}

// What the members of a group get, of whom each is told costs[rank]; the same on all.
std::vector<float> SumBy(Transport transport, const std::vector<std::optional<LinkCosts>>& costs) {
  Address address(kSize);
  address.spec.transport = transport;
  std::vector<std::vector<float>> results(kSize, std::vector<float>(kNumbers));
  std::vector<std::thread> threads;
  for (int r = 0; r < kSize; ++r) {
    threads.emplace_back([&, r] {
      GroupSpec spec = address.Of(r);
      spec.costs = costs[static_cast<std::size_t>(r)];
      // Who waits for what nobody sends is not here for ever.
      const Timeout patience = std::chrono::seconds(20);
      auto group = FormGroup(spec, address.listeners[static_cast<std::size_t>(r)]);
      if (!group.ok()) {
        FAIL_CHECK(ToString(group.status()));
        return;
      }
      const std::vector<float> mine = NumbersOf(r);
      const ReduceBuffer buffer{.type = DType::kFloat32,
                                .shape = {static_cast<std::int64_t>(kNumbers)},
                                .in = mine.data(),
                                .out = results[static_cast<std::size_t>(r)].data()};
      const Status status = (*group)->AllReduce(Reduction::kSum, {&buffer, 1}, patience);
      if (!status.ok()) FAIL_CHECK(ToString(status));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == results[0]);
  return results[0];
}

TEST_CASE("all members go by the first one's costs, whatever they are told themselves",
          "[collectives][process]") {
  const Transport by = GENERATE(Transport::kSockets, Transport::kTcp);
  // Sums in rank order, which of these the direct algorithm alone makes.
  std::vector<std::vector<float>> all;
  std::vector<const void*> sources;
  for (int r = 0; r < kSize; ++r) all.push_back(NumbersOf(r));
  for (const auto& one : all) sources.push_back(one.data());
  std::vector<float> in_order(kNumbers);
  void* const to = in_order.data();
  ReduceRange(Reduction::kSum, DType::kFloat32, sources, {&to, 1}, 0, kNumbers);

  const std::optional<LinkCosts> direct = Prefer(Algorithm::kDirect);
  const std::optional<LinkCosts> ring = Prefer(Algorithm::kRing);
  const std::optional<LinkCosts> tree = Prefer(Algorithm::kTree);
  CHECK(SumBy(by, {direct, ring, tree, std::nullopt}) == in_order);
  const std::vector<float> by_ring = SumBy(by, {ring, direct, std::nullopt, tree});
  CHECK(by_ring != in_order);
  CHECK(by_ring == SumBy(by, {ring, ring, ring, ring}));
  // Whom the first one tells nothing goes by what is built in.
  CHECK(SumBy(by, {std::nullopt, ring, direct, tree}) ==
        SumBy(by, {std::nullopt, std::nullopt, std::nullopt, std::nullopt}));
}

TEST_CASE("TCP and Unix sockets have costs of their own", "[collectives][process]") {
  LinkCosts costs = Prefer(Algorithm::kDirect);
  costs.of_kind[static_cast<std::size_t>(LinkKind::kUnix)] =
      Prefer(Algorithm::kRing).of(LinkKind::kUnix);
  const std::vector<std::optional<LinkCosts>> told(kSize, costs);
  const std::vector<std::optional<LinkCosts>> direct(kSize, Prefer(Algorithm::kDirect));
  const std::vector<float> in_order = SumBy(Transport::kTcp, direct);
  CHECK(SumBy(Transport::kTcp, told) == in_order);
  CHECK(SumBy(Transport::kSockets, told) != in_order);
}

}  // namespace
}  // namespace muster::collectives
