// An object that each process of a program has one of, and that functions take first: how they
// reach modules, tables and whatever else is built once.
//
//   std::unique_ptr<Model> make_model() { ... }
//   MUSTER_PROGRAM(make_model);
//   double loss(Model& model, const torch::Tensor& batch) { ... }
//   MUSTER_FUNCTION(loss);
//   ...
//   coordinator.schedule<loss>(batch);                  // in the driver: the object is not given
//   Model& mine = muster::program_object<Model>();      // this process's own
//
// An executor makes it before it serves, the driver when it first asks for it. Executors do not
// share it, and a new executor makes its own: what must outlive one belongs on parameter servers.
//
// Threading: making it, any thread. Functions that run at once (closures_per_worker) share it, and
// what they do with it is theirs to order. Lifetime: to the end of the process.
#pragma once

#include <memory>
#include <type_traits>

namespace muster {
namespace internal {

// Specialised by MUSTER_PROGRAM.
template <class T>
inline constexpr bool kIsProgramObject = false;
template <class T>
struct ProgramObjectAt;  // static T& get()

template <class T>
struct MadeBy {
  using Type = T;
};
template <class T>
struct MadeBy<std::unique_ptr<T>> {
  using Type = T;
};

// INVALID_ARGUMENT: a make function has made nothing.
[[noreturn]] void raise_made_nothing(const char* make);
// `build` is called in an executor before it serves; what it throws is why it does not. Returns
// true, so that it can initialise something.
bool register_program_object(const char* make, void (*build)());

template <class T, class Make>
T* make_program_object(Make make, const char* name) {
  if constexpr (std::is_same_v<decltype(make()), std::unique_ptr<T>>) {
    std::unique_ptr<T> made = make();
    if (made == nullptr) raise_made_nothing(name);
    return made.release();
  } else {
    return new T(make());
  }
}

}  // namespace internal

// A T that MUSTER_PROGRAM makes.
template <class T>
concept ProgramObject = internal::kIsProgramObject<T>;

// This process's own, made at the first call; what its make function throws passes through, and the
// next call tries again.
template <ProgramObject T>
T& program_object() {
  return internal::ProgramObjectAt<T>::get();
}

}  // namespace muster

// At namespace scope, outside of any namespace, before the MUSTER_FUNCTION of functions that take
// the object: `make` takes nothing and returns a T or a unique_ptr<T>. Once for each T.
#define MUSTER_PROGRAM(make)                                                                       \
  template <>                                                                                      \
  inline constexpr bool                                                                            \
      muster::internal::kIsProgramObject<muster::internal::MadeBy<decltype(make())>::Type> = true; \
  template <>                                                                                      \
  struct muster::internal::ProgramObjectAt<muster::internal::MadeBy<decltype(make())>::Type> {     \
    using Type = muster::internal::MadeBy<decltype(make())>::Type;                                 \
    static Type& get() {                                                                           \
      /* Never destroyed: closures may outlive main(). */                                          \
      static Type* const made = muster::internal::make_program_object<Type>(&make, #make);         \
      return *made;                                                                                \
    }                                                                                              \
    static inline const bool kAdded =                                                              \
        muster::internal::register_program_object(#make, [] { (void)get(); });                     \
  }
