#include "strategy/random.h"

#include "worker/engine/device/random.h"

namespace muster {

struct StepSeed::Impl {
  device::RunSeed seed;
};

StepSeed::StepSeed() : impl_(std::make_unique<Impl>()) {}
StepSeed::~StepSeed() = default;

struct PartRandom::Impl {
  device::GeneratorScope scope;
};

PartRandom::PartRandom(StepSeed& seed, int part) : impl_(new Impl{{seed.impl_->seed, part}}) {}
PartRandom::~PartRandom() = default;

}  // namespace muster
