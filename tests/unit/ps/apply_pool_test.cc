#include "ps/apply_pool.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "ps/float_mode.h"
#include "tests/support/catch.h"

namespace muster::ps {
namespace {

TEST_CASE("every piece runs exactly once, whatever the number of helpers", "[ps][unit]") {
  for (const int helpers : {0, 1, 3}) {
    ApplyPool pool(helpers);
    CHECK(pool.helpers() == static_cast<std::size_t>(helpers));
    for (const std::size_t pieces : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> runs(pieces);
      pool.Run(pieces, [&](std::size_t i) { ++runs[i]; });
      for (const auto& count : runs) CHECK(count == 1);
    }
  }
}

TEST_CASE("several threads share one pool", "[ps][unit]") {
  ApplyPool pool(2);
  std::atomic<int> runs{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) pool.Run(7, [&](std::size_t) { ++runs; });
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK(runs == 4 * 200 * 7);
}

TEST_CASE("subnormal numbers are zero under the guard and come back after it", "[ps][unit]") {
  // volatile: the compiler must not do the sums itself.
  volatile float smallest = std::numeric_limits<float>::min();
  volatile float subnormal = std::numeric_limits<float>::denorm_min();
  volatile float half = 0.5F;
  volatile float big = 0x1p100F;
  {
    const FlushSubnormals flush;
    volatile float product = smallest * half;
    volatile float scaled = subnormal * big;
    CHECK(product == 0);
    CHECK(scaled == 0);
  }
  volatile float product = smallest * half;
  volatile float scaled = subnormal * big;
  CHECK(product > 0);
  CHECK(scaled > 0);
}

}  // namespace
}  // namespace muster::ps
