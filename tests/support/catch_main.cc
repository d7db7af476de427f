// Catch2's own options, those of simulations (seeds.h), and what is said where nothing could run.
#define CATCH_CONFIG_RUNNER
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/support/catch.h"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Catch::Clara::Opt;
using Listener = Catch::EventListenerBase;
using Ended = void;
#else
using Catch::clara::Opt;
using Listener = Catch::TestEventListenerBase;
using Ended = bool;
#endif

int cases_skipped = 0;
int cases_run = 0;

// Counts the cases that warn "skipped: " and check nothing.
class Skips : public Listener {
 public:
  using Listener::Listener;

  Ended assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    warned_ = warned_ || (result.getResultType() == Catch::ResultWas::Warning &&
                          std::string(result.getMessage()).rfind("skipped: ", 0) == 0);
    return Ended(true);
  }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    ++(warned_ && stats.totals.assertions.total() == 0 ? cases_skipped : cases_run);
    warned_ = false;
    Listener::testCaseEnded(stats);
  }

 private:
  bool warned_ = false;
};
CATCH_REGISTER_LISTENER(Skips)

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seeds = 0;
  std::uint64_t seed = 0;
  int skip_code = 0;
  Catch::Session session;
  session.cli(session.cli() | Opt(seeds, "N")["--seeds"]("simulations run N seeds") |
              Opt(seed, "N")["--seed"]("simulations run this seed alone") |
              Opt(skip_code, "N")["--skip-code"]("exit code where all cases are skipped"));
  if (const int error = session.applyCommandLine(argc, argv); error != 0) return error;
  if (seeds != 0) (void)::setenv("MUSTER_SEEDS", std::to_string(seeds).c_str(), 1);
  if (seed != 0) (void)::setenv("MUSTER_SEED", std::to_string(seed).c_str(), 1);
  const int code = session.run();
  return code == 0 && cases_run == 0 && cases_skipped > 0 ? skip_code : code;
}
