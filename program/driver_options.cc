#include "program/driver_options.h"

#include "dispatch/functions.h"

#include "common/base/environment_numbers.h"

namespace muster::program::internal {
namespace {

// How long closures wait for a worker while none is there.
constexpr std::chrono::hours kWorkerPatience{1};

}  // namespace

Result<dispatch::Driver::Options> DriverOptions(const Environment& environment) {
  dispatch::Driver::Options options{.dispatch = {.worker_patience = kWorkerPatience},
                                    .functions = dispatch::ProgramFunctions().hash()};
  MUSTER_TRY_ASSIGN(const auto delay,
                    SecondsIn(environment, "TF_COORDINATOR_SCHEDULE_START_DELAY"));
  MUSTER_TRY_ASSIGN(const auto most,
                    SecondsIn(environment, "TF_COORDINATOR_SCHEDULE_START_DELAY_MAX"));
  MUSTER_TRY_ASSIGN(const auto ps_failures,
                    CountIn(environment, "TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES"));
  MUSTER_TRY_ASSIGN(const auto timeouts,
                    CountIn(environment, "TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS"));
  options.start_delay = delay.value_or(options.start_delay);
  options.most_start_delay = most.value_or(options.most_start_delay);
  dispatch::ErrorPolicy::Options& errors = options.dispatch.errors;
  errors.ps_failures = ps_failures.value_or(errors.ps_failures);
  if (timeouts) errors.timeouts = *timeouts;
  return options;
}

}  // namespace muster::program::internal
