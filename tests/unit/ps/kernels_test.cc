#include "ps/kernels.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <hwy/targets.h>

#include "ps/apply_pool.h"
#include "ps/float_mode.h"
#include "ps/job_shards.h"
#include "ps/optimizer.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

std::vector<v1::OptimizerSpec> AllOptimizers() {
  std::vector<v1::OptimizerSpec> all;
  for (int kind = v1::OPTIMIZER_KIND_SGD; kind <= v1::OPTIMIZER_KIND_FTRL; ++kind) {
    auto spec = Sgd(0.01);
    spec.set_kind(static_cast<v1::OptimizerKind>(kind));
    all.push_back(spec);
  }
  all.push_back(all[1]);
  all.back().set_nesterov(true);
  all.back().set_weight_decay(0.1);
  return all;
}

struct State {
  explicit State(std::size_t n) : values(n), slots{std::vector<float>(n), std::vector<float>(n)} {}
  bool operator==(const State&) const = default;
  Arrays arrays() { return {values.data(), {slots[0].data(), slots[1].data()}}; }

  std::vector<float> values;
  std::array<std::vector<float>, 2> slots;
};

State Fresh(const Optimizer& optimizer, std::size_t n) {
  State state(n);
  for (std::size_t i = 0; i < n; ++i) state.values[i] = std::sin(static_cast<float>(i));
  for (std::size_t s = 0; s < optimizer.slots().size(); ++s) {
    optimizer.FillSlot(s, state.values, state.slots[s]);
  }
  return state;
}

std::vector<float> Gradient(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(n);
  for (float& value : gradient) value = normal(random);
  return gradient;
}

// Runs on one instruction set at a time, from the plainest to the best.
void OnEachTarget(const std::function<void(std::int64_t)>& run) {
  const std::int64_t supported = hwy::SupportedTargets();
  for (int bit = 62; bit >= 0; --bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((supported & target & HWY_TARGETS) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    run(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST_CASE("every instruction set gives the same bits", "[ps][unit]") {
  constexpr std::size_t kN = 1003;
  for (const auto& spec : AllOptimizers()) {
    const auto optimizer = Optimizer::Create(spec, 100).value();
    std::vector<State> results;
    OnEachTarget([&](std::int64_t) {
      State state = Fresh(optimizer, kN);
      for (std::uint32_t t = 1; t <= 20; ++t) {
        ApplyDense(optimizer.RuleOf(t), state.arrays(), Gradient(kN, t));
      }
      results.push_back(std::move(state));
    });
    REQUIRE(!results.empty());
    for (const State& other : results) CHECK(other == results[0]);
    CHECK(results.size() >= 2);  // SSE2 at least, and what this machine has
  }
}

TEST_CASE("rows are updated as the same rows of a dense update, and no others", "[ps][unit]") {
  constexpr std::size_t kRows = 50;
  const std::vector<std::int64_t> ids{49, 3, 17, 0, 20, 21, 22, 40, 41, 42, 43};
  for (const std::size_t row : {1, 3, 4, 16, 37, 64}) {
    for (const auto& spec : AllOptimizers()) {
      const auto optimizer = Optimizer::Create(spec, 100).value();
      State rows = Fresh(optimizer, kRows * row);
      State dense = rows;
      const State before = rows;
      const auto gradients = Gradient(ids.size() * row, 5);
      std::vector<float> whole(kRows * row);
      for (std::size_t k = 0; k < ids.size(); ++k) {
        std::copy_n(gradients.begin() + static_cast<long>(k * row), row,
                    whole.begin() + ids[k] * static_cast<long>(row));
      }

      ApplyRows(optimizer.RuleOf(3), rows.arrays(), row, ids, gradients.data());
      ApplyDense(optimizer.RuleOf(3), dense.arrays(), whole);

      std::vector<bool> touched(kRows);
      for (const std::int64_t id : ids) touched[static_cast<std::size_t>(id)] = true;
      for (std::size_t i = 0; i < kRows * row; ++i) {
        const State& expected = touched[i / row] ? dense : before;
        REQUIRE(rows.values[i] == expected.values[i]);
        REQUIRE(rows.slots[0][i] == expected.slots[0][i]);
        REQUIRE(rows.slots[1][i] == expected.slots[1][i]);
      }
    }
  }
}

TEST_CASE("gathering copies rows in the order of their ids", "[ps][unit]") {
  std::vector<float> table(300);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  const std::vector<std::int64_t> ids{99, 0, 50, 50, 1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> rows(ids.size() * 3);

  GatherRows(table.data(), 3, ids, rows.data());

  for (std::size_t k = 0; k < ids.size(); ++k) {
    for (std::size_t j = 0; j < 3; ++j) {
      REQUIRE(rows[k * 3 + j] == static_cast<float>(ids[k] * 3 + static_cast<long>(j)));
    }
  }
}

TEST_CASE("one value that is not finite is found anywhere", "[ps][unit]") {
  OnEachTarget([](std::int64_t) {
    for (std::size_t n = 1; n < 80; ++n) {
      std::vector<float> values(n, -3e38F);
      REQUIRE(AllFinite(values));
      for (std::size_t i = 0; i < n; ++i) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          values[i] = bad;
          REQUIRE_FALSE(AllFinite(values));
        }
        values[i] = std::numeric_limits<float>::denorm_min();
      }
    }
    REQUIRE(AllFinite(std::span<const float>()));
  });
}

TEST_CASE("subnormal gradients count as zero where updates are applied", "[ps][unit]") {
  // Through the shards: inline (small) and on the pool's threads (large).
  for (const std::int64_t n : {std::int64_t{100}, std::int64_t{5} << 18}) {
    ApplyPool pool(1);
    auto adagrad = Sgd(1);
    adagrad.set_kind(v1::OPTIMIZER_KIND_ADAGRAD);
    adagrad.set_epsilon(0x1p-100);
    const auto shards = JobShards::Create(Plan({Variable("w", {n})}, adagrad), 0, "", pool).value();
    const std::vector<float> subnormal(static_cast<std::size_t>(n), 1e-40F);

    REQUIRE(shards->ApplyDense(0, Update(1, 1), subnormal).ok());

    std::vector<float> values(static_cast<std::size_t>(n), 1);
    REQUIRE(shards->ReadDense(0, values).ok());
    CHECK(values == std::vector<float>(static_cast<std::size_t>(n)));
  }
}

TEST_CASE("the number of threads does not change a bit", "[ps][unit]") {
  constexpr std::int64_t kRows = 35'000;  // 1.1 Mi floats: more than runs inline
  const std::vector<float> gradient = Gradient(kRows * 32, 1);
  const auto whole = Variable("w", {kRows, 32}, v1::INITIALIZER_KIND_UNIFORM);
  auto table = Variable("x", {kRows, 32}, v1::INITIALIZER_KIND_UNIFORM);
  table.set_embedding(true);
  std::vector<std::int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  for (const auto& spec : AllOptimizers()) {
    std::vector<std::vector<float>> results;
    for (const int helpers : {0, 3}) {
      ApplyPool pool(helpers);
      const auto shards = JobShards::Create(Plan({whole, table}, spec), 0, "", pool).value();
      REQUIRE(shards->ApplyDense(0, Update(1, 1), gradient).ok());
      std::vector<std::int64_t> ids;
      for (std::int64_t id = 0; id < kRows; id += 3) ids.push_back(id);
      const auto rows = std::span(gradient).first(ids.size() * 32);
      REQUIRE(shards->ApplyRows(1, Update(1, 1), all, gradient).ok());
      REQUIRE(shards->ApplyRows(1, Update(2, 1), ids, rows).ok());
      std::vector<float> values(2 * kRows * 32);
      const std::span<float> into(values);
      REQUIRE(shards->ReadDense(0, into.first(kRows * 32)).ok());
      REQUIRE(shards->ReadRows(1, all, into.subspan(kRows * 32)).ok());
      results.push_back(std::move(values));
    }
    CHECK(results[1] == results[0]);
  }
}

// McMahan et al. 2013, algorithm 1, in double and as it stands there.
struct FtrlReference {
  double n, z, w, alpha, beta, l1, l2;
  void Step(double g) {
    const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / alpha;
    z += g - sigma * w;
    n += g * g;
    w = std::fabs(z) <= l1 ? 0 : -(z - std::copysign(l1, z)) / ((beta + std::sqrt(n)) / alpha + l2);
  }
};

TEST_CASE("ftrl follows the paper for 1,000 steps", "[ps][unit]") {
  constexpr std::size_t kN = 500;
  for (const double l1 : {0.0, 0.5}) {
    for (const double l2 : {0.0, 0.1}) {
      auto spec = Sgd(0.05);
      spec.set_kind(v1::OPTIMIZER_KIND_FTRL);
      spec.set_l1(l1);
      spec.set_l2(l2);
      const auto optimizer = Optimizer::Create(spec, 1000).value();
      State state = Fresh(optimizer, kN);
      const std::vector<float> start = state.values;
      std::vector<FtrlReference> reference;
      for (const float w : start) {
        // z such that the initial value is what the rule would choose.
        const double rate = (1 + std::sqrt(0.1)) / 0.05 + l2;
        const double z = w == 0 ? 0 : -(w * rate + std::copysign(l1, w));
        reference.push_back({0.1, z, w, 0.05, 1, l1, l2});
      }
      for (std::uint32_t t = 1; t <= 1000; ++t) {
        const auto gradient = Gradient(kN, t);
        ApplyDense(optimizer.RuleOf(t), state.arrays(), gradient);
        for (std::size_t i = 0; i < kN; ++i) reference[i].Step(gradient[i]);
      }
      // The error of the whole vector: 1,000 roundings to float add up to about 1e-6 in any one
      // element.
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < kN; ++i) {
        error += std::pow(state.values[i] - reference[i].w, 2);
        norm += std::pow(reference[i].w, 2);
      }
      INFO("l1 " << l1 << " l2 " << l2 << ": relative error " << std::sqrt(error / norm));
      CHECK(std::sqrt(error / norm) <= 1e-6);
    }
  }
}

TEST_CASE("ftrl keeps initial values until a gradient comes", "[ps][unit]") {
  auto spec = Sgd(0.05);
  spec.set_kind(v1::OPTIMIZER_KIND_FTRL);
  spec.set_l1(0.25);
  const auto optimizer = Optimizer::Create(spec, 1000).value();
  State state = Fresh(optimizer, 64);
  const auto before = state.values;

  ApplyDense(optimizer.RuleOf(1), state.arrays(), std::vector<float>(64));

  for (std::size_t i = 0; i < 64; ++i) CHECK(state.values[i] == Approx(before[i]).epsilon(1e-6));
}

}  // namespace
}  // namespace muster::ps
