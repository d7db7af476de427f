// The states of jobs. Threading: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "muster/v1/jobs.pb.h"

namespace muster {

// "RUNNING" for JOB_STATE_RUNNING, as people read it.
inline std::string StateName(v1::JobState state) {
  const std::string& name = v1::JobState_Name(state);
  constexpr std::string_view kPrefix = "JOB_STATE_";
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

inline bool HasEnded(v1::JobState state) {
  return state == v1::JOB_STATE_SUCCEEDED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace muster
