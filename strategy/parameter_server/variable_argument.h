// Variables on parameter servers as arguments of scheduled functions:
//
//   void count(const muster::Variable& counter) { counter.assign_add(1, /*read_value=*/false); }
//   MUSTER_FUNCTION(count);
//   ...
//   coordinator.schedule<count>(counter);
//
// What travels is which variable it is; in the function it is read and written as others are. Keep
// a handle until the closures that were given it have ended: with the last one the variable goes,
// and they fail. Threading: any thread.
#pragma once

#include "strategy/cluster/codec.h"
#include "strategy/variables/variable.h"

namespace muster {

template <>
struct Codec<Variable> {
  // INVALID_ARGUMENT: it is on no parameter server, or of another job than this process now uses.
  // FAILED_PRECONDITION: it has no value yet.
  static void write(const Variable& variable, Bytes& to);
  // INVALID_ARGUMENT: it is of another job than the closure, or a component that this process has
  // none of.
  static Variable read(ByteReader& from);
};

}  // namespace muster
