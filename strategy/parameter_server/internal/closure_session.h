// What one closure has read of variables and is about to write to them.
//
// The first read of a variable pulls it, later ones see that snapshot until the closure writes the
// variable. Writes are gathered and sent together, when the function has returned; the closure
// itself sees them at once.
//
// Threading: any thread of the closure (the replicas of its run()). Lifetime: the closure's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "strategy/base/torch.h"
#include "strategy/parameter_server/internal/connection.h"

namespace muster::internal {

class ClosureSession {
 public:
  // That of the closure that this thread runs, or runs replicas for; null: it runs none, or one
  // that builds a per-worker value, which reads and writes as the driver does.
  //   FAILED_PRECONDITION: its driver has no parameter servers.
  static ClosureSession* Current();

  // While it lives, this thread works for the session; null: nothing changes.
  class Scope {
   public:
    explicit Scope(ClosureSession* session);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ClosureSession* const before_;
  };

  ClosureSession(std::shared_ptr<PsConnection> connection, ClosureId closure, Attempt attempt)
      : connection_(std::move(connection)), set_(closure, attempt) {}

  PsConnection& connection() const { return *connection_; }
  // `component`: whose value it is, for what is kept.
  torch::Tensor Read(std::uint64_t component, const ps::VariableHandle& variable);
  // The snapshot as the autograd leaf of a slot; see Component::Leaf.
  torch::Tensor Leaf(std::uint64_t component, const ps::VariableHandle& variable, int slot,
                     bool gradients);
  torch::Tensor Gather(const ps::VariableHandle& variable, const torch::Tensor& rows);
  // Adds to what is written; `add` is given the set.
  template <class Add>
  void Write(std::uint64_t component, const Add& add) {
    const MutexLock lock(mutex_);
    add(set_);
    snapshots_.erase(component);
    leaves_.erase(component);
  }
  // Rows that were looked up: ids, and the leaf.
  void AddLookup(std::uint64_t component, const torch::Tensor& ids, const torch::Tensor& rows) {
    const MutexLock lock(mutex_);
    lookups_[component].emplace_back(ids, rows);
  }
  std::vector<std::pair<torch::Tensor, torch::Tensor>> TakeLookups(std::uint64_t component) {
    const MutexLock lock(mutex_);
    return std::exchange(lookups_[component], {});
  }
  // Sends what is written.
  //   PsUnavailable: a server is lost.
  void Flush();

 private:
  torch::Tensor ReadLocked(std::uint64_t component, const ps::VariableHandle& variable)
      MUSTER_REQUIRES(mutex_);

  const std::shared_ptr<PsConnection> connection_;
  Mutex mutex_;
  ps::WriteSet set_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::uint64_t, torch::Tensor> snapshots_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::vector<torch::Tensor>> leaves_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::vector<std::pair<torch::Tensor, torch::Tensor>>> lookups_
      MUSTER_GUARDED_BY(mutex_);
};

// The whole variable, or rows of it, as tensors of their own; with `own` over what that writes.
torch::Tensor ReadVariable(PsConnection& connection, const ps::VariableHandle& variable,
                           ps::WriteSet* own);
torch::Tensor GatherRows(PsConnection& connection, const ps::VariableHandle& variable,
                         const torch::Tensor& rows, ps::WriteSet* own);
// A copy of a value as a leaf, where this thread computes.
torch::Tensor NewLeaf(const torch::Tensor& value, int slot, bool gradients);

}  // namespace muster::internal
