// How collective calls are made.
//
// Threading: plain values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace muster {

// kAuto: as the cross-device ops think best; kRing: each replica reduces its share; kNccl: on GPUs.
class CommunicationImplementation {
 public:
  enum Value : std::uint8_t { kAuto, kRing, kNccl };
  // NOLINTBEGIN(google-explicit-constructor): {.implementation = "ring"}
  constexpr CommunicationImplementation(Value value = kAuto) : value_(value) {}
  // "auto", "RING", "Nccl". INVALID_ARGUMENT: another name.
  CommunicationImplementation(std::string_view name);
  CommunicationImplementation(const char* name)
      : CommunicationImplementation(std::string_view(name)) {}
  constexpr operator Value() const { return value_; }
  // NOLINTEND(google-explicit-constructor)
  std::string_view name() const;

 private:
  Value value_;
};

// Bytes, zero or more. INVALID_ARGUMENT: negative.
class BytesPerPack {
 public:
  // NOLINTBEGIN(google-explicit-constructor): {.bytes_per_pack = 1 << 20}
  BytesPerPack(std::int64_t bytes = 0);
  operator std::size_t() const { return bytes_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  std::size_t bytes_;
};

//   strategy.reduce(...), context.all_reduce(op, gradients, {.bytes_per_pack = 1 << 20});
struct CommunicationOptions {
  // Tensors of a batch travel together in packs that close once they hold more than this; 0: all
  // in one.
  BytesPerPack bytes_per_pack = 0;
  // A call in which a replica waits longer in all throws DEADLINE_EXCEEDED. None, or 0: for ever.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;

  // Values of `other` that are not the default win.
  CommunicationOptions merge(const CommunicationOptions& other) const;
};

}  // namespace muster
