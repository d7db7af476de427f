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
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/closure_error.h"
#include "strategy/cluster/closure_call.h"
#include "strategy/cluster/codec.h"
#include "strategy/cluster/per_worker_values.h"
#include "strategy/cluster/program_object.h"
#include "strategy/cluster/remote_value.h"

namespace muster {

namespace internal {

class CoordinatorCore;

using RegisteredForm = void (*)(ClosureCall&);
// Its number in this executable.
std::uint32_t register_function(const char* name, RegisteredForm form);

// For arguments.
struct Arguments {
  Bytes bytes;
  // Ids of per-worker values that the closure has a turn of.
  std::vector<std::uint64_t> turns_of;
  // It is given a worker's own value, which another worker has another one of.
  bool of_worker = false;
};
// INVALID_ARGUMENT: of another coordinator.  CANCELLED: its coordinator is gone.
void write_per_worker(const CoordinatorCore& core, const PerWorker& value, Arguments& to);
void write_error(const Error& error, Bytes& to);
// Throws what write_error() wrote as ClosureInputError.
[[noreturn]] void raise_input(ByteReader& from);
[[noreturn]] void raise_leftover(std::size_t bytes);
// Takes the first two bytes off, and the turns behind.
ByteReader take_turns(std::span<const std::byte>& arguments);
[[noreturn]] void raise_argument_kind(ArgumentKind kind);
[[noreturn]] void raise_no_iterator();
// Where a pass that all workers share begins; why there is none. Behind the specs of a dataset.
struct SharedStart {
  std::string position;
  std::string why_not;
};
SharedStart shared_start(const Graph& graph);
// While it lives, creating a variable on this thread throws INVALID_ARGUMENT.
std::shared_ptr<void> forbid_variables();

// Specialised by MUSTER_FUNCTION.
template <auto function>
struct Registration {
  static constexpr bool kRegistered = false;
};

template <class T>
inline constexpr bool kIsWorkerIterator = false;
template <class T>
inline constexpr bool kIsWorkerIterator<WorkerIterator<T>> = true;

// One parameter of a function on the worker's side.
template <class P>
class Parameter {
  using T = std::remove_cvref_t<P>;
  static constexpr bool kOwnOnly =
      std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;
  static constexpr bool kIsPass = kIsWorkerIterator<T>;

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
  static void write(const CoordinatorCore& core, const G& given, Arguments& arguments) {
    Bytes& to = arguments.bytes;
    if constexpr (PerWorkerArgument<G>) {
      write_per_worker(core, given.get(), arguments);
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
    if (kind == ArgumentKind::kPerWorker || kind == ArgumentKind::kTurn) {
      id_ = from.value<std::uint64_t>();
      worker_ = call.per_worker_value(id_);
      if (kind == ArgumentKind::kPerWorker) return;
      if constexpr (kIsPass) {
        worker_ = static_cast<T*>(worker_.get())->part(call.next_turn());
        return;
      }
    }
    if constexpr (Travels<T> && !kOwnOnly) {
      if (kind == ArgumentKind::kValue) {
        value_.emplace(Codec<T>::read(from));
        return;
      }
    }
    raise_argument_kind(kind);
  }
  // When the function has ended, however: where its pass stands.
  void leave(ClosureCall& call) {
    if constexpr (kIsPass) {
      if (worker_ == nullptr) return;
      if (const auto place = static_cast<T*>(worker_.get())->place()) call.leave(id_, *place);
    }
  }
  // When it has returned.
  void finish() {
    if constexpr (kIsPass) static_cast<T*>(worker_.get())->finish();
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
    const auto write_failure = [&to](const Error& error) {
      append_value(to, ArgumentKind::kError);
      write_error(error, to);
    };
    // Its closure's errors; others, a deadline for one, are schedule()'s own.
    std::optional<T> value;
    try {
      value.emplace(static_cast<T>(given.fetch()));
    } catch (const ClosureError& error) {
      return write_failure(error);
    } catch (const EndOfData& error) {
      return write_failure(error);
    }
    append_value(to, ArgumentKind::kValue);
    Codec<T>::write(*value, to);
  }

  struct Nothing {};
  std::conditional_t<std::is_abstract_v<T>, Nothing, std::optional<T>> value_;
  std::shared_ptr<void> worker_;
  std::uint64_t id_ = 0;  // of `worker_`
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

// For PerWorkerValues::fetch(). What is too long for that is of use on its worker all the same; it
// may fill the worker's memory, which has no room for it as bytes.
template <class Value>
void write_built(const Value& value, Bytes& to) {
  if (least_bytes(value) < kLongestValue) {
    to.push_back(kValueFollows);
    Codec<Value>::write(value, to);
    if (to.size() <= kLongestValue) return;
  }
  to = Bytes(1, kTooLong);
}

// What a function's result is on the worker: bytes for the driver, an object of a build. False: it
// has not returned, since its data have ended, which is the result.
template <auto function, class Call>
bool run_with(ClosureCall& call, std::uint8_t flags, const Call& function_call) {
  using Value = ValueOf<function>;
  Bytes& to = call.value();
  if (call.build()) {
    if constexpr (!std::is_void_v<Value>) {
      std::shared_ptr<void> no_variables;
      if constexpr (Iterable<Value>) no_variables = forbid_variables();
      auto object = std::make_shared<Value>(function_call());
      if constexpr (Iterable<Value>) {
        Codec<ElementSpec>::write(object->element_spec(), to);
        SharedStart start{.position = "", .why_not = "it is no muster::Dataset"};
        if constexpr (requires { object->graph(); }) start = shared_start(object->graph());
        Codec<std::string>::write(start.position, to);
        Codec<std::string>::write(start.why_not, to);
      } else if constexpr (Travels<Value>) {
        write_built(*object, to);
      }
      call.built(std::move(object));
    }
    return true;
  }
  try {
    to.push_back(kValueFollows);
    if constexpr (Travels<Value>) {
      Codec<Value>::write(function_call(), to);
    } else {  // no value, or one that stays here
      function_call();
    }
  } catch (const EndOfData&) {
    if ((flags & kEndOfDataIsAResult) == 0) throw;
    to.assign(1, kEndOfData);
    return false;
  }
  return true;
}

// Makes this worker's pass over a dataset that was built.
template <class D>
void build_pass(ClosureCall& call, std::uint8_t flags, ByteReader from) {
  using T = ElementOf<D>;
  const auto built = call.per_worker_value(from.value<std::uint64_t>());
  const D& dataset = *static_cast<const D*>(built.get());
  std::shared_ptr<WorkerIterator<T>> pass;
  if ((flags & kOneForAll) == 0) {
    pass = std::make_shared<OwnPass<D, T>>(std::shared_ptr<const D>(built, &dataset), call.found());
  } else if constexpr (requires { D(dataset.graph().indexed()); }) {
    const auto elements = from.value<std::int64_t>();
    pass = std::make_shared<SharedPass<PassOf<D>, T>>(
        D(dataset.graph().indexed()).iterator(Codec<std::string>::read(from)), elements);
  } else {
    raise_not_shared();
  }
  call.built(std::move(pass));
}

// The registered form of a function.
template <auto function>
void run_function(ClosureCall& call) {
  using Value = ValueOf<function>;
  std::span<const std::byte> arguments = call.arguments();
  const auto flags = ByteReader(arguments).value<std::uint8_t>();
  call.set_turns(take_turns(arguments));
  ByteReader from(arguments);
  if ((flags & kOfStep) != 0) call.set_step(from.value<std::uint64_t>());
  if ((flags & kBuildIterator) != 0) {
    if constexpr (Iterable<Value>) {
      return build_pass<Value>(call, flags, from);
    } else {
      raise_no_iterator();
    }
  }
  using Parameters = typename SignatureOf<function>::Parameters;
  Parameters parameters;
  std::apply([&](auto&... each) { (each.read(from, call), ...); }, parameters);
  if (from.left() > 0) raise_leftover(from.left());
  const auto leave = [&] {
    std::apply([&](auto&... each) { (each.leave(call), ...); }, parameters);
  };
  try {
    const bool returned = run_with<function>(call, flags, [&]() -> decltype(auto) {
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
    if (returned) std::apply([](auto&... each) { (each.finish(), ...); }, parameters);
  } catch (...) {
    try {
      leave();
    } catch (...) {  // the function's own error counts
    }
    throw;
  }
  leave();
}

template <auto function, class... Given>
Arguments write_arguments(const CoordinatorCore& core, std::uint8_t flags, const Given&... given) {
  Arguments arguments;
  append_value(arguments.bytes, flags);
  append_value(arguments.bytes, std::uint8_t{0});
  if ((flags & kOfStep) != 0) append_value(arguments.bytes, std::uint64_t{0});
  [&]<class... P>(std::type_identity<std::tuple<P...>>) {
    (P::write(core, given, arguments), ...);
  }(std::type_identity<typename SignatureOf<function>::Parameters>());
  arguments.bytes[1] = static_cast<std::byte>(arguments.turns_of.size());
  return arguments;
}

// The form of the function that a Registration is of.
template <class R>
inline constexpr RegisteredForm kFormOf = nullptr;
template <auto function>
inline constexpr RegisteredForm kFormOf<Registration<function>> = &run_function<function>;

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
#define MUSTER_FUNCTION(function)                                                                \
  template <>                                                                                    \
  struct muster::internal::Registration<&function> {                                             \
    static constexpr bool kRegistered = true;                                                    \
    /* A name that is looked up in here would be muster's own before it is a user's. */          \
    static inline const std::uint32_t kNumber =                                                  \
        muster::internal::register_function(#function, muster::internal::kFormOf<Registration>); \
  }
