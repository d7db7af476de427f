// One shard of a program's variable: its elements, its optimizer's slots, and which write sets it
// has.
//
// Invariant: a reader sees whole write sets only; each flush of a closure is applied at most once,
// whatever the attempt (flush_window.h). A write set and its mark are one step under the shard's
// lock. Threading: any thread; one reader-writer lock for each shard. Errors name the variable,
// what was given and what is allowed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/status.h"
#include "common/base/stream.h"
#include "ps/apply_pool.h"
#include "ps/flush_window.h"
#include "ps/optimizer.h"
#include "ps/program_wire.h"
#include "ps/read_write_lock.h"
#include "ps/region.h"
#include "ps/staged_writes.h"

namespace muster::v1 {
class CreateShard;
class OptimizerSpec;
class ProgramVariable;
}  // namespace muster::v1

namespace muster::ps {

class ProgramShard {
 public:
  // Owned by all shards of the variable that are here: it names all that there are anywhere.
  using Description = std::shared_ptr<const v1::ProgramVariable>;

  // With `value`, or as `create.initializer` says. `variable`: equal to create.variable; null: it
  // is copied.
  //   kInvalidArgument: the description is impossible.  kResourceExhausted: memory.
  static Result<std::unique_ptr<ProgramShard>> Create(const v1::CreateShard& create,
                                                      std::span<const std::byte> value,
                                                      ApplyPool& pool,
                                                      Description variable = nullptr);

  const v1::ProgramVariable& variable() const { return *variable_; }
  const Description& description() const { return variable_; }
  std::uint32_t part() const { return part_; }
  // The values alone.
  std::uint64_t value_bytes() const { return bytes_; }
  // Values, slots and what is staged; never waits.
  std::uint64_t bytes() const { return held_.load(std::memory_order_relaxed); }
  // The slots alone; never waits.
  std::uint64_t slot_bytes() const { return slots_held_.load(std::memory_order_relaxed); }

  // What is staged for steps before `step`, of which all closures have ended, is applied: one
  // update. What reads and writes come later find it so.
  //   kResourceExhausted: no memory for their sum; it is made another time.
  Status BeginStep(std::uint64_t step);

  // Whether so many bytes are the whole (`rows` false), or so many rows.
  //   kInvalidArgument: they are not.
  Status CheckSize(bool rows, std::uint64_t ids, std::uint64_t bytes) const;
  // Whole (`rows` false), or the rows of `ids`.
  // `reader` is who reads `into` next.
  //   kInvalidArgument: another size, no such slot, or an id outside [0, rows).
  Result<ReadMark> Read(std::uint32_t slot, bool rows, std::span<const std::int64_t> ids,
                        std::span<std::byte> into, ReadBy reader) const;

  // Whether it fits this shard, before anything is applied.
  //   kInvalidArgument: size, slot, ids, dtype or learning rate; an integer division by zero; a
  //   gradient that is not finite.  kFailedPrecondition: a gradient, and no optimizer.
  Status Check(const ShardWrite& write) const;
  // Applies writes that Check() found good, in order, all or none. False: they had been applied.
  // Errors of FlushWindow::Admit. With a `step` they are staged for it, to be applied by
  // BeginStep(); kAborted: it is over.  kResourceExhausted: there is no memory for that, or for the
  // step before.
  Result<bool> Apply(const FlushId& id, ClosureId settled, std::span<const ShardWrite> writes,
                     std::uint64_t step = 0);

  bool has_optimizer() const;
  // Whether Attach() will do.
  Status CheckAttach(const v1::OptimizerSpec& spec) const;
  //   kFailedPrecondition: it has another one.  kResourceExhausted: memory. See AttachOptimizer.
  Status Attach(const v1::OptimizerSpec& spec, std::optional<std::uint64_t> updates);

  // Forgets the marks of closures that have ended.
  void Trim(ClosureId settled);

 private:
  ProgramShard(Description variable, std::uint32_t part, ApplyPool& pool);
  Status Fill(const v1::CreateShard& create, std::span<const std::byte> value)
      MUSTER_REQUIRES(mutex_);
  Status CheckAccess(bool rows, std::span<const std::int64_t> ids, std::size_t bytes) const;
  Status CheckGradient(const ShardWrite& write) const;
  // Whether it has no optimizer, or this one.
  Status CheckSpec(const v1::OptimizerSpec& spec) const MUSTER_REQUIRES_SHARED(mutex_);
  // The values, or a slot.
  Result<const Region*> Storage(std::uint32_t slot) const MUSTER_REQUIRES_SHARED(mutex_);
  void ApplyOne(const ShardWrite& write) MUSTER_REQUIRES(mutex_);
  template <class T>
  void ApplyGradient(const ShardWrite& write) MUSTER_REQUIRES(mutex_);
  std::span<std::byte> BytesOf(Region& region) const;

  const Description variable_;
  const std::uint32_t part_;
  const DType dtype_;
  ApplyPool& pool_;
  std::int64_t rows_ = 1;
  std::size_t row_elements_ = 1;
  std::size_t row_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::atomic<std::uint64_t> held_{0};
  std::atomic<std::uint64_t> slots_held_{0};

  mutable ReadWriteLock mutex_;
  Region values_ MUSTER_GUARDED_BY(mutex_);
  std::vector<Region> slots_ MUSTER_GUARDED_BY(mutex_);
  std::optional<Optimizer> optimizer_ MUSTER_GUARDED_BY(mutex_);
  // As it was attached, serialized.
  std::string optimizer_spec_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t version_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::uint64_t updates_ MUSTER_GUARDED_BY(mutex_) = 0;
  FlushWindow window_ MUSTER_GUARDED_BY(mutex_);
  StagedWrites staged_ MUSTER_GUARDED_BY(mutex_);
  // The step that has begun here, as far as is known; what is staged is of it. Changed under the
  // mutex; read without it to see whether there is something to do.
  std::atomic<std::uint64_t> step_{0};
};

}  // namespace muster::ps
