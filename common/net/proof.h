// The proofs of the handshake. Threading: free functions from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::net {

using Proof = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

// HMAC-SHA256 of the parts, one after another, under `key`.
Proof Hmac(std::string_view key, std::span<const std::span<const std::byte>> parts);
// Takes the same time wherever they differ.
bool SameProof(const Proof& a, const Proof& b);
// From the system's generator; aborts when it has none.
Nonce RandomNonce();

}  // namespace muster::net
