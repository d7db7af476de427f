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

  // `step`: that it is of, where that is synchronous; else 0.
  ClosureSession(std::shared_ptr<PsConnection> connection, ClosureId closure, Attempt attempt,
                 std::uint64_t step)
      : connection_(std::move(connection)), set_(closure, attempt, step) {}

  PsConnection& connection() const { return *connection_; }
  torch::Tensor Read(const ps::VariableHandle& variable);
  // The snapshot as the autograd leaf of a slot; see Component::Leaf.
  torch::Tensor Leaf(const ps::VariableHandle& variable, int slot, bool gradients);
  // A tensor of a module, which is the leaf of its parameter's variable.
  struct ModuleLeaf {
    ps::VariableHandle variable;
    torch::Tensor leaf;
  };
  // Gives them the snapshots, of which those that are missing are fetched together.
  void Fill(const std::vector<ModuleLeaf>& leaves, int slot);
  torch::Tensor Gather(const ps::VariableHandle& variable, const torch::Tensor& rows);
  // Adds to what is written; `add` is given the set.
  template <class Add>
  void Write(const ps::VariableHandle& variable, const Add& add) {
    const MutexLock lock(mutex_);
    add(set_);
    Wrote(variable);
  }
  // The same for several, and sends it, by itself: what another replica writes meanwhile gets a
  // number of its own, as it will when the closure runs again.
  //   PsUnavailable: a server is lost.
  template <class Add>
  void WriteNow(const std::vector<ps::VariableHandle>& variables, const Add& add) {
    const MutexLock lock(mutex_);
    add(set_);
    for (const ps::VariableHandle& variable : variables) Wrote(variable);
    FlushLocked();
  }
  // Grows with each write: snapshots may be others then.
  std::uint64_t writes() {
    const MutexLock lock(mutex_);
    return writes_;
  }
  // Rows that were looked up: ids, and the leaf.
  void AddLookup(const ps::VariableHandle& variable, const torch::Tensor& ids,
                 const torch::Tensor& rows) {
    const MutexLock lock(mutex_);
    held_[variable->id].lookups.emplace_back(ids, rows);
  }
  std::vector<std::pair<torch::Tensor, torch::Tensor>> TakeLookups(
      const ps::VariableHandle& variable) {
    const MutexLock lock(mutex_);
    return std::exchange(held_[variable->id].lookups, {});
  }
  // What `owner` keeps as long as the closure runs, made when it is first asked for; `make` returns
  // a shared_ptr<T>.
  template <class T, class Make>
  T& Keep(const void* owner, const Make& make) {
    const MutexLock lock(mutex_);
    std::shared_ptr<void>& kept = kept_[owner];
    if (kept == nullptr) kept = make();
    return *static_cast<T*>(kept.get());
  }
  // Sends what is written.
  //   PsUnavailable: a server is lost.
  void Flush();

 private:
  // What the closure has of one variable.
  struct Held {
    torch::Tensor snapshot;
    std::vector<torch::Tensor> leaves;     // by slot; without the snapshot there are none
    std::vector<torch::Tensor> of_module;  // by slot: what becomes the leaf, where it is defined
    std::vector<std::pair<torch::Tensor, torch::Tensor>> lookups;
  };
  torch::Tensor ReadLocked(Held& held, const ps::VariableHandle& variable) MUSTER_REQUIRES(mutex_);
  // What was read of it is no longer what it is.
  void Wrote(const ps::VariableHandle& variable) MUSTER_REQUIRES(mutex_);
  void FlushLocked() MUSTER_REQUIRES(mutex_);

  const std::shared_ptr<PsConnection> connection_;
  Mutex mutex_;
  ps::WriteSet set_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t writes_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<VariableId, Held> held_ MUSTER_GUARDED_BY(mutex_);
  std::map<const void*, std::shared_ptr<void>> kept_ MUSTER_GUARDED_BY(mutex_);
};

// Whole variables, all fetched at once.
std::vector<torch::Tensor> ReadVariables(PsConnection& connection,
                                         const std::vector<ps::VariableHandle>& variables,
                                         ps::WriteSet* own);
// The whole variable, or rows of it, as tensors of their own; with `own` over what that writes.
torch::Tensor ReadVariable(PsConnection& connection, const ps::VariableHandle& variable,
                           ps::WriteSet* own);
torch::Tensor GatherRows(PsConnection& connection, const ps::VariableHandle& variable,
                         const torch::Tensor& rows, ps::WriteSet* own);
// A copy of a value as a leaf, where this thread computes.
torch::Tensor NewLeaf(const torch::Tensor& value, int slot, bool gradients);
// A tensor of a module gets a value, unless it has it. What a backward pass has kept of the old one
// is out of date then, and libtorch says so.
void GiveValue(const torch::Tensor& leaf, const torch::Tensor& value);

}  // namespace muster::internal
