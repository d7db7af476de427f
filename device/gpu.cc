#include "device/gpu.h"

#include <algorithm>
#include <numeric>

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/cuda.h>
#include <torch/version.h>

namespace muster::device {
namespace {

LogicalGpus::Machine AskLibtorch() {
  // Libraries that hold CUDA register their hooks when they are loaded.
  if (!at::CUDAHooksRegistry()->Has("CUDAHooks")) return {};
  try {
    return {.cards = static_cast<int>(torch::cuda::device_count()), .cuda = true};
  } catch (const std::exception&) {  // no driver, or one that is too old: no cards
    return {.cards = 0, .cuda = true};
  }
}

std::string CardsText(int count) { return fmt::format("{} card{}", count, count == 1 ? "" : "s"); }

}  // namespace

LogicalGpus::LogicalGpus(Machine machine)
    : machine_(machine), counts_(static_cast<std::size_t>(machine.cards), 1) {}

LogicalGpus& LogicalGpus::OfProcess() {
  static auto& gpus = *new LogicalGpus(AskLibtorch());
  return gpus;
}

Status LogicalGpus::Configure(int card, int count) {
  const MutexLock lock(mutex_);
  if (card < 0 || card >= machine_.cards) {
    return InvalidArgument("card {} cannot be configured: libtorch finds {} on this machine{}",
                           card, CardsText(machine_.cards),
                           machine_.cuda ? "" : ", for it was built without CUDA");
  }
  if (count < 1) {
    return InvalidArgument("card {} as {} logical GPUs: at least 1 is needed", card, count);
  }
  const int others =
      std::accumulate(counts_.begin(), counts_.end(), 0) - counts_[static_cast<std::size_t>(card)];
  if (count > kMax - others) {
    return InvalidArgument(
        "card {} as {} logical GPUs: {} are on other cards, {} are allowed in all", card, count,
        others, kMax);
  }
  if (settled_) {
    return FailedPrecondition(
        "card {} cannot become {} logical GPUs: they are in use already; configure them before the "
        "first strategy, device name or list of devices",
        card, count);
  }
  counts_[static_cast<std::size_t>(card)] = count;
  return Ok();
}

const std::vector<int>& LogicalGpus::Cards() {
  const MutexLock lock(mutex_);
  if (!settled_) {
    settled_ = true;
    for (std::size_t card = 0; card < counts_.size(); ++card) {
      cards_.insert(cards_.end(), static_cast<std::size_t>(counts_[card]), static_cast<int>(card));
    }
  }
  return cards_;
}

Status LogicalGpus::Check(int gpu) {
  const auto count = static_cast<int>(Cards().size());
  if (gpu >= 0 && gpu < count) return Ok();
  if (!machine_.cuda) {
    return InvalidArgument(
        "device GPU:{}: there are 0 GPUs, for this libtorch ({}) was built without CUDA; build "
        "Muster with one that has it (cmake -DMUSTER_TORCH=<its folder>), or name CPU devices",
        gpu, TORCH_VERSION);
  }
  if (count == 0) {
    return InvalidArgument(
        "device GPU:{}: there are 0 GPUs; libtorch finds no card (nvidia-smi lists those of the "
        "driver, CUDA_VISIBLE_DEVICES may hide them); name CPU devices",
        gpu);
  }
  return InvalidArgument("device GPU:{}: there are {} logical GPUs, GPU:0 to GPU:{}, on {}", gpu,
                         count, count - 1, CardsText(machine_.cards));
}

int LogicalGpus::FirstOn(int card) {
  const std::vector<int>& cards = Cards();
  return static_cast<int>(std::find(cards.begin(), cards.end(), card) - cards.begin());
}

bool LogicalGpus::Shared(int card) {
  const std::vector<int>& cards = Cards();
  return std::count(cards.begin(), cards.end(), card) > 1;
}

}  // namespace muster::device
