// The variables of one program on one parameter server, made and deleted at any time. One object is
// one driver's time (epoch of the coordinator, incarnation of the driver): a later driver begins
// with an empty one, and this one is closed for good.
//
// Threading: any thread; requests of different shards do not meet.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "common/base/ids.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/stream.h"
#include "ps/program_shard.h"
#include "ps/program_wire.h"
#include "ps/read_write_lock.h"

namespace muster::v1 {
class AttachOptimizer;
class FoundVariable;
}  // namespace muster::v1

namespace muster::ps {

class ApplyPool;

using MemoryProbe = std::optional<std::uint64_t> (*)();

// Whose variables they are, and in whose time: the later one wins.
struct ProgramTime {
  Epoch epoch{};
  Incarnation incarnation{};
  auto operator<=>(const ProgramTime&) const = default;
};

class ProgramSpace {
 public:
  // `number` tells it from every other space of this server and of those before and after it.
  // `pool` outlives it. `most_shards`: at a time. `available`: asked before slots are made, and
  // before much is staged.
  ProgramSpace(
      std::string job_id, ProgramTime time, SpaceId number, ApplyPool& pool,
      std::size_t most_shards = std::size_t{1} << 22,
      MemoryProbe available = [] { return AvailableMemory(); });

  const std::string& job_id() const { return job_id_; }
  ProgramTime time() const { return time_; }
  SpaceId number() const { return number_; }

  // From now on every request gets `why`; memory goes when the last one that runs has ended.
  void Close(const Status& why);

  // Returns the shard's index here. See CreateShard in variables.proto for errors.
  Result<std::uint32_t> Create(const v1::CreateShard& create, std::span<const std::byte> value);
  // Forgets them; one that is gone already is no error. Their indexes are never used again.
  Status Delete(std::span<const std::uint32_t> shards);
  //   kNotFound: no part of it is here.
  Result<v1::FoundVariable> Lookup(const std::string& name) const;
  // Checks all shards before the first gets it.
  //   kResourceExhausted: memory for the slots.  Errors of ProgramShard::CheckAttach.
  Status Attach(const v1::AttachOptimizer& attach);

  // What Read() says of a size, before there is memory of that size.
  //   kNotFound: as Read().  Errors of ProgramShard::CheckSize.
  Status CheckSize(std::uint32_t shard, bool rows, std::uint64_t ids, std::uint64_t bytes) const;
  //   kNotFound: the shard was deleted, or never was.  Errors of ProgramShard::Read and BeginStep.
  Result<ReadMark> Read(std::uint32_t shard, std::uint32_t slot, bool rows,
                        std::span<const std::int64_t> ids, std::span<std::byte> into,
                        ReadBy reader = ReadBy::kThisProcessor) const;
  // All steps before it are over, everywhere; what is staged for them is applied where it is read
  // or written next. A lower number than before changes nothing.
  void BeginStep(std::uint64_t step);
  // What BeginStep() leaves to later, at once for all shards.
  //   kResourceExhausted: no memory for it on one of them, where it is left to later still.
  Status EndSteps();
  // Checks all, then applies them, or stages them for `step`, shard by shard: whole on each shard,
  // or not at all. Adds to `outcomes` for each shard whether it was applied now (true) or had been.
  // Errors of ProgramShard::Check and Apply; the second kind leaves earlier shards applied: it may
  // come again.  kResourceExhausted: no memory to stage them in; nothing was.
  Status Write(const FlushId& id, std::span<const ShardWrite> writes, std::vector<bool>& outcomes,
               std::uint64_t step = 0);

  // Every closure up to `closure` has ended; a lower number than before changes nothing.
  void Settle(ClosureId closure);
  // Frees the marks of closures that have ended.
  void Trim();

  // What the shards take, as far as each says it at that moment.
  struct Held {
    std::uint64_t values = 0;
    std::uint64_t slots = 0;
    std::uint64_t staged = 0;
  };
  Held held() const;
  // All of that.
  std::uint64_t bytes() const {
    const Held now = held();
    return now.values + now.slots + now.staged;
  }

 private:
  using ShardPointer = std::shared_ptr<ProgramShard>;

  Status Open() const MUSTER_REQUIRES_SHARED(mutex_);
  Result<ShardPointer> Find(std::uint32_t shard) const;
  std::vector<ShardPointer> AllShards() const;
  // Whether there is memory to stage so many bytes more, as far as that is looked at.
  Status RequireRoom(std::uint64_t bytes, const ShardPointer& first);

  const std::string job_id_;
  const ProgramTime time_;
  const SpaceId number_;
  ApplyPool& pool_;
  const std::size_t most_shards_;
  const MemoryProbe available_;
  // What has been staged since `available_` was asked last.
  std::atomic<std::uint64_t> staged_unseen_{0};
  std::atomic<ClosureId> settled_{};

  std::atomic<std::uint64_t> step_{0};

  // Requests take it shared.
  mutable ReadWriteLock mutex_;
  Status closed_ MUSTER_GUARDED_BY(mutex_);
  // By index.
  absl::flat_hash_map<std::uint32_t, ShardPointer> shards_ MUSTER_GUARDED_BY(mutex_);
  std::uint32_t made_ MUSTER_GUARDED_BY(mutex_) = 0;
  // (variable, part) to index.
  using Key = std::pair<VariableId, std::uint32_t>;
  std::map<Key, std::uint32_t> parts_ MUSTER_GUARDED_BY(mutex_);
  // Those that were deleted last: a request to make one that comes late makes nothing.
  std::deque<Key> deleted_ MUSTER_GUARDED_BY(mutex_);
  // The variable of a name.
  std::map<std::string, VariableId> names_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
