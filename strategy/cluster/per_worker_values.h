// Values that every worker has one of: datasets, iterators, tables, counters. Each is built on its
// worker by a registered function, and built anew when the worker has been lost and comes back; an
// iterator of a dataset then goes on behind what closures whose results came have taken.
//
// A build's error stays with the value: it is thrown (ClosureInputError) where a closure uses the
// value on that worker, and states() shows it. A value ends with its last handle, when the closures
// that were scheduled until then have ended; one that another is made of lasts as long as that.
//
// Threading: any thread. Lifetime: handles may outlive their coordinator, and are of no use then.
#pragma once

#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/closure_error.h"
#include "strategy/cluster/codec.h"
#include "strategy/cluster/remote_value.h"
#include "strategy/cluster/worker_iterator.h"
#include "strategy/input/graph.h"

namespace muster {

template <>
struct NestFields<TensorSpec> {
  static auto tie(auto& value) { return std::tie(value.name, value.dtype, value.shape); }
};

// A per-worker value on one worker.
struct PerWorkerState {
  enum class Kind : std::uint8_t {
    kBuilding,
    kReady,
    kFailed,   // its function threw
    kAborted,  // the worker is lost
  };
  std::string task;
  Kind kind = Kind::kBuilding;
  // kFailed, kAborted: why.
  std::string message = {};
};

// What one pass of all workers over a per-worker dataset gives closures.
enum class InputGuarantee : std::uint8_t {
  // Each worker has a pass of its own. What a closure took whose result never came is not read
  // again by the one that takes its place; a worker that never comes back takes its rest along.
  kPerWorker,
  // All workers share one pass: closure number n that is scheduled with it has elements n * k to
  // n * k + k - 1, whichever worker runs it and however often, and the elements of one that is
  // cancelled are the next one's. So each is used once.
  kExactlyOnce,
};

struct IteratorOptions {
  // Absent: the coordinator's.
  std::optional<InputGuarantee> input = std::nullopt;
  // k of kExactlyOnce; a closure that has returned and left one of them fails with
  // FAILED_PRECONDITION.
  std::int64_t elements_per_closure = 1;
};

namespace internal {
class PerWorker;
using PerWorkerList = std::vector<std::shared_ptr<const PerWorker>>;

std::vector<PerWorkerState> per_worker_states(const PerWorker& value);
// What the builds have left as bytes, by worker. Waits for them.
std::vector<Bytes> per_worker_bytes(const PerWorker& value, const Deadline& deadline);
// RESOURCE_EXHAUSTED: it is too long to travel.
ByteReader open_built(std::span<const std::byte> bytes);
// `function` in the form that makes an iterator of the dataset that it has built.
std::shared_ptr<const PerWorker> create_iterator(const std::shared_ptr<const PerWorker>& dataset,
                                                 const IteratorOptions& options);
}  // namespace internal

// Passed to a function that takes T& (the worker's own), const T& or T.
template <class T>
class PerWorkerValues {
 public:
  using value_type = T;

  PerWorkerValues() = default;
  explicit PerWorkerValues(std::shared_ptr<const internal::PerWorker> value)
      : value_(std::move(value)) {}

  // What each worker's function has returned, in the order of tasks; waits until all are built. A
  // worker that has not been connected yet has none and is left out: later there may be more.
  //   The first error of a build, as ClosureError.  ClosureAbortedError: a worker is lost, or was
  //   drained, until it is back.  DEADLINE_EXCEEDED: says which worker is waited for.
  //   RESOURCE_EXHAUSTED: one has more than 128 MiB, which closures of its worker alone can use.
  std::vector<T> fetch(const internal::Deadline& deadline = std::nullopt) const
    requires Travels<T>
  {
    std::vector<T> values;
    for (const Bytes& bytes : internal::per_worker_bytes(get(), deadline)) {
      ByteReader from = internal::open_built(bytes);
      values.push_back(Codec<T>::read(from));
    }
    return values;
  }
  // Waits until all workers have built it; errors are those of fetch().
  void wait(const internal::Deadline& deadline = std::nullopt) const {
    (void)internal::per_worker_bytes(get(), deadline);
  }
  // Where it stands now, by worker.
  std::vector<PerWorkerState> states() const { return internal::per_worker_states(get()); }

  // FAILED_PRECONDITION: a handle of no value.
  const internal::PerWorker& get() const {
    if (value_ == nullptr) {
      raise(ErrorCode::kFailedPrecondition,
            "this PerWorkerValues is of no value: "
            "ClusterCoordinator::create_per_worker_resource()");
    }
    return *value_;
  }
  // For the coordinator: keeps the value as long as this handle would.
  const std::shared_ptr<const internal::PerWorker>& handle() const { return value_; }

 protected:
  std::shared_ptr<const internal::PerWorker> value_;
};

namespace internal {
using ElementSpec = std::optional<std::vector<TensorSpec>>;
template <class D>
using PassOf = std::decay_t<decltype(std::declval<const D&>().iterator())>;
template <class D>
using ElementOf = typename std::decay_t<decltype(std::declval<PassOf<D>&>().next())>::value_type;
}  // namespace internal

// Dataset, DistributedDataset, and what else has their iterator() and element_spec().
template <class D>
concept Iterable = requires(const D& dataset) {
  typename internal::PassOf<D>;
  typename internal::ElementOf<D>;
  { dataset.element_spec() } -> std::convertible_to<internal::ElementSpec>;
};

// Given to a function that takes WorkerIterator<T>&.
template <class T>
using PerWorkerIterator = PerWorkerValues<WorkerIterator<T>>;

// A dataset on every worker; may itself be given to a function that takes const D&.
template <Iterable D>
class PerWorkerDataset : public PerWorkerValues<D> {
 public:
  using PerWorkerValues<D>::PerWorkerValues;

  // A pass over it. kExactlyOnce waits until a worker has built the dataset, which must be the same
  // on all: a worker with another one fails closures with FAILED_PRECONDITION, as an input's error.
  //   FAILED_PRECONDITION: inside a closure.  INVALID_ARGUMENT, under kExactlyOnce: elements that
  //   cannot be found by their number, and why; less than one element for a closure.  Errors of the
  //   dataset's function; DEADLINE_EXCEEDED: the coordinator's timeout.
  PerWorkerIterator<internal::ElementOf<D>> iterator(const IteratorOptions& options = {}) const {
    (void)this->get();
    return PerWorkerIterator<internal::ElementOf<D>>(
        internal::create_iterator(this->value_, options));
  }
  // What the first worker's dataset says of its elements, leaf by leaf; of a DistributedDataset
  // those of one replica. Nothing where only running the pipeline tells. Waits for it; errors are
  // those of fetch().
  internal::ElementSpec element_spec(const internal::Deadline& deadline = std::nullopt) const {
    const std::vector<Bytes> specs = internal::per_worker_bytes(this->get(), deadline);
    if (specs.empty()) return std::nullopt;
    ByteReader from(specs.front());
    return Codec<internal::ElementSpec>::read(from);
  }
};

namespace internal {
// The T of PerWorkerValues<T>, and of what is made of it.
template <class T>
std::type_identity<T> per_worker_type(const PerWorkerValues<T>&);
template <class G>
concept PerWorkerArgument = requires(const G& given) { internal::per_worker_type(given); };
}  // namespace internal

}  // namespace muster
