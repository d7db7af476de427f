// Functions of a program as closures, by their types, for programs without libtorch (those on the
// C++ API include strategy/cluster/function.h, never both):
//
//   double Square(double x) { return x * x; }
//   MUSTER_FUNCTION(Square);
//   ...
//   auto square = dispatch::Schedule<Square>(driver, 3.0);   // Result<TypedValue<double>>
//   Result<double> nine = square->Fetch();
//
// Scheduling a function that is not registered does not compile, and neither do arguments that it
// does not take. Functions travel as numbers of ProgramFunctions(), the same in all processes of
// one executable.
//
// A function may take a ClosureContext& first, then the program's own object, and may return T,
// void, Status or Result<T>:
//
//   std::unique_ptr<Model> Make() { ... }
//   MUSTER_PROGRAM(Make);
//   double Loss(Model& model, const std::vector<double>& batch) { ... }
//   MUSTER_FUNCTION(Loss);
//
// Each process has one such object: an executor builds it before it serves, the driver when it
// first asks for it (ProgramObject<Model>()). Arguments and results are values: numbers, enums and
// other trivially copyable types without pointers, strings, vectors of these; for others specialise
// Codec.
//
// Threading: Schedule() and Fetch() from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "dispatch/driver.h"
#include "dispatch/functions.h"

#include "common/base/mutex.h"

namespace muster::dispatch {

// Write() appends; Read() takes its bytes from the front.  kInvalidArgument: they are none of T.
template <class T>
struct Codec {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                "values of this type cannot travel: specialise muster::dispatch::Codec for it");
  static void Write(const T& value, std::vector<std::byte>& to) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  static Status Read(std::span<const std::byte>& from, T& value) {
    if (from.size() < sizeof(T)) {
      return InvalidArgument("{} bytes are left of arguments, {} are needed", from.size(),
                             sizeof(T));
    }
    std::memcpy(&value, from.data(), sizeof(T));
    from = from.subspan(sizeof(T));
    return Ok();
  }
};

template <class T>
  requires(!std::is_same_v<T, bool>)
struct Codec<std::vector<T>> {
  static void Write(const std::vector<T>& values, std::vector<std::byte>& to) {
    Codec<std::uint64_t>::Write(values.size(), to);
    for (const T& value : values) Codec<T>::Write(value, to);
  }
  static Status Read(std::span<const std::byte>& from, std::vector<T>& values) {
    std::uint64_t size = 0;
    MUSTER_TRY(Codec<std::uint64_t>::Read(from, size));
    values.clear();
    for (; size > 0; --size) {
      // One value has one byte at least: a wrong size ends here, whatever it says.
      if (from.empty()) return InvalidArgument("{} elements of a list are missing", size);
      MUSTER_TRY(Codec<T>::Read(from, values.emplace_back()));
    }
    return Ok();
  }
};

template <>
struct Codec<std::string> {
  static void Write(const std::string& text, std::vector<std::byte>& to) {
    Codec<std::uint64_t>::Write(text.size(), to);
    const auto bytes = std::as_bytes(std::span(text));
    to.insert(to.end(), bytes.begin(), bytes.end());
  }
  static Status Read(std::span<const std::byte>& from, std::string& text) {
    std::uint64_t size = 0;
    MUSTER_TRY(Codec<std::uint64_t>::Read(from, size));
    if (size > from.size()) return InvalidArgument("{} bytes of a text are missing", size);
    text.assign(reinterpret_cast<const char*>(from.data()), size);
    from = from.subspan(size);
    return Ok();
  }
};

namespace internal {

// Specialised by MUSTER_FUNCTION.
template <auto function>
struct Registration {
  static constexpr bool kRegistered = false;
};

// Specialised by MUSTER_PROGRAM.
template <class T>
inline constexpr bool kIsProgramObject = false;
template <class T>
struct ProgramObjectAt;  // static Result<T*> Get()

template <class T>
struct MadeBy {
  using Type = T;
};
template <class T>
struct MadeBy<std::unique_ptr<T>> {
  using Type = T;
};

// What a make function makes, once in a process.
template <class T>
class ProgramObjectPlace {
 public:
  template <class Make>
  Result<T*> Get(Make make, const char* name) {
    const MutexLock lock(mutex_);
    if (object_ != nullptr) return object_.get();
    try {
      if constexpr (std::is_same_v<decltype(make()), std::unique_ptr<T>>) {
        object_ = make();
      } else {
        object_ = std::unique_ptr<T>(new T(make()));
      }
    } catch (const std::exception& thrown) {
      return Unknown("{} threw: {}", name, thrown.what());
    } catch (...) {
      return Unknown("{} threw what is no std::exception", name);
    }
    if (object_ == nullptr) return InvalidArgument("{} made nothing", name);
    return object_.get();
  }

 private:
  Mutex mutex_;
  std::unique_ptr<T> object_ MUSTER_GUARDED_BY(mutex_);
};

template <class T>
struct ValueOf {
  using Type = T;
};
template <class T>
struct ValueOf<Result<T>> {
  using Type = T;
};
template <>
struct ValueOf<Status> {
  using Type = void;
};

template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using Value = typename ValueOf<R>::Type;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Object = void;
  static constexpr bool kTakesContext = false;
};
template <class R, class... A>
struct Signature<R (*)(ClosureContext&, A...)> {
  using Value = typename ValueOf<R>::Type;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Object = void;
  static constexpr bool kTakesContext = true;
};
template <class R, class P, class... A>
  requires kIsProgramObject<P>
struct Signature<R (*)(P&, A...)> {
  using Value = typename ValueOf<R>::Type;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Object = P;
  static constexpr bool kTakesContext = false;
};
template <class R, class P, class... A>
  requires kIsProgramObject<P>
struct Signature<R (*)(ClosureContext&, P&, A...)> {
  using Value = typename ValueOf<R>::Type;
  using Arguments = std::tuple<std::decay_t<A>...>;
  using Object = P;
  static constexpr bool kTakesContext = true;
};

// Arguments may be converted as in a call, but never narrowed silently into another kind of thing.
template <class Tuple, class... Given>
inline constexpr bool kTakes = false;
template <class... Wanted, class... Given>
  requires(sizeof...(Wanted) == sizeof...(Given))
inline constexpr bool kTakes<std::tuple<Wanted...>, Given...> =
    (std::is_convertible_v<Given, Wanted> && ...);

// What stands before the arguments of a call: the context, the object, both or neither.
template <class Of>
auto LeadingArguments(ClosureContext& context, typename Of::Object* object) {
  if constexpr (Of::kTakesContext && !std::is_void_v<typename Of::Object>) {
    return std::tie(context, *object);
  } else if constexpr (Of::kTakesContext) {
    return std::tie(context);
  } else if constexpr (!std::is_void_v<typename Of::Object>) {
    return std::tie(*object);
  } else {
    return std::tuple<>();
  }
}

template <auto function>
Status CallWithBytes(ClosureContext& context) {
  using Of = Signature<decltype(function)>;
  typename Of::Arguments arguments;
  std::span<const std::byte> from = context.arguments();
  Status read;
  std::apply(
      [&](auto&... each) {
        ((read.ok() ? void(read = Codec<std::decay_t<decltype(each)>>::Read(from, each)) : void()),
         ...);
      },
      arguments);
  if (!read.ok()) return read;
  if (!from.empty()) return InvalidArgument("{} bytes too many of arguments", from.size());
  typename Of::Object* object = nullptr;
  if constexpr (!std::is_void_v<typename Of::Object>) {
    auto found = ProgramObjectAt<typename Of::Object>::Get();
    if (!found.ok()) return found.status();
    object = *found;
  }
  const auto call = [&]() -> decltype(auto) {
    return std::apply(
        [&](auto&... first) -> decltype(auto) {
          return std::apply(
              [&](auto&... each) -> decltype(auto) {
                return function(first..., std::move(each)...);
              },
              arguments);
        },
        LeadingArguments<Of>(context, object));
  };
  using Returned = decltype(call());
  if constexpr (std::is_void_v<Returned>) {
    call();
    return Ok();
  } else if constexpr (std::is_same_v<Returned, Status>) {
    return call();
  } else if constexpr (std::is_same_v<Returned, typename Of::Value>) {
    Codec<Returned>::Write(call(), context.value());
    return Ok();
  } else {
    auto result = call();
    if (!result.ok()) return result.status();
    Codec<typename Of::Value>::Write(*result, context.value());
    return Ok();
  }
}

}  // namespace internal

// This process's object of a MUSTER_PROGRAM, built at the first call. Threading: any; what
// functions that run at once do with it is theirs to order.
//   As BuildProgramObjects().
template <class T>
  requires internal::kIsProgramObject<T>
Result<T*> ProgramObject() {
  return internal::ProgramObjectAt<T>::Get();
}

// Whether Schedule<function>(driver, Given...) compiles.
template <auto function, class... Given>
concept Schedulable =
    internal::Registration<function>::kRegistered &&
    internal::kTakes<typename internal::Signature<decltype(function)>::Arguments, Given...>;

// The future of a T. Lifetime: the driver outlives Fetch().
template <class T>
class TypedValue {
 public:
  TypedValue(Driver& driver, RemoteValue value) : driver_(&driver), value_(std::move(value)) {}

  // As Driver::Fetch(): Result<T>, or Status of a function that returns nothing.
  Result<T> Fetch(TimePoint deadline = TimePoint::max()) const
    requires(!std::is_void_v<T>)
  {
    MUSTER_TRY_ASSIGN(const Driver::Values bytes, driver_->Fetch(value_, deadline));
    std::span<const std::byte> from(bytes);
    T value{};
    MUSTER_TRY(Codec<T>::Read(from, value));
    return value;
  }
  Status Fetch(TimePoint deadline = TimePoint::max()) const
    requires(std::is_void_v<T>)
  {
    return driver_->Fetch(value_, deadline).status();
  }
  const RemoteValue& remote() const { return value_; }

 private:
  Driver* driver_;
  RemoteValue value_;
};

template <auto function, class... Given>
  requires Schedulable<function, Given...>
auto Schedule(Driver& driver, const Given&... given)
    -> Result<TypedValue<typename internal::Signature<decltype(function)>::Value>> {
  using Of = internal::Signature<decltype(function)>;
  std::vector<std::byte> bytes;
  [&]<class... Wanted>(std::type_identity<std::tuple<Wanted...>>) {
    (Codec<Wanted>::Write(static_cast<Wanted>(given), bytes), ...);
  }(std::type_identity<typename Of::Arguments>());
  MUSTER_TRY_ASSIGN(RemoteValue value,
                    driver.Schedule(internal::Registration<function>::kNumber, bytes));
  return TypedValue<typename Of::Value>(driver, std::move(value));
}

}  // namespace muster::dispatch

// At namespace scope, outside of any namespace; once for each function. Two functions of one name
// need namespaces in front.
#define MUSTER_FUNCTION(function)                                                         \
  template <>                                                                             \
  struct muster::dispatch::internal::Registration<&function> {                            \
    static constexpr bool kRegistered = true;                                             \
    static inline const std::uint32_t kNumber = muster::dispatch::ProgramFunctions().Add( \
        #function, &muster::dispatch::internal::CallWithBytes<&function>);                \
  }

// As MUSTER_FUNCTION, and before it for functions that take the object: `make` takes nothing and
// returns a T or a unique_ptr<T>. Once for each T.
#define MUSTER_PROGRAM(make)                                                               \
  template <>                                                                              \
  inline constexpr bool muster::dispatch::internal::kIsProgramObject<                      \
      muster::dispatch::internal::MadeBy<decltype(make())>::Type> = true;                  \
  template <>                                                                              \
  struct muster::dispatch::internal::ProgramObjectAt<                                      \
      muster::dispatch::internal::MadeBy<decltype(make())>::Type> {                        \
    using Type = muster::dispatch::internal::MadeBy<decltype(make())>::Type;               \
    static muster::Result<Type*> Get() {                                                   \
      /* Never destroyed: closures may outlive main(). */                                  \
      static auto* const place = new muster::dispatch::internal::ProgramObjectPlace<Type>; \
      return place->Get(&make, #make);                                                     \
    }                                                                                      \
    static inline const bool kAdded =                                                      \
        muster::dispatch::internal::AddProgramObject([] { return Get().status(); });       \
  }
