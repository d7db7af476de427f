// Random numbers of replicas: every replica's thread draws from a generator of its own.
//
// The generators of a run are seeded from one number, which is drawn from libtorch's default
// generator when a replica first draws. So torch::manual_seed() before a program fixes what all
// replicas draw, whatever their timing; replicas draw different numbers; and a run that draws
// nothing changes nothing. A GPU's replica has a generator on its card, too; operations of CUDA
// that take none (its dropout) draw from the card's own, in the order in which replicas come.
#pragma once

#include <cstdint>
#include <memory>

namespace muster::device {

// One run's seed. Threading: any thread.
class RunSeed {
 public:
  RunSeed();
  ~RunSeed();
  RunSeed(const RunSeed&) = delete;
  RunSeed& operator=(const RunSeed&) = delete;

  // The same for the same replica, from the second call on.
  std::uint64_t OfReplica(int replica);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// While it lives, libtorch's random operations on this thread that are given no generator draw from
// one that is seeded for `replica`. Lifetime: `seed` outlives it.
class GeneratorScope {
 public:
  GeneratorScope(RunSeed& seed, int replica);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// While it lives, this thread draws from libtorch's default generator again: for what one replica
// does for all, whichever it is.
class GeneratorPause {
 public:
  GeneratorPause();
  ~GeneratorPause();
  GeneratorPause(const GeneratorPause&) = delete;
  GeneratorPause& operator=(const GeneratorPause&) = delete;

 private:
  void* const paused_;
};

}  // namespace muster::device
