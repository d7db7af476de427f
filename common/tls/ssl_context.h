// What all sessions of this process have in common: TLS 1.3 alone, its ciphers, no tickets.
#pragma once

#include <memory>

#include "common/base/status.h"

struct ssl_ctx_st;

namespace muster::tls {

struct FreeSslContext {
  void operator()(ssl_ctx_st* one) const;
};
using SslContextPtr = std::unique_ptr<ssl_ctx_st, FreeSslContext>;

// kInternal: what OpenSSL has against it.
Result<SslContextPtr> MakeSslContext();

// For contexts that others make, as gRPC does, which has no setting for it (1.51): from the first
// call on OpenSSL makes none in this process that takes less than TLS 1.3. This replaces the
// system's defaults for contexts, and does nothing for a library with a TLS of its own.
//   kInternal: what OpenSSL has against it.
Status RequireTls13();

}  // namespace muster::tls
