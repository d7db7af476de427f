#include "device/tpu.h"

#include <cstddef>

#include <fmt/ranges.h>

namespace muster::device {
namespace {

int CoresOf(const TpuMesh& mesh) { return mesh[0] * mesh[1] * mesh[2] * mesh[3]; }

}  // namespace

TpuCores& TpuCores::OfProcess() {
  static auto& cores = *new TpuCores;
  return cores;
}

Result<bool> TpuCores::Start(const TpuMesh& mesh) {
  const MutexLock lock(mutex_);
  if (!mesh_.has_value()) {
    mesh_ = mesh;
    return true;
  }
  if (*mesh_ == mesh) return false;
  return FailedPrecondition(
      "the TPU system has a topology of {} and cannot get one of {}: shut it down first",
      fmt::join(*mesh_, "x"), fmt::join(mesh, "x"));
}

Status TpuCores::Stop() {
  const MutexLock lock(mutex_);
  if (!mesh_.has_value()) return FailedPrecondition("no TPU system is up that could be shut down");
  mesh_.reset();
  return Ok();
}

std::optional<TpuMesh> TpuCores::mesh() const {
  const MutexLock lock(mutex_);
  return mesh_;
}

int TpuCores::count() const {
  const std::optional<TpuMesh> there = mesh();
  return there.has_value() ? CoresOf(*there) : 0;
}

Status TpuCores::Check(int core) const {
  const int there = count();
  if (core >= 0 && core < there) return Ok();
  if (there == 0) {
    return InvalidArgument(
        "device TPU:{}: no TPU cores are up; call initialize_tpu_system() first, with a topology "
        "such as 2x2x1x2 to emulate",
        core);
  }
  return InvalidArgument("device TPU:{}: there are {} TPU cores, TPU:0 to TPU:{}", core, there,
                         there - 1);
}

}  // namespace muster::device
