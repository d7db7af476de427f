#include "ps/program_space.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>

#include "muster/v1/variables.pb.h"

namespace muster::ps {
namespace {

// A driver that makes more than this has lost its mind, or is none.
constexpr std::size_t kMostShards = 1 << 22;

// Schedules and FTRL's slots depend on a learning rate that is known beforehand.
Status CheckForPrograms(const v1::OptimizerSpec& spec) {
  switch (spec.kind()) {
    case v1::OPTIMIZER_KIND_SGD:
    case v1::OPTIMIZER_KIND_MOMENTUM:
    case v1::OPTIMIZER_KIND_ADAGRAD:
    case v1::OPTIMIZER_KIND_ADAM:
    case v1::OPTIMIZER_KIND_ADAMW:
      break;
    default:
      return Unimplemented(
          "optimizer {}: programs have sgd, momentum, adagrad, adam and adamw on parameter servers",
          v1::OptimizerKind_Name(spec.kind()));
  }
  if (!spec.has_schedule()) return Ok();
  return Unimplemented("optimizer.schedule: a program's learning rate comes with each gradient");
}

}  // namespace

ProgramSpace::ProgramSpace(std::string job_id, ProgramTime time, SpaceId number, ApplyPool& pool)
    : job_id_(std::move(job_id)), time_(time), number_(number), pool_(pool) {}

Status ProgramSpace::Open() const { return closed_; }

void ProgramSpace::Close(const Status& why) {
  std::vector<ShardPointer> freed;  // outside the lock
  const std::unique_lock lock(mutex_);
  closed_ = why;
  freed.swap(shards_);
  parts_.clear();
  names_.clear();
}

// Makes the shard outside the lock, for it may be large; of two that make the same one, one stays.
Result<std::uint32_t> ProgramSpace::Create(const v1::CreateShard& create,
                                           std::span<const std::byte> value) {
  const v1::ProgramVariable& variable = create.variable();
  const std::pair<std::uint64_t, std::uint32_t> key(variable.id(), create.part());
  const auto known = [&]() -> Result<std::optional<std::uint32_t>> {
    MUSTER_TRY(Open());
    const auto name = names_.find(variable.name());
    if (name != names_.end() && name->second != variable.id()) {
      return AlreadyExists("variable {}: another one has the name", variable.name());
    }
    const auto found = parts_.find(key);
    if (found == parts_.end()) return std::optional<std::uint32_t>();
    const ShardPointer& shard = shards_[found->second];
    if (shard == nullptr) return NotFound("variable {} was deleted", variable.name());
    if (shard->variable().SerializeAsString() == variable.SerializeAsString()) {
      return std::optional(found->second);
    }
    return AlreadyExists("variable {}: its id {} is that of variable {}", variable.name(),
                         variable.id(), shard->variable().name());
  };
  {
    const std::shared_lock lock(mutex_);
    MUSTER_TRY_ASSIGN(const std::optional<std::uint32_t> index, known());
    if (index) return *index;
  }
  MUSTER_TRY_ASSIGN(ShardPointer made, ProgramShard::Create(create, value, pool_));
  const std::unique_lock lock(mutex_);
  MUSTER_TRY_ASSIGN(const std::optional<std::uint32_t> index, known());
  if (index) return *index;
  if (shards_.size() >= kMostShards) {
    return ResourceExhausted("variable {}: {} shards have been made here, more are not possible",
                             variable.name(), shards_.size());
  }
  const auto added = static_cast<std::uint32_t>(shards_.size());
  shards_.push_back(std::move(made));
  parts_[key] = added;
  names_[variable.name()] = variable.id();
  return added;
}

Status ProgramSpace::Delete(std::span<const std::uint32_t> shards) {
  std::vector<ShardPointer> freed;  // outside the lock
  const std::unique_lock lock(mutex_);
  MUSTER_TRY(Open());
  for (const std::uint32_t index : shards) {
    if (index >= shards_.size()) {
      return NotFound("shard {}: {} have been made here", index, shards_.size());
    }
  }
  for (const std::uint32_t index : shards) {
    ShardPointer shard = std::exchange(shards_[index], nullptr);
    if (shard == nullptr) continue;
    // Its other parts here, if any, go in the same request or in the next one.
    const auto name = names_.find(shard->variable().name());
    if (name != names_.end() && name->second == shard->variable().id()) names_.erase(name);
    freed.push_back(std::move(shard));
  }
  return Ok();
}

Result<v1::FoundVariable> ProgramSpace::Lookup(const std::string& name) const {
  const std::shared_lock lock(mutex_);
  MUSTER_TRY(Open());
  v1::FoundVariable found;
  const auto id = names_.find(name);
  if (id != names_.end()) {
    for (auto at = parts_.lower_bound({id->second, 0});
         at != parts_.end() && at->first.first == id->second; ++at) {
      const ShardPointer& shard = shards_[at->second];
      if (shard == nullptr) continue;
      *found.mutable_variable() = shard->variable();
      v1::FoundShard& entry = *found.add_shards();
      entry.set_part(shard->part());
      entry.set_shard(at->second);
    }
  }
  if (found.shards_size() > 0) return found;
  return NotFound("no variable {} here", name);
}

Result<ProgramSpace::ShardPointer> ProgramSpace::Find(std::uint32_t shard) const {
  const std::shared_lock lock(mutex_);
  MUSTER_TRY(Open());
  if (shard < shards_.size() && shards_[shard] != nullptr) return shards_[shard];
  if (shard < shards_.size()) return NotFound("shard {}: its variable was deleted", shard);
  return NotFound("shard {}: {} have been made here", shard, shards_.size());
}

Status ProgramSpace::Attach(const v1::AttachOptimizer& attach) {
  MUSTER_TRY(CheckForPrograms(attach.optimizer()));
  v1::OptimizerSpec spec = attach.optimizer();
  // It comes with each gradient.
  spec.set_learning_rate(1);
  std::vector<ShardPointer> shards;
  for (const std::uint32_t index : attach.shards()) {
    MUSTER_TRY_ASSIGN(ShardPointer shard, Find(index));
    MUSTER_TRY(shard->CheckAttach(spec));
    shards.push_back(std::move(shard));
  }
  for (const ShardPointer& shard : shards) {
    MUSTER_TRY(
        shard->Attach(spec, attach.has_updates() ? std::optional(attach.updates()) : std::nullopt));
  }
  return Ok();
}

Result<ReadMark> ProgramSpace::Read(std::uint32_t shard, std::uint32_t slot, bool rows,
                                    std::span<const std::int64_t> ids, std::span<std::byte> into,
                                    ReadBy reader) const {
  MUSTER_TRY_ASSIGN(const ShardPointer found, Find(shard));
  found->BeginStep(step_.load(std::memory_order_acquire));
  return found->Read(slot, rows, ids, into, reader);
}

Status ProgramSpace::Write(const FlushId& id, std::span<const ShardWrite> writes,
                           std::vector<bool>& outcomes, std::uint64_t step) {
  struct Part {
    ShardPointer shard;
    std::span<const ShardWrite> writes;
  };
  std::vector<Part> parts;
  for (std::size_t at = 0; at < writes.size();) {
    std::size_t end = at + 1;
    while (end < writes.size() && writes[end].shard == writes[at].shard) ++end;
    MUSTER_TRY_ASSIGN(ShardPointer shard, Find(writes[at].shard));
    shard->BeginStep(step_.load(std::memory_order_acquire));
    for (const ShardWrite& write : writes.subspan(at, end - at)) MUSTER_TRY(shard->Check(write));
    parts.push_back({std::move(shard), writes.subspan(at, end - at)});
    at = end;
  }
  const ClosureId settled = settled_.load(std::memory_order_relaxed);
  for (const Part& part : parts) {
    MUSTER_TRY_ASSIGN(const bool applied, part.shard->Apply(id, settled, part.writes, step));
    outcomes.push_back(applied);
  }
  return Ok();
}

void ProgramSpace::Settle(ClosureId closure) {
  ClosureId known = settled_.load(std::memory_order_relaxed);
  while (known < closure && !settled_.compare_exchange_weak(known, closure)) {
  }
}

void ProgramSpace::BeginStep(std::uint64_t step) {
  std::uint64_t known = step_.load(std::memory_order_relaxed);
  while (known < step && !step_.compare_exchange_weak(known, step, std::memory_order_acq_rel)) {
  }
}

void ProgramSpace::EndSteps() {
  const std::uint64_t step = step_.load(std::memory_order_acquire);
  if (step == 0) return;
  std::vector<ShardPointer> shards;
  {
    const std::shared_lock lock(mutex_);
    shards = shards_;
  }
  for (const ShardPointer& shard : shards) {
    if (shard != nullptr) shard->BeginStep(step);
  }
}

void ProgramSpace::Trim() {
  std::vector<ShardPointer> shards;
  {
    const std::shared_lock lock(mutex_);
    shards = shards_;
  }
  for (const ShardPointer& shard : shards) {
    if (shard != nullptr) shard->Trim(settled_);
  }
}

std::uint64_t ProgramSpace::bytes() const {
  const std::shared_lock lock(mutex_);
  std::uint64_t bytes = 0;
  for (const ShardPointer& shard : shards_) {
    if (shard != nullptr) bytes += shard->bytes();
  }
  return bytes;
}

}  // namespace muster::ps
