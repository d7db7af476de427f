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

}  // namespace muster::tls
