#include "common/net/checksum.h"

#include <algorithm>
#include <vector>

#include <isa-l/crc.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "common/base/status.h"

namespace muster::net {

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  // isa-l's length is an int and it neither starts nor ends with the usual inversion.
  constexpr std::size_t kStep = 1U << 30;
  std::uint32_t crc = ~before;
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kStep);
    // isa-l takes a pointer to non-const and only reads through it.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(n), crc);
    bytes = bytes.subspan(n);
  }
  return ~crc;
}

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
