// One replica's side of a step under a strategy: its model sees the values of its device; when all
// its parts have been given, their gradients meet those of the other replicas, here and in other
// processes, and each copy of a variable is updated.
//
// Threading: the replica's thread; Meeting's functions are called by one thread for all replicas
// of the process. Lifetime: what it is made with outlives it. Includes libtorch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "services/executor/local_variables.h"
#include "services/executor/step_sums.h"
#include "services/executor/steps.h"
#include "worker/engine/step.h"

namespace muster::executor {

// Where the replicas of a process meet: what all their parts have given, in order, becomes the
// step's sums. Throws muster::Error. Null: the strategy's all_reduce does it.
using Meeting = std::function<PartResult(std::uint64_t step, std::vector<PartResult> parts)>;

class ReplicaSource final : public engine::ParameterSource {
 public:
  ReplicaSource(LocalVariables& variables, const ModelVariables& ids, engine::Model& model);

  // The next step has so many parts here, and meets there.
  void Expect(std::size_t parts, Meeting meeting);

  Status Fetch(bool train, std::span<engine::Lookup> lookups) override;
  Status Give(std::uint64_t step, std::span<const engine::Lookup> lookups,
              const v1::MetricSums& metrics) override;
  // A part without examples.
  void GiveNothing(std::uint64_t step);
  // Updates this replica's copies.
  void Apply(std::uint64_t step, const PartResult& sums);

 private:
  void MakeRoom(PartResult& part) const;
  void FetchRows(bool train, engine::Lookup& lookup);
  void Given(std::uint64_t step);
  PartResult Reduce(std::uint64_t step);

  LocalVariables& variables_;
  const ModelVariables& ids_;
  engine::Model& model_;
  Meeting meeting_;
  std::vector<PartResult> parts_;
  std::size_t given_ = 0;
  std::vector<torch::Tensor> held_;  // what the model is bound to
  std::vector<std::vector<float>> lookup_rows_;
};

// Functions above and below the public API return statuses.
Status Guarded(const std::function<void()>& function);

}  // namespace muster::executor
