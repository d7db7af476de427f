// What a user's program that ended too early has to say, as whoever can mend it needs it.
#pragma once

#include <deque>
#include <string>

#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::worker {

// The program ended by `how` before it said anything to its daemon; `lines`: the last that it
// printed.
//   kFailedPrecondition: this host lacks a shared library, or has an older one.
//   kInvalidArgument: its main does not call muster::init first, or it ends by itself before.
Status ExplainEarlyEnd(const std::string& how, const std::deque<std::string>& lines);

// It ran for so long and said nothing.
Status ExplainSilence(Millis limit);

}  // namespace muster::worker
