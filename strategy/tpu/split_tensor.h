// A value of a replica of several cores, one part on each: what
// experimental_split_to_logical_devices() and experimental_replicate_to_logical_devices() make.
//
//   const SplitTensor rows = strategy.experimental_split_to_logical_devices(x, {2, 1});
//   const torch::Tensor loss = relu(matmul(rows, w)).sum();
//
// Calculations go part by part: each core computes with what lies on it, after it has got copies of
// what it needs of other cores' parts. Results, and gradients, are those of the whole value, but
// for the order in which sums are made. All is differentiable; gradients of parts arrive where the
// value lay that was split. Errors of calculations: INVALID_ARGUMENT for values of other cores, or
// of shapes that do not fit.
//
// Threading: on the thread of the replica that it belongs to. A copy is the same value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/place.h"
#include "strategy/base/torch.h"

namespace muster {

class SplitTensor {
 public:
  // In how many parts each dimension is cut: parts are numbered with the last dimension fastest,
  // part i on logical device i. All ones: the whole value on each.
  const std::vector<int>& partition_dimensions() const { return dimensions_; }
  bool replicated() const { return replicated_; }
  // The shape of the whole value.
  std::vector<std::int64_t> sizes() const;
  torch::ScalarType dtype() const { return parts_[0].scalar_type(); }

  int num_logical_devices() const { return static_cast<int>(parts_.size()); }
  // What lies on a logical device, and that device's canonical name. OUT_OF_RANGE.
  const torch::Tensor& part(int logical_device) const;
  std::string device(int logical_device) const;

  // The whole value, on the device that is current here.
  torch::Tensor to_tensor() const;
  // The sum of all elements, on the device that is current here.
  torch::Tensor sum() const;

  // For the code of strategy/.
  // Cuts `value` into as many parts as there are cores, or, with all ones, copies it to each.
  //   INVALID_ARGUMENT, in this order: as many dimensions as `value` has, each cut at least once,
  //   sizes that divide, and parts for all cores.
  static SplitTensor split(const torch::Tensor& value, std::vector<int> dimensions,
                           std::vector<device::Place> cores);
  static SplitTensor replicate(const torch::Tensor& value, std::vector<device::Place> cores);
  // parts[i] lies on cores[i].
  SplitTensor(std::vector<torch::Tensor> parts, std::vector<int> dimensions,
              std::vector<device::Place> cores);
  const std::vector<device::Place>& cores() const { return cores_; }
  // The same value, cut like `other`, whose sizes it has.
  SplitTensor like(const SplitTensor& other) const;

 private:
  std::vector<torch::Tensor> parts_;
  std::vector<int> dimensions_;
  std::vector<device::Place> cores_;
  bool replicated_;
};

// Products of matrices. The result is cut along the rows of `a` and the columns of `b` where that
// gives a part to each core; else along one of them, or it lies whole on each core. Inner
// dimensions that are both cut into a part for each core give partial products, which are added up.
SplitTensor matmul(const SplitTensor& a, const SplitTensor& b);
SplitTensor matmul(const SplitTensor& a, const torch::Tensor& b);
SplitTensor matmul(const torch::Tensor& a, const SplitTensor& b);

// Element by element; of two that are cut differently the second is cut anew. A tensor is broadcast
// to the sizes of the split value.
SplitTensor operator+(const SplitTensor& a, const SplitTensor& b);
SplitTensor operator+(const SplitTensor& a, const torch::Tensor& b);
SplitTensor operator+(const torch::Tensor& a, const SplitTensor& b);
SplitTensor operator*(const SplitTensor& a, const SplitTensor& b);
SplitTensor operator*(const SplitTensor& a, const torch::Tensor& b);
SplitTensor operator*(const torch::Tensor& a, const SplitTensor& b);
SplitTensor relu(const SplitTensor& a);

namespace internal {
// `value` on `core`: itself where it lies there, else a copy. Differentiable: the gradient goes
// back to where `value` lies.
torch::Tensor on_core(const torch::Tensor& value, device::Place core);
}  // namespace internal

}  // namespace muster
