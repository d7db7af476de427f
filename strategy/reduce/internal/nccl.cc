#include "strategy/reduce/internal/nccl.h"

#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "collectives/nccl/communicator.h"
#include "common/base/environment.h"
#include "common/base/time_left.h"
#include "common/base/words.h"
#include "common/telemetry/log.h"
#include "device/placing.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/between.h"
#include "strategy/values/internal/reduction.h"

#ifdef MUSTER_NCCL
// libtorch's own communicators, one for each list of cards, and its current streams: what it has
// queued for these tensors comes first, what it queues next comes after.
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/nccl.h>
#endif

namespace muster::internal {

using collectives::nccl::Communicator;

#ifdef MUSTER_NCCL

namespace {

// int32 is reduced on one device, as everywhere (cross_device_ops_for()).
bool Sums(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat32:
    case torch::kFloat64:
    case torch::kInt64:
    case torch::kInt8:
    case torch::kUInt8:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool nccl_in_build() { return true; }

bool nccl_all_reduce(ReduceOp op, const std::vector<torch::Tensor>& values,
                     std::vector<torch::Tensor>& results) {
  const torch::ScalarType type = values[0].scalar_type();
  const torch::ScalarType wide = sum_type(type);
  if (!Sums(wide)) return false;
  if (op == ReduceOp::kMean && torch::isIntegralType(type, /*includeBool=*/true)) return false;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> inputs;
  for (const torch::Tensor& value : values) {
    if (!value.is_cuda() || value.layout() != torch::kStrided || value.scalar_type() != type ||
        !value.sizes().equals(values[0].sizes())) {
      return false;
    }
    inputs.push_back(plain_of(value.detach().to(wide)));
  }
  results.clear();
  for (const torch::Tensor& input : inputs) {
    results.push_back(torch::empty(input.sizes(), input.options()));
  }
  try {
    if (inputs[0].numel() > 0) torch::cuda::nccl::all_reduce(inputs, results);
  } catch (const c10::Error& error) {
    raise(Unavailable("all-reduce by NCCL over {}: {}", Counted(inputs.size(), "card"),
                      error.what_without_backtrace()));
  }
  for (torch::Tensor& result : results) {
    if (op == ReduceOp::kMean) result.div_(static_cast<std::int64_t>(values.size()));
    result = result.to(type);  // itself, but for narrow types
  }
  return true;
}

namespace {

// The card's UUID, which no other one has.
std::string NameOfCard(torch::Device card) {
  std::string name = "GPU-";
  for (const char byte : at::cuda::getDeviceProperties(card.index())->uuid.bytes) {
    name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return name;
}

// What libtorch has queued for tensors of this thread comes first, what it queues next after.
Communicator::Stream CurrentStream(torch::Device card) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(card.index());
  return {.handle = stream.stream(), .done = [stream]() -> Result<bool> {
            try {
              return stream.query();
            } catch (const c10::Error& error) {
              return Unavailable("{}", error.what_without_backtrace());
            }
          }};
}

}  // namespace

#else

bool nccl_in_build() { return false; }

bool nccl_all_reduce(ReduceOp, const std::vector<torch::Tensor>&, std::vector<torch::Tensor>&) {
  return false;
}

namespace {

// Nobody asks: no worker of this build has a card.
std::string NameOfCard(torch::Device card) {
  raise(Unimplemented("{}: this build is without CUDA", card.str()));
}
Communicator::Stream CurrentStream(torch::Device card) {
  raise(Unimplemented("{}: this build is without CUDA", card.str()));
}

}  // namespace

#endif

void join_nccl(collectives::Group& group, device::Place card, collectives::Timeout call_within) {
  const device::PlaceScope scope(card);
  auto formed = value_of(Communicator::Form(
      group, collectives::nccl::Library::Load(ProcessEnvironment()),
      {.card = NameOfCard(device::TorchDevice(card)), .call_within = call_within}));
  if (formed.communicator == nullptr) {
    log::Warning("sums between workers go through host memory, not by NCCL: {}", formed.why_not);
    return;
  }
  log::Info("sums between workers' cards go by NCCL {}", formed.communicator->version());
  group.set_communicator(std::move(formed.communicator));
}

// Each member sums the same tensors by NCCL and the same ones through host memory, in this order:
// which way a tensor goes is its type's to say, not the card's.
std::vector<torch::Tensor> sum_between_cards(collectives::Group& group, device::Place card,
                                             const std::vector<torch::Tensor>& values,
                                             collectives::Timeout timeout) {
  if (group.communicator() == nullptr) return sum_between(group, values, timeout);
  const torch::NoGradGuard no_grad;
  const TimeLeft left(timeout);
  const device::PlaceScope scope(card);
  const torch::Device here = device::TorchDevice(card);
  std::vector<torch::Tensor> sums(values.size());
  std::vector<torch::Tensor> sent;
  std::vector<torch::Tensor> others;
  std::vector<collectives::ReduceBuffer> buffers;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto type = dtype_of(sum_type(values[i].scalar_type()));
    if (!type.has_value() || !collectives::nccl::Adds(*type)) {
      others.push_back(values[i]);
      continue;
    }
    sent.push_back(plain_of(values[i].detach().to(here, scalar_type_of(*type))));
    sums[i] = torch::empty(sent.back().sizes(), sent.back().options());
    buffers.push_back({.type = *type,
                       .shape = values[i].sizes().vec(),
                       .in = sent.back().data_ptr(),
                       .out = sums[i].data_ptr()});
  }
  if (!buffers.empty()) {
    raise_unless_ok(group.communicator()->AllReduce(buffers, CurrentStream(here), left()));
  }
  std::vector<torch::Tensor> rest;
  if (!others.empty()) rest = sum_between(group, others, left());
  for (std::size_t i = 0, other = 0; i < values.size(); ++i) {
    sums[i] = sums[i].defined() ? sums[i].to(values[i].scalar_type()) : rest[other++];
  }
  return sums;
}

}  // namespace muster::internal
