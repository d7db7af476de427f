// Nested structures in typed C++: std::tuple, std::pair, std::vector, std::map, and aggregates that
// say how they are tied together. Leaves are tensors, IndexedSlices and numbers.
//
//   struct Output { torch::Tensor loss, accuracy; };
//   template <> struct muster::NestFields<Output> {
//     static auto tie(auto& value) { return std::tie(value.loss, value.accuracy); }
//   };
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/error.h"
#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"

namespace muster {

// Specialise for an aggregate: static auto tie(auto& value) returns std::tie of its members.
template <class T>
struct NestFields;

namespace nest {

template <class T>
concept Tied = requires(T& value) { NestFields<T>::tie(value); };

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <class T>
struct IsVector : std::false_type {};
template <class T, class A>
struct IsVector<std::vector<T, A>> : std::true_type {};

template <class T>
struct IsMap : std::false_type {};
template <class K, class V, class C, class A>
struct IsMap<std::map<K, V, C, A>> : std::true_type {};

template <class T>
constexpr bool is_container = std::disjunction_v<IsTuple<T>, IsVector<T>, IsMap<T>> || Tied<T>;

// A leaf that can be reduced.
template <class T>
constexpr bool is_leaf =
    std::is_arithmetic_v<T> || std::is_same_v<T, torch::Tensor> || std::is_same_v<T, IndexedSlices>;

// A leaf, or a nest of nothing but leaves.
template <class T>
struct IsReducible : std::bool_constant<is_leaf<T>> {};
template <class... T>
struct IsReducible<std::tuple<T...>> : std::bool_constant<(IsReducible<T>::value && ...)> {};
template <class A, class B>
struct IsReducible<std::pair<A, B>> : IsReducible<std::tuple<A, B>> {};
template <class T, class A>
struct IsReducible<std::vector<T, A>> : IsReducible<T> {};
template <class K, class V, class C, class A>
struct IsReducible<std::map<K, V, C, A>> : IsReducible<V> {};
template <Tied T>
struct IsReducible<T> : std::true_type {};
template <class T>
constexpr bool is_reducible = IsReducible<T>::value;

// The type after a leaf-wise operation that makes tensors: numbers become scalar tensors.
template <class T>
struct Tensors {
  using type = T;  // Tied: its leaves must be tensors
};
template <class T>
  requires std::is_arithmetic_v<T>
struct Tensors<T> {
  using type = torch::Tensor;
};
template <class... T>
struct Tensors<std::tuple<T...>> {
  using type = std::tuple<typename Tensors<T>::type...>;
};
template <class A, class B>
struct Tensors<std::pair<A, B>> {
  using type = std::pair<typename Tensors<A>::type, typename Tensors<B>::type>;
};
template <class T>
struct Tensors<std::vector<T>> {
  using type = std::vector<typename Tensors<T>::type>;
};
template <class K, class V>
struct Tensors<std::map<K, V>> {
  using type = std::map<K, typename Tensors<V>::type>;
};
template <class T>
using tensors_t = typename Tensors<T>::type;

// What a number is in a tensor, which has no long long, no size_t and no char: the narrowest type
// that has all its values; int64 for std::uint64_t, double for long double.
template <class T>
  requires std::is_arithmetic_v<T>
using in_tensor_t = std::conditional_t<
    std::is_same_v<T, bool> || std::is_same_v<T, float>, T,
    std::conditional_t<
        std::is_floating_point_v<T>, double,
        std::conditional_t<
            sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, std::int8_t, std::uint8_t>,
            std::conditional_t<
                sizeof(T) == 2 && std::is_signed_v<T>, std::int16_t,
                std::conditional_t<(sizeof(T) < 4 || (sizeof(T) == 4 && std::is_signed_v<T>)),
                                   std::int32_t, std::int64_t>>>>>;

// INVALID_ARGUMENT: above the largest int64.
template <class T>
in_tensor_t<T> in_tensor(T value) {
  if constexpr (std::is_unsigned_v<T> && sizeof(T) == sizeof(std::int64_t)) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    if (value > static_cast<T>(kMost)) {
      raise(ErrorCode::kInvalidArgument, std::to_string(value) +
                                             " is above the largest integer of a tensor, " +
                                             std::to_string(kMost));
    }
  }
  return static_cast<in_tensor_t<T>>(value);
}

inline torch::Tensor to_tensor(const torch::Tensor& value) { return value; }
// As in_tensor().
template <class T>
  requires std::is_arithmetic_v<T>
torch::Tensor to_tensor(T value) {
  return torch::scalar_tensor(in_tensor(value), c10::CppTypeToScalarType<in_tensor_t<T>>::value);
}

// The components of one nest on all replicas, in replica order.
template <class T>
using Components = std::vector<const T*>;

// Where values[i] lies. A std::vector<bool> has no bools to point to: constants stand for them.
template <class T, class A>
const T* place_in(const std::vector<T, A>& values, std::size_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    static constexpr bool kFalse = false, kTrue = true;
    return values[i] ? &kTrue : &kFalse;
  } else {
    return &values[i];
  }
}
template <class T>
Components<T> components_of(const std::vector<T>& values) {
  Components<T> components;
  for (std::size_t i = 0; i < values.size(); ++i) components.push_back(place_in(values, i));
  return components;
}

[[noreturn]] inline void raise_mismatch(std::size_t replica, const std::string& what) {
  raise(ErrorCode::kInternal, "replica " + std::to_string(replica) +
                                  " returned another structure than replica 0: " + what);
}

template <class T>
void check_same_structure(const Components<T>& components) {
  for (std::size_t r = 1; r < components.size(); ++r) {
    if constexpr (IsVector<T>::value) {
      if (components[r]->size() != components[0]->size()) {
        raise_mismatch(r, "a list of length " + std::to_string(components[r]->size()) + ", not " +
                              std::to_string(components[0]->size()));
      }
    } else if constexpr (IsMap<T>::value) {
      auto other = components[r]->begin();
      bool same = components[r]->size() == components[0]->size();
      for (const auto& [key, value] : *components[0]) {
        (void)value;
        same = same && other->first == key;
        if (!same) raise_mismatch(r, "a mapping with other keys");
        ++other;
      }
      if (!same) raise_mismatch(r, "a mapping with other keys");
    }
  }
}

// Puts leaf(all components of a leaf) in every leaf's place. `leaf` takes Components<Leaf>.
template <class T, class Leaf>
tensors_t<T> combine(const Components<T>& components, Leaf&& leaf);

namespace detail {

template <class Tuple, class Leaf, std::size_t... I>
auto combine_tuple(const Components<Tuple>& components, Leaf&& leaf, std::index_sequence<I...>) {
  const auto one = [&]<std::size_t J>(std::integral_constant<std::size_t, J>) {
    Components<std::remove_cvref_t<std::tuple_element_t<J, Tuple>>> inner;
    for (const Tuple* component : components) inner.push_back(&std::get<J>(*component));
    return combine(inner, leaf);
  };
  return tensors_t<Tuple>{one(std::integral_constant<std::size_t, I>())...};
}

}  // namespace detail

template <class T, class Leaf>
tensors_t<T> combine(const Components<T>& components, Leaf&& leaf) {
  check_same_structure(components);
  if constexpr (IsTuple<T>::value) {
    return detail::combine_tuple(components, leaf,
                                 std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (IsVector<T>::value) {
    tensors_t<T> result;
    for (std::size_t i = 0; i < components[0]->size(); ++i) {
      Components<typename T::value_type> inner;
      for (const T* component : components) inner.push_back(place_in(*component, i));
      result.push_back(combine(inner, leaf));
    }
    return result;
  } else if constexpr (IsMap<T>::value) {
    tensors_t<T> result;
    for (const auto& [key, value] : *components[0]) {
      (void)value;
      Components<typename T::mapped_type> inner;
      for (const T* component : components) inner.push_back(&component->at(key));
      result.emplace(key, combine(inner, leaf));
    }
    return result;
  } else if constexpr (Tied<T>) {
    T result = *components[0];
    auto fields = NestFields<T>::tie(result);
    const auto each = [&]<std::size_t... I>(std::index_sequence<I...>) {
      const auto one = [&]<std::size_t J>(std::integral_constant<std::size_t, J>) {
        Components<std::remove_cvref_t<std::tuple_element_t<J, decltype(fields)>>> inner;
        for (const T* component : components) {
          inner.push_back(&std::get<J>(NestFields<T>::tie(const_cast<T&>(*component))));
        }
        std::get<J>(fields) = combine(inner, leaf);
      };
      (one(std::integral_constant<std::size_t, I>()), ...);
    };
    each(std::make_index_sequence<std::tuple_size_v<decltype(fields)>>());
    return result;
  } else {
    return leaf(components);
  }
}

// Whether all components of every leaf are one and the same tensor. An undefined one is no tensor,
// and where there are no leaves nothing is the same.
template <class T>
bool same_objects(const std::vector<T>& components) {
  bool same = true, any = false;
  combine(components_of(components), [&]<class L>(const Components<L>& leaves) {
    any = true;
    for (const L* one : leaves) {
      if constexpr (std::is_same_v<L, torch::Tensor>) {
        same = same && one->defined() && one->is_same(*leaves[0]);
      } else if constexpr (std::is_same_v<L, IndexedSlices>) {
        // The same values may be those of other rows.
        same = same && one->values.defined() && one->values.is_same(leaves[0]->values) &&
               one->indices.is_same(leaves[0]->indices) &&
               one->dense_shape == leaves[0]->dense_shape;
      } else {
        same = false;
      }
    }
    if constexpr (std::is_arithmetic_v<L>) {
      return torch::Tensor();
    } else {
      return *leaves[0];
    }
  });
  return any && same;
}

}  // namespace nest
}  // namespace muster
