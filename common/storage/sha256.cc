#include "common/storage/sha256.h"

#include <algorithm>

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

std::array<unsigned char, 32> Sha256::Digest() {
  std::array<unsigned char, 32> digest{};
  MUSTER_INVARIANT(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1);
  return digest;
}

std::string Sha256::Hex() { return fmt::format("{:02x}", fmt::join(Digest(), "")); }

std::string Sha256::Base64() {
  const auto digest = Digest();
  std::array<unsigned char, 4 * ((sizeof digest + 2) / 3) + 1> text{};
  const int size = EVP_EncodeBlock(text.data(), digest.data(), sizeof digest);
  return {text.begin(), text.begin() + size};
}

bool IsSha256Hex(std::string_view text) {
  return text.size() == 64 && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace muster::storage
