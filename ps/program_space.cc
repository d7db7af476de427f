#include "ps/program_space.h"

#include <algorithm>
#include <limits>

#include "muster/v1/variables.pb.h"

namespace muster::ps {
namespace {

// A request that comes late has been on a broken connection since, and those are few.
constexpr std::size_t kMostDeleted = 4'096;
// After so much that was staged, it is looked how much memory is left: not for every small write.
constexpr std::uint64_t kLookAfter = 64ULL << 20;

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

ProgramSpace::ProgramSpace(std::string job_id, ProgramTime time, SpaceId number, ApplyPool& pool,
                           std::size_t most_shards, MemoryProbe available)
    : job_id_(std::move(job_id)),
      time_(time),
      number_(number),
      pool_(pool),
      most_shards_(most_shards),
      available_(available) {}

Status ProgramSpace::Open() const { return closed_; }

void ProgramSpace::Close(const Status& why) {
  absl::flat_hash_map<std::uint32_t, ShardPointer> freed;  // outside the lock
  const WriteLock lock(mutex_);
  closed_ = why;
  freed.swap(shards_);
  parts_.clear();
  deleted_.clear();
  names_.clear();
}

// Makes the shard outside the lock, for it may be large; of two that make the same one, one stays.
Result<std::uint32_t> ProgramSpace::Create(const v1::CreateShard& create,
                                           std::span<const std::byte> value) {
  const v1::ProgramVariable& variable = create.variable();
  const VariableId id(variable.id());
  const Key key(id, create.part());
  const auto known = [&]() MUSTER_REQUIRES_SHARED(mutex_) -> Result<std::optional<std::uint32_t>> {
    MUSTER_TRY(Open());
    const auto found = parts_.find(key);
    if (found == parts_.end()) {
      const auto name = names_.find(variable.name());
      if (name == names_.end() || name->second == id) return std::optional<std::uint32_t>();
      return AlreadyExists("variable {}: another one has the name", variable.name());
    }
    const auto at = shards_.find(found->second);
    if (at == shards_.end()) return NotFound("variable {} was deleted", variable.name());
    const ShardPointer& shard = at->second;
    if (shard->variable().SerializeAsString() == variable.SerializeAsString()) {
      return std::optional(found->second);
    }
    return AlreadyExists("variable {}: its id {} is that of variable {}", variable.name(), id,
                         shard->variable().name());
  };
  // What another part of it here says of it: a description names all parts, and each part with one
  // of its own would take memory by the square of their number.
  ProgramShard::Description description;
  {
    const ReadLock lock(mutex_);
    MUSTER_TRY_ASSIGN(const std::optional<std::uint32_t> index, known());
    if (index) return *index;
    const auto part = parts_.lower_bound({id, 0});
    if (part != parts_.end() && part->first.first == id) {
      const auto at = shards_.find(part->second);
      if (at != shards_.end()) description = at->second->description();
    }
  }
  if (description != nullptr && description->SerializeAsString() != variable.SerializeAsString()) {
    description = nullptr;
  }
  MUSTER_TRY_ASSIGN(ShardPointer made,
                    ProgramShard::Create(create, value, pool_, std::move(description)));
  const WriteLock lock(mutex_);
  MUSTER_TRY_ASSIGN(const std::optional<std::uint32_t> index, known());
  if (index) return *index;
  if (shards_.size() >= most_shards_ || made_ == std::numeric_limits<std::uint32_t>::max()) {
    return ResourceExhausted(
        "variable {}: {} shards are here, and {} have been made: more are not possible",
        variable.name(), shards_.size(), made_);
  }
  const std::uint32_t added = made_++;
  shards_.emplace(added, std::move(made));
  parts_[key] = added;
  names_[variable.name()] = id;
  return added;
}

Status ProgramSpace::Delete(std::span<const std::uint32_t> shards) {
  std::vector<ShardPointer> freed;  // outside the lock
  const WriteLock lock(mutex_);
  MUSTER_TRY(Open());
  for (const std::uint32_t index : shards) {
    if (index >= made_) return NotFound("shard {}: {} have been made here", index, made_);
  }
  for (const std::uint32_t index : shards) {
    const auto found = shards_.find(index);
    if (found == shards_.end()) continue;
    ShardPointer shard = std::move(found->second);
    shards_.erase(found);
    const VariableId id(shard->variable().id());
    deleted_.emplace_back(id, shard->part());
    if (deleted_.size() > kMostDeleted) {
      parts_.erase(deleted_.front());
      deleted_.pop_front();
    }
    // Its other parts here, if any, go in the same request or in the next one.
    const auto name = names_.find(shard->variable().name());
    if (name != names_.end() && name->second == id) names_.erase(name);
    freed.push_back(std::move(shard));
  }
  return Ok();
}

Result<v1::FoundVariable> ProgramSpace::Lookup(const std::string& name) const {
  // Looked at without the lock: an update holds a shard's for as long as it takes, and who waits
  // for that one holds up whoever makes or deletes a variable, and all behind.
  std::vector<std::pair<std::uint32_t, ShardPointer>> parts;
  {
    const ReadLock lock(mutex_);
    MUSTER_TRY(Open());
    const auto id = names_.find(name);
    if (id == names_.end()) return NotFound("no variable {} here", name);
    for (auto at = parts_.lower_bound({id->second, 0});
         at != parts_.end() && at->first.first == id->second; ++at) {
      const auto there = shards_.find(at->second);
      if (there != shards_.end()) parts.emplace_back(at->second, there->second);
    }
  }
  if (parts.empty()) return NotFound("no variable {} here", name);
  v1::FoundVariable found;
  *found.mutable_variable() = parts.back().second->variable();
  for (const auto& [index, shard] : parts) {
    v1::FoundShard& entry = *found.add_shards();
    entry.set_part(shard->part());
    entry.set_shard(index);
    entry.set_optimizer(shard->has_optimizer());
  }
  return found;
}

Result<ProgramSpace::ShardPointer> ProgramSpace::Find(std::uint32_t shard) const {
  const ReadLock lock(mutex_);
  MUSTER_TRY(Open());
  if (const auto found = shards_.find(shard); found != shards_.end()) return found->second;
  if (shard < made_) return NotFound("shard {}: its variable was deleted", shard);
  return NotFound("shard {}: {} have been made here", shard, made_);
}

std::vector<ProgramSpace::ShardPointer> ProgramSpace::AllShards() const {
  const ReadLock lock(mutex_);
  std::vector<ShardPointer> all;
  all.reserve(shards_.size());
  for (const auto& [index, shard] : shards_) all.push_back(shard);
  return all;
}

// All shards are asked, and the memory of their slots is counted, before the first one takes it.
Status ProgramSpace::Attach(const v1::AttachOptimizer& attach) {
  MUSTER_TRY(CheckForPrograms(attach.optimizer()));
  v1::OptimizerSpec spec = attach.optimizer();
  // It comes with each gradient.
  spec.set_learning_rate(1);
  MUSTER_TRY_ASSIGN(const Optimizer made, Optimizer::Create(spec, 1));
  std::vector<ShardPointer> shards;
  std::uint64_t needed = 0;
  for (const std::uint32_t index : attach.shards()) {
    MUSTER_TRY_ASSIGN(ShardPointer shard, Find(index));
    MUSTER_TRY(shard->CheckAttach(spec));
    if (!shard->has_optimizer()) needed += made.slots().size() * shard->value_bytes();
    shards.push_back(std::move(shard));
  }
  // As a whole, before any shard takes some.
  const std::optional<std::uint64_t> left =
      needed > 0 ? available_() : std::optional<std::uint64_t>();
  if (left && needed > *left) {
    return ResourceExhausted(
        "variable {}: the optimizer's slots of it, and of what gets the optimizer with it, need {} "
        "MiB on this parameter server, which has {} MiB left; use more parameter servers or an "
        "optimizer with fewer slots",
        shards[0]->variable().name(), needed >> 20, *left >> 20);
  }
  for (const ShardPointer& shard : shards) {
    MUSTER_TRY(
        shard->Attach(spec, attach.has_updates() ? std::optional(attach.updates()) : std::nullopt));
  }
  return Ok();
}

Status ProgramSpace::CheckSize(std::uint32_t shard, bool rows, std::uint64_t ids,
                               std::uint64_t bytes) const {
  MUSTER_TRY_ASSIGN(const ShardPointer found, Find(shard));
  return found->CheckSize(rows, ids, bytes);
}

Result<ReadMark> ProgramSpace::Read(std::uint32_t shard, std::uint32_t slot, bool rows,
                                    std::span<const std::int64_t> ids, std::span<std::byte> into,
                                    ReadBy reader) const {
  MUSTER_TRY_ASSIGN(const ShardPointer found, Find(shard));
  MUSTER_TRY(found->BeginStep(step_.load(std::memory_order_acquire)));
  return found->Read(slot, rows, ids, into, reader);
}

Status ProgramSpace::RequireRoom(std::uint64_t bytes, const ShardPointer& first) {
  const std::uint64_t unseen = staged_unseen_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (unseen < kLookAfter) return Ok();
  const std::optional<std::uint64_t> left = available_();
  if (left && bytes > *left) {
    return ResourceExhausted(
        "variable {}: what is written to it and beside it, {} MiB, is kept until its synchronous "
        "step is over; this parameter server has {} MiB left; use more parameter servers or fewer "
        "gradients in a step",
        first->variable().name(), bytes >> 20, *left >> 20);
  }
  staged_unseen_.store(0, std::memory_order_relaxed);
  return Ok();
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
    MUSTER_TRY(shard->BeginStep(step_.load(std::memory_order_acquire)));
    for (const ShardWrite& write : writes.subspan(at, end - at)) MUSTER_TRY(shard->Check(write));
    parts.push_back({std::move(shard), writes.subspan(at, end - at)});
    at = end;
  }
  if (step > 0 && !parts.empty()) MUSTER_TRY(RequireRoom(BytesOf(writes), parts[0].shard));
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

Status ProgramSpace::EndSteps() {
  const std::uint64_t step = step_.load(std::memory_order_acquire);
  if (step == 0) return Ok();
  Status first;
  for (const ShardPointer& shard : AllShards()) {
    const Status begun = shard->BeginStep(step);
    if (first.ok()) first = begun;
  }
  return first;
}

void ProgramSpace::Trim() {
  for (const ShardPointer& shard : AllShards()) shard->Trim(settled_);
}

ProgramSpace::Held ProgramSpace::held() const {
  const ReadLock lock(mutex_);
  Held held;
  for (const auto& [index, shard] : shards_) {
    const std::uint64_t slots = shard->slot_bytes();
    const std::uint64_t lasting = shard->value_bytes() + slots;
    held.values += shard->value_bytes();
    held.slots += slots;
    // Slots may be told of before all that is held.
    held.staged += std::max(shard->bytes(), lasting) - lasting;
  }
  return held;
}

}  // namespace muster::ps
