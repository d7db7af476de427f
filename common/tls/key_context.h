// TLS sessions of processes that prove themselves by a secret alone, as a job's do: a pre-shared
// key with an ephemeral exchange, so that what was recorded stays secret when the key leaks later.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/tls/session.h"
#include "common/tls/ssl_context.h"

namespace muster::tls {

class KeyContext {
 public:
  // What OpenSSL has against it is said by the first session.
  static std::shared_ptr<KeyContext> Make();

  // The client's side; the server must have the key too.
  Result<std::unique_ptr<Session>> Connect(NamedKey key);
  // The server's: a name that `keys` does not know is refused.
  Result<std::unique_ptr<Session>> Accept(KeyNamed keys);

 private:
  struct Callbacks;
  KeyContext() = default;
  Result<std::unique_ptr<Session>> NewSession(bool server);

  SslContextPtr context_;
};

}  // namespace muster::tls
