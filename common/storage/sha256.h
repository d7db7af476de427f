// SHA-256, under which uploaded files are sent, kept and asked for.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace muster::storage {

// Threading: one thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::string_view bytes);
  // Either once, for all that was added; nothing can be added afterwards.
  // 64 digits 0-9a-f.
  [[nodiscard]] std::string Hex();
  // As Content-Security-Policy has it.
  [[nodiscard]] std::string Base64();

 private:
  struct State;
  std::array<unsigned char, 32> Digest();
  const std::unique_ptr<State> state_;
};

// Whether it has the form that Hex() gives.
[[nodiscard]] bool IsSha256Hex(std::string_view text);

}  // namespace muster::storage
