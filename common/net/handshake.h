// Both sides prove that they hold their job's key, or the token, and learn if they share a host.
//
//   server -> client  NONCE    32 random bytes
//   client -> server  HELLO    HMAC(key, what it says and the server's nonce)
//   server -> client  WELCOME  HMAC(key, both nonces), or an error; then the link is open
//
// Behind TLS the proofs also cover a secret of that connection, so that they cannot be passed on
// from another one.
//
// Over a Unix socket both processes are of one user, whatever they know.
//
// Threading: that of the channel, one thread a side.
// Errors: kUnauthenticated, a proof is wrong; kDeadlineExceeded and kUnavailable as Channel's, and
// kUnavailable, another user's process (the same peer may be reached by TCP); kDataLoss, what came
// is no handshake.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/channel.h"
#include "common/tls/key_context.h"

namespace muster::net {

struct Identity {
  std::string token = {};
  std::string host_id = {};
  // Over TCP nothing is said but behind TLS, by the token as a key. Null: in the clear.
  std::shared_ptr<tls::KeyContext> tls = nullptr;
};

// Proves the links of one job's processes to each other, and nothing else; the token cannot be told
// from it. Of one epoch of the coordinator; 0: of all, for who outlives it. 32 bytes, not text.
std::string JobKey(std::string_view token, std::string_view job_id, Epoch epoch);

// What a client comes for, as the protocol lays it out (ps/wire.h: job and view).
using Subject = std::array<std::byte, 16>;

// What a client says of itself.
struct Hello {
  // "worker", "bench".
  std::string role;
  std::string host_id;
  Subject subject{};
};

// The server's side, until `deadline` altogether. `admit` decides about a proven hello (what it
// comes for is over: kAborted); its error goes to the client. Any error has been answered where
// that was possible. A server of several kinds of clients says by `key_of` what proves a hello;
// without it that is the identity's token.
using KeyOf = std::function<std::string(const Hello&)>;
Result<Hello> WelcomeClient(Channel& channel, const Identity& self, TimePoint deadline,
                            const std::function<Status(const Hello&)>& admit,
                            const KeyOf& key_of = {});

// The client's side. A refusal is returned as it was said, "peer: " before it.
Status GreetServer(Channel& channel, const Identity& self, const std::string& role,
                   const Subject& subject, TimePoint deadline);

}  // namespace muster::net
