// How closures that train, numbered from 1, make steps, and how far one may run ahead of others.
//
// With G gradients in a step, closure c is of step ceil(c / G). A closure of step t may begin when
// all closures of steps 1 to t - 1 - staleness have ended. Staleness 0 is synchronous training: the
// gradients of a step are one update. Without a bound every closure may begin at any time.
//
// Threading: a value.
#pragma once

#include <algorithm>
#include <cstdint>

namespace muster {

struct StepRule {
  static constexpr std::uint64_t kUnbounded = ~std::uint64_t{0};

  // G, from 1.
  std::uint64_t gradients = 1;
  std::uint64_t staleness = kUnbounded;
  // The last closure there will be: its step may have fewer than G.
  std::uint64_t last = kUnbounded;

  bool bounded() const { return staleness != kUnbounded; }
  bool synchronous() const { return staleness == 0; }

  std::uint64_t StepOf(std::uint64_t closure) const {
    return (closure + gradients - 1) / gradients;
  }
  // The last closure of a step.
  std::uint64_t EndOf(std::uint64_t step) const {
    return step > last / gradients ? last : step * gradients;
  }
  // The end of the closure's step; 0 for closure 0.
  std::uint64_t RoundUp(std::uint64_t closure) const { return EndOf(StepOf(closure)); }
  // The first closure from `closure` on after which all may stand still: a synchronous step is not
  // cut through.
  std::uint64_t CutFrom(std::uint64_t closure) const {
    return synchronous() ? RoundUp(closure) : closure;
  }
  // The first cut from `closure` on that is due after a multiple of `every` closures, or as soon
  // as may be; none for 0.
  std::uint64_t CutFrom(std::uint64_t closure, std::uint64_t every) const {
    if (every == 0) return kUnbounded;
    const std::uint64_t step = StepOf(closure);
    const std::uint64_t first = synchronous() && step > 0 ? EndOf(step - 1) + 1 : closure;
    return CutFrom((first + every - 1) / every * every);
  }
  // All closures up to it must have ended before `closure` may begin.
  std::uint64_t NeededFor(std::uint64_t closure) const {
    const std::uint64_t step = StepOf(closure);
    return !bounded() || step <= 1 + staleness ? 0 : EndOf(step - 1 - staleness);
  }
  // The last closure that may begin when all up to `ended` have ended.
  std::uint64_t Limit(std::uint64_t ended) const {
    if (!bounded() || ended >= last) return last;
    const std::uint64_t done = ended / gradients;
    return staleness >= last / gradients - std::min(done, last / gradients)
               ? last
               : EndOf(done + 1 + staleness);
  }
};

}  // namespace muster
