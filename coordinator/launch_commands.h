// What both kinds of launched jobs say to workers, and how they tell people of a process's end.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "muster/v1/cluster.pb.h"

namespace muster::coordinator {

// For processes that did nothing wrong, when another one has failed; where the spec does not say.
inline constexpr Millis kEndGrace{10'000};
// Beyond a grace, for workers to say that what they killed has ended.
inline constexpr Millis kEndMargin{15'000};
// Beyond the grace of a stop, before the job ends without them.
inline constexpr Millis kStopMargin{10'000};
// For the workers of a launch to register with a coordinator that was started again.
inline constexpr Millis kAdoptLimit{20'000};
// What a worker calls the end of a process that did what it was to do.
inline constexpr const char* kEndedWell = "exit code 0";
// Behind what a worker calls the end of a process that was asked to end.
inline constexpr const char* kAsAsked = ", as asked";
// And of one that had nothing to do any more.
inline constexpr const char* kTooLate = ", for it came too late";
// Exit codes up to here are the program's own word, beyond them a shell's for a signal.
inline constexpr std::uint32_t kOwnExitCodes = 127;

inline Millis EndGraceOf(const v1::LaunchSpec& spec) {
  return spec.grace_ms() == 0 ? kEndGrace : Millis(spec.grace_ms());
}

inline v1::Command StopCommand(const std::string& job_id, LaunchNumber launch, Millis grace,
                               bool forget = false) {
  v1::Command command;
  v1::StopLaunch& stop = *command.mutable_stop_launch();
  stop.set_job_id(job_id);
  stop.set_launch(launch.value());
  stop.set_grace_ms(static_cast<std::uint32_t>(grace.count()));
  stop.set_forget(forget);
  return command;
}

// "ended by signal SIGSEGV: its last line".
inline std::string EndText(const v1::LaunchEvent& end) {
  // One that others have killed did not write why.
  const bool says_why = end.signal() != SIGKILL && !end.last_error().empty();
  return fmt::format("ended {} {}{}{}", end.signal() != 0 ? "by" : "with", end.how(),
                     says_why ? ": " : "", says_why ? end.last_error() : "");
}

// Whether that, in a job's row, is how a process ended that failed of itself. What becomes of one
// with its worker is said in other words.
inline bool IsFailureText(std::string_view how) {
  return (how.starts_with("exit code ") || how.starts_with("signal ")) && how != kEndedWell &&
         !how.ends_with(kAsAsked) && !how.ends_with(kTooLate);
}

// The program's own word: another run would say it again.
inline bool IsOwnWord(const v1::LaunchEvent& end) {
  return end.signal() == 0 && end.exit_code() != 0 && end.exit_code() <= kOwnExitCodes;
}

}  // namespace muster::coordinator
