// The sums of a module copy's gradients over replicas, begun while its backward pass goes on
// (OptimizerOptions::reduce_in_backward).
//
// A backward pass comes to the parameters in about the reverse of their order. In that order they
// are laid into buckets. A gradient that is ready is copied into its bucket; a bucket that is full
// is begun as one all-reduce when all before it are, so that all replicas begin the same ones in
// the same order whatever comes first. The step then waits for what is on its way.
//
// What the sums are does not depend on any of that. At the step replicas agree on what each
// gradient is, as they do without buckets, and on whether it still is what was copied, bit for
// bit: after a second backward pass, or when the program has changed it, it is summed again; where
// that happens in two steps one after another, from then on only there. So are rows, and what had
// no gradient at the first step, which is made without buckets to learn which ones are dense.
//
// Where there are several optimizers, one's sums begin at a time (core/internal/early_turns.h).
//
// Threading: the replica's thread. Lifetime: the strategy's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/autograd/variable.h>

#include "strategy/base/torch.h"
#include "strategy/core/internal/early_turns.h"
#include "strategy/core/started.h"
#include "strategy/train/internal/gradients.h"

namespace muster {
namespace collectives {
class Group;
}
class ReplicaContext;
class Strategy;
namespace internal {

class EarlySums final : public EarlyTurns::Sums, public std::enable_shared_from_this<EarlySums> {
 public:
  // `parameters`: of local replica `copy`, in host memory, which `optimizer` (its number) trains.
  // From here on the backward passes in the replica's functions begin sums. `bucket_bytes`: a
  // bucket is full with so many.
  static std::shared_ptr<EarlySums> Of(const Strategy& strategy, int optimizer, int copy,
                                       const std::vector<torch::Tensor>& parameters,
                                       std::int64_t bucket_bytes);
  // Whether there is anything to begin early: processes, which are those of when it was made. An
  // elastic run forms others, with other members, who would not know what is on its way.
  static bool Helps(const Strategy& strategy);

  EarlySums(const EarlySums&) = delete;
  EarlySums& operator=(const EarlySums&) = delete;

  // SumOverReplicas() of these gradients, which ends this step's sums.
  std::vector<torch::Tensor> Finish(ReplicaContext& replica,
                                    const std::vector<torch::Tensor>& gradients);
  void Discard(ReplicaContext& replica) override;

 private:
  // After so many steps one after another a gradient is no longer copied into a bucket.
  static constexpr int kMostInVain = 2;

  struct Bucket {
    torch::Tensor values;              // all gradients end to end
    std::vector<std::size_t> members;  // parameters
    std::size_t ready = 0;
    std::optional<Started<torch::Tensor>> sum = std::nullopt;
  };
  // What was copied of a gradient in this step.
  struct Copied {
    torch::Tensor gradient;  // held, so that no other one takes its address; undefined: zeros
    std::int64_t version = 0;
  };
  struct Hook;

  EarlySums(const Strategy& strategy, int optimizer, int copy,
            const std::vector<torch::Tensor>& parameters, std::int64_t bucket_bytes);
  void Listen();
  // A backward pass has added to parameter `i`.
  void GradientReady(std::size_t i);
  void Copy(std::size_t i, const torch::Tensor& gradient);
  void BeginFull(ReplicaContext& replica);
  // Begins the rest, with these gradients; null: with zeros.
  void BeginAll(ReplicaContext& replica, const std::vector<torch::Tensor>* gradients);
  // What this replica says of each gradient at the step.
  std::vector<GradientKind> Kinds(const std::vector<torch::Tensor>& gradients) const;
  // Sums, of buckets or made now, in the places of all parameters.
  std::vector<torch::Tensor> Sums(ReplicaContext& replica, const std::vector<GradientKind>& kinds,
                                  const std::vector<torch::Tensor>& gradients);
  void Learn(const std::vector<GradientKind>& kinds);
  void LayOut(const std::vector<std::size_t>& places);
  void Forget();

  const Strategy& strategy_;
  const collectives::Group* const group_;
  const int optimizer_;
  const int copy_;
  const std::vector<torch::Tensor> parameters_;
  const std::int64_t bucket_bytes_;
  // What the hooks hang on: a std::shared_ptr, since libtorch 2.15 a pointer of its own.
  using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));
  std::vector<NodePointer> nodes_;
  bool laid_out_ = false;
  std::deque<Bucket> buckets_;
  std::vector<Bucket*> bucket_of_;       // null: summed at the step
  std::vector<torch::Tensor> slice_of_;  // of the bucket's values, in the parameter's shape
  std::vector<std::optional<Copied>> copied_;
  std::vector<int> again_;  // how often it was summed again, one step after another
  std::size_t begun_ = 0;   // buckets
};

}  // namespace internal
}  // namespace muster
