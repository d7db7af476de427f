// Functions that run as closures on workers:
//
//   double Loss(const torch::Tensor& batch, int epoch) { ... }
//   MUSTER_FUNCTION(Loss);
//   ...
//   muster::RemoteValue<double> loss = coordinator.schedule<Loss>(batch, 3);
//
// Scheduling a function that is not registered does not compile, and neither do arguments that it
// does not take or a result that does not travel (codec.h).
//
// What may be given for a parameter:
//   T, const T&, T&&  a T or what converts to it; a RemoteValue of that: schedule() waits for it,
//                     and an error of it becomes the closure's, a ClosureInputError; a
//                     PerWorkerValues<T>: the worker's own (T: a copy)
//   T&                a PerWorkerValues<T>
//   T& first, where MUSTER_PROGRAM makes a T (program_object.h): nothing; it is the worker's own
//
// The function is called on a worker, in another process: what it does to its own globals stays
// there. It reports errors by throwing: a muster::Error keeps its code, anything else is UNKNOWN.
//
// Threading: closures of one worker run at the same time if the job says so (closures_per_worker).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "strategy/base/closure_error.h"
#include "strategy/cluster/codec.h"
#include "strategy/cluster/per_worker_values.h"
#include "strategy/cluster/program_object.h"
#include "strategy/cluster/remote_value.h"

namespace muster {

namespace dispatch {
class ClosureContext;
}  // namespace dispatch

namespace internal {

class CoordinatorCore;

// The first byte of a closure's arguments.
inline constexpr std::uint8_t kEndOfDataIsAResult = 1;
inline constexpr std::uint8_t kBuildIterator = 2;  // of the dataset whose id follows
// Before each argument.
enum class ArgumentKind : std::uint8_t { kValue, kPerWorker, kError };
// The first byte of a result.
inline constexpr std::byte kValueFollows{0};
inline constexpr std::byte kEndOfData{1};

// One execution, as the registered form of a function sees it.
class ClosureCall {
 public:
  explicit ClosureCall(dispatch::ClosureContext& context) : context_(context) {}

  std::span<const std::byte> arguments() const;
  Bytes& value();
  // It makes this worker's part of a per-worker value.
  bool build() const;
  void built(std::shared_ptr<void> object);
  // ClosureInputError: it could not be built here.
  std::shared_ptr<void> per_worker_value(std::uint64_t id);

 private:
  dispatch::ClosureContext& context_;
};

using RegisteredForm = void (*)(ClosureCall&);
// Its number in this executable.
std::uint32_t register_function(const char* name, RegisteredForm form);

// For arguments.
// INVALID_ARGUMENT: of another coordinator.  CANCELLED: its coordinator is gone.
void write_per_worker(const CoordinatorCore& core, const PerWorker& value, Bytes& to);
void write_error(const Error& error, Bytes& to);
// Throws what write_error() wrote as ClosureInputError.
[[noreturn]] void raise_input(ByteReader& from);
[[noreturn]] void raise_leftover(std::size_t bytes);
[[noreturn]] void raise_argument_kind(ArgumentKind kind);
[[noreturn]] void raise_no_iterator();
// While it lives, creating a variable on this thread throws INVALID_ARGUMENT.
std::shared_ptr<void> forbid_variables();

// Specialised by MUSTER_FUNCTION.
template <auto function>
struct Registration {
  static constexpr bool kRegistered = false;
};

// One parameter of a function on the worker's side.
template <class P>
class Parameter {
  using T = std::remove_cvref_t<P>;
  static constexpr bool kOwnOnly =
      std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;

 public:
  // Whether a G may be given for it.
  template <class G>
  static constexpr bool takes() {
    if constexpr (PerWorkerArgument<G>) {
      using Held = typename decltype(per_worker_type(std::declval<const G&>()))::type;
      return std::is_same_v<Held, T> &&
             (std::is_lvalue_reference_v<P> || std::is_copy_constructible_v<T>);
    } else if constexpr (kOwnOnly) {
      return false;
    } else if constexpr (IsRemoteValue<G>::value) {
      return Travels<T> && std::is_convertible_v<typename G::value_type, T>;
    } else {
      return Travels<T> && std::is_convertible_v<const G&, T>;
    }
  }

  // The driver's side. Waits for a remote value.
  template <class G>
  static void write(const CoordinatorCore& core, const G& given, Bytes& to) {
    if constexpr (PerWorkerArgument<G>) {
      append_value(to, ArgumentKind::kPerWorker);
      write_per_worker(core, given.get(), to);
    } else if constexpr (IsRemoteValue<G>::value) {
      write_remote(given, to);
    } else {
      append_value(to, ArgumentKind::kValue);
      if constexpr (std::is_same_v<G, T>) {
        Codec<T>::write(given, to);
      } else {
        Codec<T>::write(static_cast<T>(given), to);
      }
    }
  }

  // The worker's side.
  void read(ByteReader& from, ClosureCall& call) {
    const auto kind = from.value<ArgumentKind>();
    if (kind == ArgumentKind::kError) raise_input(from);
    if (kind == ArgumentKind::kPerWorker) {
      worker_ = call.per_worker_value(from.value<std::uint64_t>());
      return;
    }
    if constexpr (Travels<T> && !kOwnOnly) {
      if (kind == ArgumentKind::kValue) {
        value_.emplace(Codec<T>::read(from));
        return;
      }
    }
    raise_argument_kind(kind);
  }
  P pass() {
    if constexpr (std::is_lvalue_reference_v<P>) {
      if constexpr (Travels<T> && !kOwnOnly) {
        if (value_) return *value_;
      }
      return *static_cast<T*>(worker_.get());
    } else if constexpr (std::is_copy_constructible_v<T>) {
      if (!value_) value_.emplace(*static_cast<const T*>(worker_.get()));
      return std::move(*value_);
    } else {
      return std::move(*value_);
    }
  }

 private:
  template <class U>
  static void write_remote(const RemoteValue<U>& given, Bytes& to) {
    try {
      const T value = static_cast<T>(given.fetch());
      append_value(to, ArgumentKind::kValue);
      Codec<T>::write(value, to);
    } catch (const Error& error) {
      append_value(to, ArgumentKind::kError);
      write_error(error, to);
    }
  }

  struct Nothing {};
  std::conditional_t<std::is_abstract_v<T>, Nothing, std::optional<T>> value_;
  std::shared_ptr<void> worker_;
};

template <class F>
struct Signature;
template <class R, class... P>
struct Signature<R (*)(P...)> {
  using Value = std::remove_cvref_t<R>;
  using Parameters = std::tuple<Parameter<P>...>;
  using Object = void;
};
template <class R, ProgramObject T, class... P>
struct Signature<R (*)(T&, P...)> {
  using Value = std::remove_cvref_t<R>;
  using Parameters = std::tuple<Parameter<P>...>;
  using Object = T;
};
template <class R, class... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {};
template <auto function>
using SignatureOf = Signature<decltype(function)>;
template <auto function>
using ValueOf = typename SignatureOf<function>::Value;

template <class Tuple, class... Given>
inline constexpr bool kTakes = false;
template <class... P, class... Given>
  requires(sizeof...(P) == sizeof...(Given))
inline constexpr bool kTakes<std::tuple<P...>, Given...> =
    (P::template takes<std::remove_cvref_t<Given>>() && ...);

// What a function's result is on the worker: bytes for the driver, an object of a build.
template <auto function, class Call>
void run_with(ClosureCall& call, std::uint8_t flags, const Call& function_call) {
  using Value = ValueOf<function>;
  Bytes& to = call.value();
  if (call.build()) {
    if constexpr (!std::is_void_v<Value>) {
      std::shared_ptr<void> no_variables;
      if constexpr (Iterable<Value>) no_variables = forbid_variables();
      auto object = std::make_shared<Value>(function_call());
      if constexpr (Iterable<Value>) {
        Codec<ElementSpec>::write(object->element_spec(), to);
      } else if constexpr (Travels<Value>) {
        Codec<Value>::write(*object, to);
      }
      call.built(std::move(object));
    }
    return;
  }
  try {
    to.push_back(kValueFollows);
    if constexpr (std::is_void_v<Value>) {
      function_call();
    } else if constexpr (Travels<Value>) {
      Codec<Value>::write(function_call(), to);
    } else {
      function_call();
    }
  } catch (const EndOfData&) {
    if ((flags & kEndOfDataIsAResult) == 0) throw;
    to.assign(1, kEndOfData);
  }
}

// The registered form of a function.
template <auto function>
void run_function(ClosureCall& call) {
  using Value = ValueOf<function>;
  ByteReader from(call.arguments());
  const auto flags = from.value<std::uint8_t>();
  if ((flags & kBuildIterator) != 0) {
    if constexpr (Iterable<Value>) {
      const auto dataset = call.per_worker_value(from.value<std::uint64_t>());
      call.built(WorkerIterator<ElementOf<Value>>::over(
          static_cast<const Value*>(dataset.get())->iterator()));
      return;
    } else {
      raise_no_iterator();
    }
  }
  typename SignatureOf<function>::Parameters parameters;
  std::apply([&](auto&... each) { (each.read(from, call), ...); }, parameters);
  if (from.left() > 0) raise_leftover(from.left());
  run_with<function>(call, flags, [&]() -> decltype(auto) {
    return std::apply(
        [](auto&... each) -> decltype(auto) {
          using Object = typename SignatureOf<function>::Object;
          if constexpr (std::is_void_v<Object>) {
            return function(each.pass()...);
          } else {
            return function(program_object<Object>(), each.pass()...);
          }
        },
        parameters);
  });
}

template <auto function, class... Given>
Bytes write_arguments(const CoordinatorCore& core, std::uint8_t flags, const Given&... given) {
  Bytes bytes;
  append_value(bytes, flags);
  [&]<class... P>(std::type_identity<std::tuple<P...>>) {
    (P::write(core, given, bytes), ...);
  }(std::type_identity<typename SignatureOf<function>::Parameters>());
  return bytes;
}

}  // namespace internal

// Whether coordinator.schedule<function>(Given...) compiles.
template <auto function, class... Given>
concept Schedulable =
    internal::Registration<function>::kRegistered &&
    (std::is_void_v<internal::ValueOf<function>> || Travels<internal::ValueOf<function>>) &&
    internal::kTakes<typename internal::SignatureOf<function>::Parameters, Given...>;

// Whether coordinator.create_per_worker_resource<function>(Given...) compiles: the result need not
// travel.
template <auto function, class... Given>
concept Buildable =
    internal::Registration<function>::kRegistered && !std::is_void_v<internal::ValueOf<function>> &&
    internal::kTakes<typename internal::SignatureOf<function>::Parameters, Given...>;

}  // namespace muster

// At namespace scope, outside of any namespace; once for each function, in the same order in every
// process, as one executable does.
#define MUSTER_FUNCTION(function)                                                    \
  template <>                                                                        \
  struct muster::internal::Registration<&function> {                                 \
    static constexpr bool kRegistered = true;                                        \
    static inline const std::uint32_t kNumber = muster::internal::register_function( \
        #function, &muster::internal::run_function<&function>);                      \
  }
