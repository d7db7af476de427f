// What a scheduled function returns, before and after it has run.
//
// Threading: any thread. Lifetime: a value lives as long as its last RemoteValue, also when its
// coordinator is gone; one that was not there by then never is (CANCELLED).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "strategy/cluster/codec.h"
#include "strategy/values/nest.h"

namespace muster {

namespace internal {
class Remote;
using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// The bytes of a value, and who keeps them.
struct FetchedBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keeper;
};
// Without a deadline the coordinator's timeout holds. Throws the closure's error;
// FAILED_PRECONDITION: no closure.
FetchedBytes fetch_bytes(const Remote* remote, const Deadline& deadline);
bool is_ready(const Remote* remote);
// Behind the byte that tells a value from the end of data, which is thrown.
ByteReader open_result(std::span<const std::byte> bytes);
}  // namespace internal

template <class T>
class RemoteValue {
 public:
  using value_type = T;

  // A value of no closure: FAILED_PRECONDITION to fetch.
  RemoteValue() = default;
  explicit RemoteValue(std::shared_ptr<const internal::Remote> remote)
      : remote_(std::move(remote)) {}

  // Waits until the function has run, and as often as it is called gives its value.
  //   Its own error, as ClosureError.  CANCELLED: another closure's error took it along: schedule
  //   it again.  DEADLINE_EXCEEDED: not there yet; says which workers are waited for.
  T fetch(const internal::Deadline& deadline = std::nullopt) const {
    const internal::FetchedBytes fetched = internal::fetch_bytes(remote_.get(), deadline);
    [[maybe_unused]] ByteReader from = internal::open_result(fetched.bytes);
    if constexpr (!std::is_void_v<T>) return Codec<T>::read(from);
  }
  // The same with numbers as tensors.
  auto get(const internal::Deadline& deadline = std::nullopt) const {
    static_assert(nest::is_reducible<T>, "get() is for tensors and numbers: fetch() gives others");
    const T value = fetch(deadline);
    return nest::combine(nest::Components<T>{&value}, [](const auto& only) {
      using Leaf = std::remove_cvref_t<decltype(*only[0])>;
      if constexpr (std::is_arithmetic_v<Leaf>) {
        return nest::to_tensor(*only[0]);
      } else {
        return *only[0];
      }
    });
  }
  // It has a value or an error, or will never have one (CANCELLED): fetch() does not wait.
  bool ready() const { return internal::is_ready(remote_.get()); }

 private:
  std::shared_ptr<const internal::Remote> remote_;
};

template <class T>
struct IsRemoteValue : std::false_type {};
template <class T>
struct IsRemoteValue<RemoteValue<T>> : std::true_type {};

}  // namespace muster
