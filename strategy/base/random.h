// Random numbers of a part of the work, wherever it runs: what a program uses that cuts each batch
// into a fixed number of parts, so that its results are the same on any number of devices.
//
// Replicas need none of it: each draws from a generator of its own (see Strategy::run).
#pragma once

#include "device/random.h"

namespace muster {

// What the parts of one step are seeded from: one number, which is drawn from libtorch's default
// generator when a part first draws. So torch::manual_seed() fixes it, and a step that draws
// nothing changes nothing. Threading: any thread.
using StepSeed = device::RunSeed;

// PartRandom(seed, part): while it lives, libtorch's random operations on this thread that are
// given no generator draw from one that is seeded for part `part`, 0 or more. Lifetime: the seed
// outlives it.
using PartRandom = device::GeneratorScope;

}  // namespace muster
