// How long members of a group may take to find each other: they and who asks them must agree on it.
#pragma once

#include <cstddef>

#include "common/base/scheduler.h"

namespace muster {

// Where all members have agreed to form the group now. The last rank greets all others one after
// another: two links to each, for which something goes there and back three times, behind TLS four
// times. That is for hosts 10 ms apart, and busy ones.
inline Millis TimeToForm(std::size_t members) {
  return Millis(2'000 + 100 * static_cast<Millis::rep>(members));
}

}  // namespace muster
