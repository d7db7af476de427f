// A variable's value on parameter servers.
//
// The driver makes it there with its first value. Elsewhere the first value only says what the
// variable looks like: it is found by its name when it is first used, and must look like that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/mutex.h"
#include "strategy/parameter_server/consistency.h"
#include "strategy/parameter_server/internal/connection.h"
#include "strategy/parameter_server/internal/lookups.h"
#include "strategy/parameter_server/partitioner.h"
#include "strategy/variables/internal/component.h"

namespace muster {
class Variable;
}

namespace muster::internal {

class ClosureSession;

class RemoteComponent final : public Component {
 public:
  static constexpr std::int64_t kWarnedAbove = 1'000'000'000;

  // `driver`: where it is made; null: it is found. A component that is colocated lies where the
  // other one does and is not partitioned. A whole value of more than `warned_above` elements that
  // is cut is warned of.
  RemoteComponent(std::string name, device::Place place, std::shared_ptr<PsConnection> driver,
                  VariablePartitioner partitioner, std::vector<std::uint32_t> colocated,
                  Writes writes = Writes::kTogether, Placement placement = Placement::kRoundRobin,
                  std::int64_t warned_above = kWarnedAbove);
  ~RemoteComponent() override;

  // All: PsUnavailable, where a server is lost; INVALID_ARGUMENT: the driver's variable of this
  // name looks otherwise, or it is of another job.
  std::optional<Form> form() const override;
  std::string device() const override;
  torch::Tensor Snapshot() const override;
  torch::Tensor Leaf(int slot, bool trainable) override;
  torch::Tensor Gather(const torch::Tensor& rows) const override;
  // FAILED_PRECONDITION: the driver has not made the variable, and this is not the driver.
  void Assign(const torch::Tensor& value, torch::ScalarType type) override;
  // Asks a function that makes parts for each shard's, and joins them.
  torch::Tensor FirstValue(const InitialValue& initial) override;
  // Elsewhere than in the driver.
  bool Declare(const Form& form) override;
  // Each part is made when its server takes it. FAILED_PRECONDITION: in a closure.
  bool TakeParts(const InitialValue& initial, torch::ScalarType type) override;
  bool Apply(WriteKind kind, const std::string& variable, const WriteArgument& argument) override;

  // Rows as a leaf (requires_grad if `trainable`), which is remembered; ids: each once.
  torch::Tensor LookUp(const torch::Tensor& ids, bool trainable);
  // Those of this closure, or of this thread in none, since the last call; see Lookups.
  std::vector<Lookup> TakeLookups();

  // Where its shards are. FAILED_PRECONDITION: not initialised.
  ps::VariableHandle placed() const;
  // What it is reached by here. Null: there are no servers yet.
  std::shared_ptr<PsConnection> connection() const { return Begin().connection; }
  Writes writes() const { return writes_; }
  // This process is the driver that makes it.
  bool made_here() const { return driver_ != nullptr; }

  // For its optimizer, of which it has one. false: it has one already.
  bool ClaimOptimizer() { return !has_optimizer_.exchange(true); }
  void ReleaseOptimizer() { has_optimizer_ = false; }
  // A gradient in host memory and of its type: of all of it, which has its shape, or of rows.
  //   INVALID_ARGUMENT: it does not fit.
  WriteArgument FittedWhole(const torch::Tensor& gradient) const;
  WriteArgument FittedRows(const torch::Tensor& gradients, const torch::Tensor& rows) const;
  // One update by the attached optimizer with such a gradient.
  //   INVALID_ARGUMENT: it is not finite.
  ps::WriteSet UpdateBy(const WriteArgument& gradient, double learning_rate) const;
  // Such an update goes to the closure's writes, where there is none to `outside_closures`.
  void AddUpdate(ps::WriteSet update, ps::WriteSet& outside_closures);

 private:
  // What a call works with: a closure's session, or the connection alone.
  struct Use {
    ClosureSession* session = nullptr;
    std::shared_ptr<PsConnection> connection = nullptr;
    ps::VariableHandle variable = nullptr;  // null: not made yet
  };
  Use Begin() const;
  ps::VariableHandle Bound(PsConnection& connection) const;
  [[noreturn]] void RaiseNotMade() const;
  void Make(const Form& form, ps::ShardValues values, absl::FunctionRef<void(std::int64_t)> cut);
  void MakeWhole(const torch::Tensor& value, torch::ScalarType type);
  std::int64_t CountShards(const std::vector<std::int64_t>& sizes, torch::ScalarType type) const;

  const std::shared_ptr<PsConnection> driver_;
  const VariablePartitioner partitioner_;
  const std::vector<std::uint32_t> colocated_;
  const Writes writes_;
  const Placement placement_;
  const std::int64_t warned_above_;
  std::atomic<bool> has_optimizer_{false};

  mutable Mutex mutex_;
  std::optional<Form> declared_ MUSTER_GUARDED_BY(mutex_);
  ps::VariableHandle made_ MUSTER_GUARDED_BY(mutex_);
  Lookups lookups_ MUSTER_GUARDED_BY(mutex_);  // of no closure
};

// What is to be said of an initial value that this process has made whole, to be cut; empty:
// nothing.
std::string WholeValueWarning(const std::string& name, std::int64_t elements, std::int64_t shards,
                              std::int64_t limit = RemoteComponent::kWarnedAbove);

// INVALID_ARGUMENT: it is not on parameter servers.
RemoteComponent& remote_component(const Variable& variable);
// INVALID_ARGUMENT: these are no rows of a variable of these sizes.
void require_rows(const std::string& name, const std::vector<std::int64_t>& sizes,
                  const torch::Tensor& ids);

}  // namespace muster::internal
