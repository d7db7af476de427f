// Nests of one value for each replica, turned inside out and back.
//
//   std::vector<std::tuple<Tensor, Tensor>>  one tuple for each replica
//   regroup() -> std::tuple<PerReplica<Tensor>, PerReplica<Tensor>>
//   select_replica(r, ...) -> the r-th tuple
//
// Leaves may be of any type. A PerReplica whose components are all one object says so
// (same_object()): the type does not depend on it, nor on the number of replicas.
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/values/distributed_values.h"
#include "strategy/values/nest.h"

namespace muster {

namespace detail {
// A variable: components know the whole that they belong to.
template <class T>
concept HasContainer = requires(const T& value) {
  { value.container() } -> std::same_as<T>;
};
}  // namespace detail

template <class T>
struct Regrouped {
  using type = PerReplica<T>;
};
// The components of a variable make the variable.
template <detail::HasContainer T>
struct Regrouped<T> {
  using type = T;
};
template <class... T>
struct Regrouped<std::tuple<T...>> {
  using type = std::tuple<typename Regrouped<T>::type...>;
};
template <class A, class B>
struct Regrouped<std::pair<A, B>> {
  using type = std::pair<typename Regrouped<A>::type, typename Regrouped<B>::type>;
};
template <class T>
struct Regrouped<std::vector<T>> {
  using type = std::vector<typename Regrouped<T>::type>;
};
template <class K, class V>
struct Regrouped<std::map<K, V>> {
  using type = std::map<K, typename Regrouped<V>::type>;
};

// INVALID_ARGUMENT: no replicas, or variables that are not the components of one. INTERNAL: lists
// of different length, mappings with other keys.
template <class T>
typename Regrouped<T>::type regroup(const std::vector<T>& replicas) {
  if (replicas.empty())
    raise(ErrorCode::kInvalidArgument, "regroup() needs at least one replica's value");
  nest::check_same_structure(nest::components_of(replicas));
  using Result = typename Regrouped<T>::type;
  if constexpr (nest::IsTuple<T>::value) {
    const auto field = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) {
      std::vector<std::tuple_element_t<I, T>> values;
      for (const T& one : replicas) values.push_back(std::get<I>(one));
      return regroup(values);
    };
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Result{field(std::integral_constant<std::size_t, I>())...};
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (nest::IsVector<T>::value) {
    Result result;
    for (std::size_t i = 0; i < replicas[0].size(); ++i) {
      T values;
      for (const T& one : replicas) values.push_back(one[i]);
      result.push_back(regroup(values));
    }
    return result;
  } else if constexpr (nest::IsMap<T>::value) {
    Result result;
    for (const auto& [key, first] : replicas[0]) {
      (void)first;
      std::vector<typename T::mapped_type> values;
      for (const T& one : replicas) values.push_back(one.at(key));
      result.emplace(key, regroup(values));
    }
    return result;
  } else if constexpr (detail::HasContainer<T>) {
    const T whole = replicas[0].container();
    for (std::size_t r = 0; r < replicas.size(); ++r) {
      if (replicas[r].is_same(whole)) continue;
      if (static_cast<int>(r) < whole.size() &&
          replicas[r].is_same(whole.component(static_cast<int>(r)))) {
        continue;
      }
      raise(ErrorCode::kInvalidArgument,
            "regroup(): these are not the components of one variable, in order");
    }
    return whole;
  } else {
    return Result(replicas);
  }
}

namespace detail {

// Whether T is a nest whose leaves are all of the distributed kind Is.
template <class T, template <class> class Is>
struct NestOf : std::false_type {};
template <class... T, template <class> class Is>
  requires(sizeof...(T) > 0)
struct NestOf<std::tuple<T...>, Is>
    : std::bool_constant<((Is<T>::value || NestOf<T, Is>::value) && ...)> {};
template <class A, class B, template <class> class Is>
struct NestOf<std::pair<A, B>, Is> : NestOf<std::tuple<A, B>, Is> {};
template <class T, template <class> class Is>
struct NestOf<std::vector<T>, Is> : NestOf<std::tuple<T>, Is> {};
template <class K, class V, template <class> class Is>
struct NestOf<std::map<K, V>, Is> : NestOf<std::tuple<V>, Is> {};

template <class T>
auto select_nest(int replica, const T& value) {
  if constexpr (nest::IsTuple<T>::value) {
    return std::apply(
        [&](const auto&... field) {
          if constexpr (requires { value.first; }) {
            return std::pair(select_nest(replica, field)...);
          } else {
            return std::tuple(select_nest(replica, field)...);
          }
        },
        value);
  } else if constexpr (nest::IsVector<T>::value) {
    std::vector<decltype(select_nest(replica, value[0]))> result;
    for (const auto& one : value) result.push_back(select_nest(replica, one));
    return result;
  } else if constexpr (nest::IsMap<T>::value) {
    std::map<typename T::key_type, decltype(select_nest(replica, value.begin()->second))> result;
    for (const auto& [key, one] : value) result.emplace(key, select_nest(replica, one));
    return result;
  } else if constexpr (IsMirrored<T>::value) {
    return typename T::value_type(copy_for(replica, value));
  } else if constexpr (IsPerReplica<T>::value) {
    return typename T::value_type(value[replica]);
  } else {
    return value;  // the same for all
  }
}

// Whether T is distributed, or a nest with something distributed in it.
template <class T>
struct HasDistributed : std::bool_constant<IsPerReplica<T>::value || IsMirrored<T>::value> {};
template <class... T>
struct HasDistributed<std::tuple<T...>> : std::bool_constant<(HasDistributed<T>::value || ...)> {};
template <class A, class B>
struct HasDistributed<std::pair<A, B>> : HasDistributed<std::tuple<A, B>> {};
template <class T>
struct HasDistributed<std::vector<T>> : HasDistributed<T> {};
template <class K, class V>
struct HasDistributed<std::map<K, V>> : HasDistributed<V> {};

// each(part) for all that select_nest() takes the replica's component of: `value`, or the leaves of
// a nest, which may have plain values beside them.
template <class T, class Each>
void for_distributed(const T& value, const Each& each) {
  if constexpr (IsPerReplica<T>::value || IsMirrored<T>::value) {
    each(value);
  } else if constexpr (HasDistributed<T>::value) {
    if constexpr (nest::IsTuple<T>::value) {
      std::apply([&](const auto&... field) { (for_distributed(field, each), ...); }, value);
    } else if constexpr (nest::IsMap<T>::value) {
      for (const auto& [key, one] : value) for_distributed(one, each);
    } else {
      for (const auto& one : value) for_distributed(one, each);
    }
  }
}

// Whether select_replica() takes the replica's component of a T, or of all leaves of such a nest.
template <class T>
struct IsTakenApart
    : std::bool_constant<IsPerReplica<T>::value || IsMirrored<T>::value ||
                         NestOf<T, IsPerReplica>::value || NestOf<T, IsMirrored>::value> {};

}  // namespace detail

// The r-th replica's nest of a nest of PerReplica or Mirrored.
template <class T>
  requires(detail::NestOf<T, IsPerReplica>::value || detail::NestOf<T, IsMirrored>::value)
auto select_replica(int replica, const T& value) {
  return detail::select_nest(replica, value);
}
// For Mirrored alone: a PerReplica in the nest does not compile.
template <class T>
  requires(detail::NestOf<T, IsMirrored>::value)
auto select_replica_mirrored(int replica, const T& value) {
  return detail::select_nest(replica, value);
}

}  // namespace muster
