// Values of a program as bytes, on their way to workers and back.
//
// What travels: numbers, enums and other trivially copyable types without pointers; strings;
// tensors and IndexedSlices; std::optional, pair, tuple, vector and map of what travels; PerReplica
// of it; and aggregates with NestFields (strategy/values/nest.h). For another type specialise
// Codec:
//
//   template <> struct muster::Codec<Words> {
//     static void write(const Words& words, muster::Bytes& to);   // appends
//     static Words read(muster::ByteReader& from);
//   };
//
// Both sides are one executable, so bytes have no version of their own. read() throws
// INVALID_ARGUMENT for bytes that are no T.
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/values/distributed_values.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/values/nest.h"

namespace muster {

using Bytes = std::vector<std::byte>;

// Bytes that are taken from the front. Lifetime: the bytes outlive it.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  // INVALID_ARGUMENT: fewer are left.
  std::span<const std::byte> take(std::size_t count) {
    if (count > left_.size()) raise_missing(count, left_.size());
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T value() {
    std::array<std::byte, sizeof(T)> bytes;
    std::memcpy(bytes.data(), take(sizeof(T)).data(), sizeof(T));
    return std::bit_cast<T>(bytes);
  }
  // The number of elements of a list, each of which has `each` bytes at least.
  std::size_t count(std::size_t each) {
    const auto said = value<std::uint64_t>();
    if (said > left_.size() / each) raise_missing(said, left_.size() / each);
    return static_cast<std::size_t>(said);
  }
  std::size_t left() const { return left_.size(); }

 private:
  [[noreturn]] static void raise_missing(std::size_t wanted, std::size_t left);

  std::span<const std::byte> left_;
};

template <class T>
struct Codec;

namespace internal {

template <class T>
struct PointsElsewhere : std::bool_constant<std::is_pointer_v<T> || std::is_member_pointer_v<T> ||
                                            std::is_null_pointer_v<T>> {};
template <class T, std::size_t n>
struct PointsElsewhere<std::span<T, n>> : std::true_type {};
template <class C, class T>
struct PointsElsewhere<std::basic_string_view<C, T>> : std::true_type {};
template <class T>
struct PointsElsewhere<std::reference_wrapper<T>> : std::true_type {};
template <class T>
struct PointsElsewhere<c10::ArrayRef<T>> : std::true_type {};

template <class T>
concept PlainBytes = std::is_trivially_copyable_v<T> && !PointsElsewhere<T>::value &&
                     !std::is_reference_v<T> && !std::is_const_v<T> && !nest::Tied<T>;

// Not inline: g++ 12 sees overflows where vector::insert is inlined into a program.
void append(Bytes& to, const void* from, std::size_t size);
template <class T>
void append_value(Bytes& to, const T& value) {
  append(to, &value, sizeof(value));
}

}  // namespace internal

// A type whose values travel.
template <class T>
concept Travels = requires(const T& value, Bytes& to, ByteReader& from) {
  Codec<T>::write(value, to);
  { Codec<T>::read(from) } -> std::same_as<T>;
};

template <internal::PlainBytes T>
struct Codec<T> {
  static void write(const T& value, Bytes& to) { internal::append_value(to, value); }
  static T read(ByteReader& from) { return from.value<T>(); }
};

template <>
struct Codec<std::string> {
  static void write(const std::string& text, Bytes& to);
  static std::string read(ByteReader& from);
};

// The values on the CPU, contiguous, without gradients; an undefined tensor travels, too. Read, it
// has memory of its own.
//   INVALID_ARGUMENT, from write(): a sparse or quantised tensor.
template <>
struct Codec<torch::Tensor> {
  static void write(const torch::Tensor& tensor, Bytes& to);
  static torch::Tensor read(ByteReader& from);
};

template <>
struct Codec<IndexedSlices> {
  static void write(const IndexedSlices& slices, Bytes& to);
  static IndexedSlices read(ByteReader& from);
};

template <Travels T>
struct Codec<std::optional<T>> {
  static void write(const std::optional<T>& value, Bytes& to) {
    internal::append_value(to, value.has_value());
    if (value) Codec<T>::write(*value, to);
  }
  static std::optional<T> read(ByteReader& from) {
    if (from.value<std::uint8_t>() == 0) return std::nullopt;
    return Codec<T>::read(from);
  }
};

template <Travels A, Travels B>
struct Codec<std::pair<A, B>> {
  static void write(const std::pair<A, B>& value, Bytes& to) {
    Codec<A>::write(value.first, to);
    Codec<B>::write(value.second, to);
  }
  static std::pair<A, B> read(ByteReader& from) {
    // Braces: in this order.
    return std::pair<A, B>{Codec<A>::read(from), Codec<B>::read(from)};
  }
};

template <Travels... T>
struct Codec<std::tuple<T...>> {
  static void write(const std::tuple<T...>& value, Bytes& to) {
    std::apply([&](const T&... each) { (Codec<T>::write(each, to), ...); }, value);
  }
  static std::tuple<T...> read([[maybe_unused]] ByteReader& from) {
    return std::tuple<T...>{Codec<T>::read(from)...};
  }
};

template <Travels T>
struct Codec<std::vector<T>> {
  static constexpr bool kWhole = internal::PlainBytes<T> && !std::is_same_v<T, bool>;

  static void write(const std::vector<T>& values, Bytes& to) {
    internal::append_value(to, static_cast<std::uint64_t>(values.size()));
    if constexpr (kWhole) {
      internal::append(to, values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) Codec<T>::write(value, to);
    }
  }
  static std::vector<T> read(ByteReader& from) {
    const std::size_t count = from.count(kWhole ? sizeof(T) : 1);
    std::vector<T> values;
    if constexpr (kWhole && std::is_default_constructible_v<T>) {
      values.resize(count);
      const auto bytes = from.take(count * sizeof(T));
      if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    } else {
      values.reserve(count);
      for (std::size_t i = 0; i < count; ++i) values.push_back(Codec<T>::read(from));
    }
    return values;
  }
};

template <Travels K, Travels V>
struct Codec<std::map<K, V>> {
  static void write(const std::map<K, V>& values, Bytes& to) {
    internal::append_value(to, static_cast<std::uint64_t>(values.size()));
    for (const auto& [key, value] : values) {
      Codec<K>::write(key, to);
      Codec<V>::write(value, to);
    }
  }
  static std::map<K, V> read(ByteReader& from) {
    std::map<K, V> values;
    for (std::size_t left = from.count(1); left > 0; --left) {
      K key = Codec<K>::read(from);
      V value = Codec<V>::read(from);
      values.emplace(std::move(key), std::move(value));
    }
    return values;
  }
};

template <Travels T>
struct Codec<PerReplica<T>> {
  static void write(const PerReplica<T>& value, Bytes& to) {
    Codec<std::vector<T>>::write(value.values(), to);
  }
  static PerReplica<T> read(ByteReader& from) {
    return PerReplica<T>(Codec<std::vector<T>>::read(from));
  }
};

// Its fields, one after another.
template <nest::Tied T>
  requires std::is_default_constructible_v<T>
struct Codec<T> {
  static void write(const T& value, Bytes& to) {
    std::apply(
        [&](const auto&... each) {
          (Codec<std::remove_cvref_t<decltype(each)>>::write(each, to), ...);
        },
        NestFields<T>::tie(const_cast<T&>(value)));
  }
  static T read(ByteReader& from) {
    T value{};
    std::apply(
        [&](auto&... each) {
          ((each = Codec<std::remove_cvref_t<decltype(each)>>::read(from)), ...);
        },
        NestFields<T>::tie(value));
    return value;
  }
};

namespace internal {

// So many bytes at least a value would be, without writing it; 0: only its Codec knows.
template <class T>
std::size_t least_bytes(const T& value) {
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return value.defined() && value.layout() == torch::kStrided ? value.nbytes() : 0;
  } else if constexpr (nest::IsTuple<T>::value) {
    return std::apply(
        [](const auto&... each) { return (std::size_t{0} + ... + least_bytes(each)); }, value);
  } else if constexpr (nest::IsVector<T>::value) {
    if constexpr (PlainBytes<typename T::value_type>) {
      return value.size() * sizeof(typename T::value_type);
    } else {
      std::size_t bytes = 0;
      for (const auto& each : value) bytes += least_bytes(each);
      return bytes;
    }
  } else if constexpr (nest::IsMap<T>::value) {
    std::size_t bytes = 0;
    for (const auto& [key, each] : value) bytes += least_bytes(each);
    return bytes;
  } else {
    return 0;
  }
}

}  // namespace internal

}  // namespace muster
