// What one closure has read of variables and is about to write to them.
//
// The first read of a variable pulls it, later ones see that snapshot until the closure writes the
// variable. Writes are gathered and sent together, when the function has returned; the closure
// itself sees them at once.
//
// Replicas that run at the same time write to sets of their own, and see what the closure has
// written before and they themselves. What they write is the closure's when they are at rest: where
// they meet, and when run() has returned. So which writes go under the number of a flush, and which
// leaves keep their gradients, does not depend on who was first.
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
#include "strategy/parameter_server/internal/lookups.h"

namespace muster::internal {

// The number of the replica that this thread is, from 1, where others run beside it; else 0: what
// is done here is done for all.
int ReplicaHere();

class ClosureSession {
 public:
  // That of the closure that this thread works for; null: for none, or for one that builds a
  // per-worker value, which reads and writes as the driver does.
  //   FAILED_PRECONDITION: its driver has no parameter servers.
  static ClosureSession* Current();

  // While it lives, this thread works for the session, whatever closure it is in: for who has a
  // session without a closure.
  class Scope {
   public:
    explicit Scope(ClosureSession& session);
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
    const int replica = ReplicaHere();
    add(SetOf(replica));
    Wrote(variable, replica);
  }
  // The same for several, and sends it, by itself.
  //   PsUnavailable: a server is lost.
  template <class Add>
  void WriteNow(const std::vector<ps::VariableHandle>& variables, const Add& add) {
    const MutexLock lock(mutex_);
    const int replica = ReplicaHere();
    add(SetOf(replica));
    for (const ps::VariableHandle& variable : variables) Wrote(variable, replica);
    FlushSet(SetOf(replica));
  }
  // Replicas are about to run: they see what those of runs before have written.
  //   PsUnavailable: a flush of those had failed, and a server is lost.
  void BeginReplicas() {
    const MutexLock lock(mutex_);
    TakeOver();
  }
  // Grows with each write: snapshots may be others then.
  std::uint64_t writes() {
    const MutexLock lock(mutex_);
    return writes_;
  }
  // Rows that were looked up: ids, and the leaf; see Lookups.
  void AddLookup(const ps::VariableHandle& variable, const torch::Tensor& ids,
                 const torch::Tensor& rows) {
    const MutexLock lock(mutex_);
    held_[variable->id].lookups.Add({.replica = ReplicaHere()}, ids, rows);
  }
  std::vector<Lookup> TakeLookups(const ps::VariableHandle& variable) {
    const MutexLock lock(mutex_);
    return held_[variable->id].lookups.Take({.replica = ReplicaHere()});
  }
  // What `owner` has as long as the closure runs, made when it is first asked for; `make` returns
  // a shared_ptr<T>. The owner lives as long, and ends after it: what the function makes and drops
  // has no address that something else has had before.
  template <class T, class Make>
  T& Keep(const std::shared_ptr<const void>& owner, const Make& make) {
    const MutexLock lock(mutex_);
    std::shared_ptr<void>& kept = kept_[owner];
    if (kept == nullptr) kept = make();
    return *static_cast<T*>(kept.get());
  }
  // Sends what is written; a replica what it and the closure before it have.
  //   PsUnavailable: a server is lost.
  void Flush();

 private:
  // What the closure has of one variable.
  struct Held {
    torch::Tensor snapshot;
    std::vector<torch::Tensor> leaves;     // by slot; without the snapshot there are none
    std::vector<torch::Tensor> of_module;  // by slot: what becomes the leaf, where it is defined
    // By replica, of those that have written it since TakeOver(); others see the one above.
    std::map<int, torch::Tensor> of_replicas;
    Lookups lookups;

    torch::Tensor& SnapshotOf(int replica) {
      const auto own = of_replicas.find(replica);
      return own == of_replicas.end() ? snapshot : own->second;
    }
    // It is no longer what was read of it.
    void Forget() {
      snapshot = torch::Tensor();
      leaves.clear();
      of_replicas.clear();
    }
  };
  torch::Tensor ReadLocked(Held& held, const ps::VariableHandle& variable, int replica)
      MUSTER_REQUIRES(mutex_);
  // Where this replica writes; 0: the closure itself, with all that replicas have written.
  //   UNIMPLEMENTED: there are too many of them.
  ps::WriteSet& SetOf(int replica) MUSTER_REQUIRES(mutex_);
  // Replicas are at rest: what they have written is the closure's.
  void TakeOver() MUSTER_REQUIRES(mutex_);
  void Wrote(const ps::VariableHandle& variable, int replica) MUSTER_REQUIRES(mutex_);
  void FlushSet(ps::WriteSet& set) MUSTER_REQUIRES(mutex_);

  const std::shared_ptr<PsConnection> connection_;
  Mutex mutex_;
  ps::WriteSet set_ MUSTER_GUARDED_BY(mutex_);
  // By replica; they lie over the set.
  std::map<int, ps::WriteSet> of_replicas_ MUSTER_GUARDED_BY(mutex_);
  bool replicas_wrote_ MUSTER_GUARDED_BY(mutex_) = false;  // since TakeOver()
  std::uint64_t writes_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::map<VariableId, Held> held_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::shared_ptr<const void>, std::shared_ptr<void>> kept_ MUSTER_GUARDED_BY(mutex_);
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
