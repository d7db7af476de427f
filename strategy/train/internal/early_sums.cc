#include "strategy/train/internal/early_sums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "strategy/base/error.h"
#include "strategy/base/internal/plain.h"
#include "strategy/core/context.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"

namespace muster::internal {

// Called by libtorch when it has added to a parameter's gradient; it may outlive the sums.
struct EarlySums::Hook final : torch::autograd::FunctionPostHook {
  Hook(std::weak_ptr<EarlySums> of, std::size_t place) : sums(std::move(of)), parameter(place) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto alive = sums.lock()) alive->GradientReady(parameter);
    return outputs;
  }

  const std::weak_ptr<EarlySums> sums;
  const std::size_t parameter;
};

namespace {

// A tensor's version says nothing of what was written by way of its data(), as libtorch's
// clip_grad_norm_() does. Sums are on their way meanwhile.
bool SameBits(const torch::Tensor& copy, const torch::Tensor& gradient) {
  if (gradient.scalar_type() != copy.scalar_type() || !gradient.sizes().equals(copy.sizes())) {
    return false;
  }
  const torch::Tensor now = plain_of(gradient.detach());
  return copy.numel() == 0 || std::memcmp(copy.data_ptr(), now.data_ptr(), copy.nbytes()) == 0;
}

}  // namespace

bool EarlySums::Helps(const Strategy& strategy) {
  return strategy.collectives() != nullptr && !strategy.uses_gpus();
}

std::shared_ptr<EarlySums> EarlySums::Of(const Strategy& strategy, int optimizer, int copy,
                                         const std::vector<torch::Tensor>& parameters,
                                         std::int64_t bucket_bytes) {
  const std::shared_ptr<EarlySums> sums(
      new EarlySums(strategy, optimizer, copy, parameters, bucket_bytes));
  sums->Listen();
  strategy.early_turns().Register(optimizer, copy, sums);
  return sums;
}

EarlySums::EarlySums(const Strategy& strategy, int optimizer, int copy,
                     const std::vector<torch::Tensor>& parameters, std::int64_t bucket_bytes)
    : strategy_(strategy),
      group_(strategy.collectives()),
      optimizer_(optimizer),
      copy_(copy),
      parameters_(parameters),
      bucket_bytes_(bucket_bytes),
      bucket_of_(parameters.size()),
      slice_of_(parameters.size()),
      copied_(parameters.size()),
      again_(parameters.size()) {}

void EarlySums::Listen() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // The parameter itself does not keep it.
    nodes_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
    nodes_.back()->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
  }
}

void EarlySums::GradientReady(std::size_t i) {
  if (bucket_of_[i] == nullptr || copied_[i].has_value()) return;
  ReplicaContext* const replica = get_replica_context();
  const bool here = replica != nullptr && &replica->strategy() == &strategy_ &&
                    replica->local_replica_id() == copy_ && strategy_.collectives() == group_ &&
                    strategy_.early_turns().Expects(optimizer_, copy_);
  if (!here) return;
  const torch::Tensor& gradient = parameters_[i].grad();
  if (!gradient.defined() || gradient.is_sparse()) return;
  Copy(i, gradient);
  BeginFull(*replica);
}

void EarlySums::Copy(std::size_t i, const torch::Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  if (gradient.defined()) {
    slice_of_[i].copy_(gradient.detach());
    copied_[i] = {.gradient = gradient, .version = gradient._version()};
  } else {
    slice_of_[i].zero_();
    copied_[i] = Copied{};
  }
  ++bucket_of_[i]->ready;
}

void EarlySums::BeginFull(ReplicaContext& replica) {
  for (; begun_ < buckets_.size(); ++begun_) {
    Bucket& next = buckets_[begun_];
    if (next.ready < next.members.size()) return;
    next.sum = replica.start_all_reduce(ReduceOp::kSum, next.values);
  }
}

void EarlySums::BeginAll(ReplicaContext& replica, const std::vector<torch::Tensor>* gradients) {
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t i : bucket.members) {
      if (copied_[i].has_value()) continue;
      const bool dense =
          gradients != nullptr && (*gradients)[i].defined() && !(*gradients)[i].is_sparse();
      Copy(i, dense ? (*gradients)[i] : torch::Tensor());
    }
  }
  BeginFull(replica);
}

void EarlySums::Discard(ReplicaContext& replica) {
  if (strategy_.collectives() == group_) BeginAll(replica, nullptr);
  Forget();
}

std::vector<torch::Tensor> EarlySums::Finish(ReplicaContext& replica,
                                             const std::vector<torch::Tensor>& gradients) {
  if (strategy_.collectives() != group_) return SumOverReplicas(replica, gradients, parameters_);
  struct End {
    EarlySums& sums;
    ~End() { sums.Forget(); }
  } const end{*this};
  BeginAll(replica, &gradients);
  const std::vector<GradientKind> kinds = AgreeOnKinds(replica, Kinds(gradients));
  std::vector<torch::Tensor> sums = Sums(replica, kinds, gradients);

  Learn(kinds);
  return sums;
}

// All replicas come to the same layout, for all have the same kinds.
void EarlySums::Learn(const std::vector<GradientKind>& kinds) {
  std::vector<std::size_t> places;
  std::size_t in_buckets = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    again_[i] = kinds[i] == GradientKind::kAgain ? again_[i] + 1 : 0;
    const bool had = bucket_of_[i] != nullptr;
    in_buckets += had ? 1 : 0;
    const bool dense = kinds[i] == GradientKind::kDense;
    const bool stays = kinds[i] != GradientKind::kRows && again_[i] < kMostInVain;
    if (had ? stays : dense && !laid_out_) places.push_back(i);
  }
  if (!laid_out_ || in_buckets != places.size()) LayOut(places);
}

std::vector<GradientKind> EarlySums::Kinds(const std::vector<torch::Tensor>& gradients) const {
  std::vector<GradientKind> kinds = KindsOf(gradients);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (bucket_of_[i] == nullptr) continue;
    const Copied& copied = *copied_[i];
    const bool same = copied.gradient.is_same(gradients[i]) &&
                      (!gradients[i].defined() || (copied.version == gradients[i]._version() &&
                                                   SameBits(slice_of_[i], gradients[i])));
    if (!same) kinds[i] = GradientKind::kAgain;
  }
  return kinds;
}

// Gradients outside of buckets are summed here and now, then those in buckets are waited for: all
// replicas make these calls in the same order.
std::vector<torch::Tensor> EarlySums::Sums(ReplicaContext& replica,
                                           const std::vector<GradientKind>& kinds,
                                           const std::vector<torch::Tensor>& gradients) {
  std::vector<torch::Tensor> sums(kinds.size());
  std::vector<std::size_t> now;  // those that are not in buckets
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool of_bucket = bucket_of_[i] != nullptr &&
                           (kinds[i] == GradientKind::kDense || kinds[i] == GradientKind::kNone);
    if (!of_bucket) now.push_back(i);
  }
  if (!now.empty()) {
    std::vector<GradientKind> kinds_now;
    std::vector<torch::Tensor> gradients_now;
    std::vector<torch::Tensor> parameters_now;
    for (const std::size_t i : now) {
      kinds_now.push_back(kinds[i]);
      gradients_now.push_back(gradients[i]);
      parameters_now.push_back(parameters_[i]);
    }
    // What is to be summed again was agreed to be that, and not what it is.
    const bool again = std::count(kinds_now.begin(), kinds_now.end(), GradientKind::kAgain) > 0;
    auto made = again ? SumOverReplicas(replica, gradients_now, parameters_now)
                      : SumOfKinds(replica, kinds_now, gradients_now, parameters_now);
    for (std::size_t n = 0; n < now.size(); ++n) sums[now[n]] = std::move(made[n]);
  }
  for (const Bucket& bucket : buckets_) {
    const torch::Tensor values = bucket.sum->wait();
    std::int64_t at = 0;
    for (const std::size_t i : bucket.members) {
      const std::int64_t count = parameters_[i].numel();
      if (kinds[i] == GradientKind::kDense) {
        sums[i] = values.narrow(0, at, count).view(parameters_[i].sizes());
      }
      at += count;
    }
  }
  return sums;
}

// Neighbours share a bucket, the last parameters first: the backward pass makes their gradients
// first.
void EarlySums::LayOut(const std::vector<std::size_t>& places) {
  laid_out_ = true;
  buckets_.clear();
  std::fill(bucket_of_.begin(), bucket_of_.end(), nullptr);
  std::fill(slice_of_.begin(), slice_of_.end(), torch::Tensor());
  std::int64_t bytes = 0;
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    const torch::Tensor& parameter = parameters_[*place];
    const bool fits =
        !buckets_.empty() && bytes < bucket_bytes_ &&
        parameters_[buckets_.back().members[0]].scalar_type() == parameter.scalar_type();
    if (!fits) {
      buckets_.emplace_back();
      bytes = 0;
    }
    buckets_.back().members.push_back(*place);
    bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  for (Bucket& bucket : buckets_) {
    std::int64_t count = 0;
    for (const std::size_t i : bucket.members) count += parameters_[i].numel();
    const auto type = parameters_[bucket.members[0]].scalar_type();
    bucket.values = torch::empty({count}, torch::dtype(type));
    std::int64_t at = 0;
    for (const std::size_t i : bucket.members) {
      bucket_of_[i] = &bucket;
      const std::int64_t size = parameters_[i].numel();
      slice_of_[i] = bucket.values.narrow(0, at, size).view(parameters_[i].sizes());
      at += size;
    }
  }
}

void EarlySums::Forget() {
  for (Bucket& bucket : buckets_) {
    bucket.ready = 0;
    if (!bucket.sum.has_value()) continue;
    // After an error, too, nobody may read the values that the next step writes.
    try {
      (void)bucket.sum->wait();
    } catch (const Error&) {
      // The step throws it already.
    }
    bucket.sum.reset();
  }
  std::fill(copied_.begin(), copied_.end(), std::nullopt);
  begun_ = 0;
}

}  // namespace muster::internal
