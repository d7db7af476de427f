#include "common/net/proof.h"

#include <vector>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "common/base/status.h"

namespace muster::net {

Proof Hmac(std::string_view key, std::span<const std::span<const std::byte>> parts) {
  // A program's threads go on while its process exits: what they use here is not taken down then.
  // (Where another library was first, its choice holds.)
  static const bool lasting = ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
  MUSTER_INVARIANT(lasting);
  std::vector<std::byte> all;
  for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* made = ::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                     reinterpret_cast<const unsigned char*>(all.data()), all.size(),
                                     reinterpret_cast<unsigned char*>(proof.data()), &size);
  MUSTER_INVARIANT(made != nullptr && size == proof.size());
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce RandomNonce() {
  Nonce nonce{};
  const auto got = ::getrandom(nonce.data(), nonce.size(), 0);
  MUSTER_INVARIANT(got == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

}  // namespace muster::net
