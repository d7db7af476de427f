// Values with one component for each replica.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/error.h"
#include "strategy/values/nest.h"

namespace muster {

namespace detail {
// The replica of this process whose component an unqualified read means; -1 outside a replica
// context.
int current_replica();
// OUT_OF_RANGE.
[[noreturn]] void raise_no_component(int replica, int size);
}  // namespace detail

// What run() returns: replica r's value at [r], whatever the number of replicas. T may be a nest.
// Threading: immutable after construction; reads from any thread.
template <class T>
class PerReplica {
 public:
  using value_type = T;

  // INVALID_ARGUMENT: no values.
  explicit PerReplica(std::vector<T> values) : values_(std::move(values)) {
    if (values_.empty())
      raise(ErrorCode::kInvalidArgument, "a PerReplica needs at least one component");
  }

  int size() const { return static_cast<int>(values_.size()); }
  // OUT_OF_RANGE.
  typename std::vector<T>::const_reference operator[](int replica) const {
    if (replica < 0 || replica >= size()) {
      detail::raise_no_component(replica, size());
    }
    return values_[static_cast<std::size_t>(replica)];
  }
  const std::vector<T>& values() const { return values_; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

  // Its component for the replica that asks. INVALID_ARGUMENT: "not inside a replica context".
  typename std::vector<T>::const_reference get() const {
    const int replica = detail::current_replica();
    if (replica < 0) {
      raise(ErrorCode::kInvalidArgument,
            "a PerReplica of size " + std::to_string(size()) +
                " has no single value: not inside a replica context; pass it to run(), "
                "reduce() or local_results()");
    }
    return (*this)[replica];
  }

  // All components are one object: a value that was never distributed.
  bool same_object() const {
    if constexpr (nest::is_leaf<T> || nest::is_container<T>) {
      return nest::same_objects(values_);
    } else {
      return false;
    }
  }

 private:
  std::vector<T> values_;
};

// A value that is the same on every device, with a copy on each.
template <class T>
class Mirrored {
 public:
  using value_type = T;

  explicit Mirrored(std::vector<T> values) : values_(std::move(values)) {
    if (values_.empty())
      raise(ErrorCode::kInvalidArgument, "a Mirrored needs at least one component");
  }
  int size() const { return static_cast<int>(values_.size()); }
  // OUT_OF_RANGE.
  typename std::vector<T>::const_reference operator[](int replica) const {
    if (replica < 0 || replica >= size()) {
      detail::raise_no_component(replica, size());
    }
    return values_[static_cast<std::size_t>(replica)];
  }
  const std::vector<T>& values() const { return values_; }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  // The replica's own copy in a replica context, else the first.
  typename std::vector<T>::const_reference get() const {
    const int replica = detail::current_replica();
    return values_[replica < 0 || replica >= size() ? 0 : static_cast<std::size_t>(replica)];
  }

 private:
  std::vector<T> values_;
};

template <class T>
struct IsPerReplica : std::false_type {};
template <class T>
struct IsPerReplica<PerReplica<T>> : std::true_type {};
template <class T>
struct IsMirrored : std::false_type {};
template <class T>
struct IsMirrored<Mirrored<T>> : std::true_type {};

namespace detail {
// The copy for a replica or a component. Where there is one alone, it is that of all: it was made
// for one device, whatever their number.
template <class T>
typename std::vector<T>::const_reference copy_for(int index, const Mirrored<T>& value) {
  return value[value.size() == 1 ? 0 : index];
}
}  // namespace detail

// The r-th component of a distributed value; any other value as it is.
template <class T>
decltype(auto) select_replica(int replica, const T& value) {
  if constexpr (IsMirrored<T>::value) {
    return detail::copy_for(replica, value);
  } else if constexpr (IsPerReplica<T>::value) {
    return value[replica];
  } else {
    return (value);
  }
}

// As select_replica, for Mirrored only: a PerReplica does not compile.
template <class T>
decltype(auto) select_replica_mirrored(int replica, const Mirrored<T>& value) {
  return detail::copy_for(replica, value);
}

// What a value_fn learns about the replica that it makes a value for.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
  std::string to_string() const {
    return "ValueContext(replica " + std::to_string(replica_id_in_sync_group) + " of " +
           std::to_string(num_replicas_in_sync) + ")";
  }
};

}  // namespace muster
