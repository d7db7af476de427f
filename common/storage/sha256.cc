#include "common/storage/sha256.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "common/base/status.h"

namespace muster::storage {

struct Sha256::State {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

// Only without memory, or with a libcrypto that has no SHA-256, do these calls fail.
Sha256::Sha256() : state_(std::make_unique<State>()) {
  MUSTER_INVARIANT(state_->context != nullptr &&
                   EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(std::string_view bytes) {
  MUSTER_INVARIANT(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  MUSTER_INVARIANT(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1);
  return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + size, ""));
}

bool IsSha256Hex(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace muster::storage
