// Catch2's own options, and those of simulations (seeds.h).
#define CATCH_CONFIG_RUNNER
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/support/catch.h"

int main(int argc, char** argv) {
#if __has_include(<catch2/catch_all.hpp>)
  using Catch::Clara::Opt;
#else
  using Catch::clara::Opt;
#endif
  std::uint64_t seeds = 0;
  std::uint64_t seed = 0;
  Catch::Session session;
  session.cli(session.cli() | Opt(seeds, "N")["--seeds"]("simulations run N seeds") |
              Opt(seed, "N")["--seed"]("simulations run this seed alone"));
  if (const int error = session.applyCommandLine(argc, argv); error != 0) return error;
  if (seeds != 0) (void)::setenv("MUSTER_SEEDS", std::to_string(seeds).c_str(), 1);
  if (seed != 0) (void)::setenv("MUSTER_SEED", std::to_string(seed).c_str(), 1);
  return session.run();
}
