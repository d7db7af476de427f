// What a TLS handshake with a server says: for callers whose library keeps that to itself.
#pragma once

#include <string>
#include <string_view>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/tls/context.h"

namespace muster::net {

// Connects to a server of gRPC, shakes hands and hears whether it minds our certificate. OK:
// neither minds the other's, as far as can be seen until `deadline`. Its certificate must be for
// the host of `address`, too.
//   kUnauthenticated, kPermissionDenied: one of the two refuses the other, and why.
//   kUnavailable, kDeadlineExceeded: no server answers.
Status ProbeTls(const std::string& address, tls::Context& context, const std::string& task,
                TimePoint deadline);

// Whether a server answers the beginning of a TLS handshake with one; false also where nobody does.
bool SpeaksTls(const std::string& address, TimePoint deadline);

// What a handshake of our own with the server of `task` says against one by this context (null: in
// the clear): gRPC keeps it to itself. `who` has it: "daemon". OK: nothing that is certain is known
// until `deadline`.
//   kUnauthenticated, kPermissionDenied: one of the two refuses the other, and why.
Status TlsTrouble(const std::string& address, tls::Context* context, const std::string& task,
                  std::string_view who, TimePoint deadline);

}  // namespace muster::net
