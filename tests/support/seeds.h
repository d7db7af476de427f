// Simulations run one seed after another: --seeds N (or MUSTER_SEEDS) says how many, --seed N (or
// MUSTER_SEED) which one alone.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "tests/support/catch.h"

namespace muster::testing {

// Calls `run` with the seeds 1, 2, ... `usual` of them where the environment asks for no other
// number; a failure shows its seed.
template <class Run>
void EachSeed(std::uint64_t usual, Run run) {
  const auto number = [](const char* name, std::uint64_t otherwise) -> std::uint64_t {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  const std::uint64_t first = number("MUSTER_SEED", 1);
  const std::uint64_t seeds =
      std::getenv("MUSTER_SEED") != nullptr ? 1 : number("MUSTER_SEEDS", usual);
  REQUIRE(seeds > 0);  // a text that is no number would run none, and pass
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    INFO("seed " << seed << " (--seed " << seed << " runs it alone)");
    run(seed);
  }
}

}  // namespace muster::testing
