#include "ps/job_shards.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "common/base/limits.h"
#include "common/base/step_rule.h"
#include "common/base/words.h"
#include "common/messages/steps.h"
#include "common/storage/checkpoint.h"
#include "common/storage/hash.h"
#include "common/storage/safetensors.h"
#include "muster/v1/cluster.pb.h"
#include "ps/apply_pool.h"
#include "ps/closure_window.h"
#include "ps/initializers.h"
#include "ps/job_layout.h"
#include "ps/optimizer.h"
#include "ps/pieces.h"
#include "ps/read_write_lock.h"
#include "ps/region.h"
#include "ps/step_signal.h"
#include "ps/step_sum.h"

namespace muster::ps {
namespace {

std::uint64_t BytesOf(const ShardLayout& layout, std::size_t arrays) {
  return layout.elements * sizeof(float) * arrays;
}

struct Shard {
  Shard(ShardLayout made, std::uint64_t start_step, ApplyPool& pool)
      : layout(std::move(made)),
        window(start_step),
        version(start_step),
        sum(layout.elements, static_cast<std::size_t>(layout.info.row_elements),
            layout.info.embedding, ClosureId(start_step + 1), pool) {}

  Arrays arrays() MUSTER_REQUIRES(mutex) {
    Arrays all;
    all.values = values.floats().data();
    for (std::size_t i = 0; i < slots.size(); ++i) all.slots[i] = slots[i].floats().data();
    return all;
  }
  // 0: the values, then the slots.
  const Region& array(std::size_t index) const MUSTER_REQUIRES_SHARED(mutex) {
    return index == 0 ? values : slots[index - 1];
  }

  const ShardLayout layout;
  mutable ReadWriteLock mutex;
  Region values MUSTER_GUARDED_BY(mutex);
  std::vector<Region> slots MUSTER_GUARDED_BY(mutex);
  ClosureWindow window MUSTER_GUARDED_BY(mutex);
  // Synchronous: the last closure of the last step that was applied. Else the number of closures.
  std::uint64_t version MUSTER_GUARDED_BY(mutex);
  // Synchronous: of the step after that one.
  StepSum sum MUSTER_GUARDED_BY(mutex);
  // Counts changes of anything above: what a save has copied is one cut while this stands still.
  std::uint64_t changes MUSTER_GUARDED_BY(mutex) = 0;
};

// One tensor of a file that is being saved.
struct SavedTensor {
  const Shard* shard;
  // As Shard::array() takes it.
  std::size_t array;
  // Shard::changes at the cut.
  std::uint64_t changes;
};

class Shards : public JobShards {
 public:
  Shards(const v1::JobPlan& plan, std::uint32_t ps_index, Optimizer optimizer, ApplyPool& pool)
      : job_(plan.job_id()),
        view_(plan.view()),
        seed_(plan.seed()),
        start_step_(plan.start_step()),
        rule_(StepsOf(plan)),
        file_name_(fmt::format("ps-{}-of-{}.safetensors", ps_index, plan.ps_size())),
        optimizer_(std::move(optimizer)),
        pool_(pool) {}

  Status Build(const v1::JobPlan& plan, std::vector<ShardLayout> layouts,
               const std::string& restore_from);

  const std::string& job_id() const override { return job_; }
  ViewId view() const override { return view_; }
  std::span<const ShardInfo> shards() const override { return infos_; }
  std::optional<ClosureId> Missing(std::uint32_t shard, ClosureId closure) override;
  StepSignal* step_signal() override { return rule_.bounded() ? &step_signal_ : nullptr; }
  Result<std::uint64_t> ReadDense(std::uint32_t shard, std::span<float> into) const override;
  Result<std::uint64_t> ReadRows(std::uint32_t shard, std::span<const std::int64_t> ids,
                                 std::span<float> into) const override;
  Result<ApplyOutcome> ApplyDense(std::uint32_t shard, PushId id,
                                  std::span<const float> gradient) override;
  Result<ApplyOutcome> ApplyRows(std::uint32_t shard, PushId id, std::span<const std::int64_t> ids,
                                 std::span<const float> gradients) override;
  Status Assign(std::uint32_t shard, std::span<const float> value) override;
  Result<v1::SaveReport> Save(std::uint64_t step, const std::string& directory,
                              storage::FileSystem& files) override;
  void Report(v1::PsReport& report) const override;
  void ReportTotals(v1::PsReport& report) const override;
  std::uint64_t staged_bytes() const override { return staged_bytes_; }
  void Adopt(Attempt least_attempt, v1::AdoptReport& report) override;

 private:
  Result<const Shard*> At(std::uint32_t shard) const;
  bool Finite(std::span<const float> gradient) const;
  // Admits the push, and applies or stages it when the gradient is sound.
  Result<ApplyOutcome> Push(Shard& shard, PushId id, std::span<const float> gradient,
                            std::span<const std::int64_t> ids);
  void Apply(Shard& shard, const Rule& rule, std::span<const float> gradient,
             std::span<const std::int64_t> ids) MUSTER_REQUIRES(shard.mutex);
  // The staged step has all its gradients, and no closure from `closure` on belongs to it.
  bool StepIsOver(const Shard& shard, ClosureId closure) const MUSTER_REQUIRES_SHARED(shard.mutex);
  void ApplyStep(Shard& shard) MUSTER_REQUIRES(shard.mutex);
  Status NotFinite(const Shard& shard, PushId id, std::span<const float> gradient,
                   std::span<const std::int64_t> ids) const;
  Status Initialize(const v1::JobPlan& plan, Shard& shard) MUSTER_REQUIRES(shard.mutex);
  Status Restore(const storage::Checkpoint& checkpoint, Shard& shard) MUSTER_REQUIRES(shard.mutex);
  void FillSlots(Shard& shard) MUSTER_REQUIRES(shard.mutex);
  // Shard::changes, if the shard stands at the cut after `step`.
  Result<std::uint64_t> ChangesAtCut(Shard& shard, std::uint64_t step);
  Status RequireUncommitted(const std::string& directory, storage::FileSystem& files) const;
  Status CopyTensor(const SavedTensor& tensor, std::uint64_t step,
                    storage::SafetensorsWriter& writer, std::vector<std::byte>& piece) const;

  const std::string job_;
  const ViewId view_;
  const std::uint64_t seed_;
  const std::uint64_t start_step_;
  const StepRule rule_;
  const std::string file_name_;
  const Optimizer optimizer_;
  ApplyPool& pool_;
  std::deque<Shard> shards_;
  std::vector<ShardInfo> infos_;
  mutable std::atomic<std::uint64_t> pulls_{0};
  std::atomic<std::uint64_t> pushes_{0};
  std::atomic<std::uint64_t> duplicates_{0};
  std::atomic<std::uint64_t> staged_bytes_{0};
  StepSignal step_signal_;
};

// Memory is asked for as a whole before any shard takes some: a job that does not fit leaves none
// behind. The values are the checkpoint's, or fresh ones.
Status Shards::Build(const v1::JobPlan& plan, std::vector<ShardLayout> layouts,
                     const std::string& restore_from) {
  std::unique_ptr<storage::Checkpoint> checkpoint;
  if (restore_from.empty() && start_step_ != 0) {
    return InvalidArgument("job {}: the plan starts after step {} but names no checkpoint", job_,
                           start_step_);
  }
  if (!restore_from.empty()) {
    MUSTER_TRY_ASSIGN(checkpoint, storage::Checkpoint::Open(restore_from));
    if (checkpoint->manifest().step() != start_step_) {
      return InvalidArgument("job {}: the plan starts after step {}; checkpoint {} is of step {}",
                             job_, start_step_, restore_from, checkpoint->manifest().step());
    }
  }
  std::uint64_t needed = 0;
  for (const ShardLayout& layout : layouts) {
    needed += BytesOf(layout, 1 + optimizer_.slots().size());
    if (rule_.synchronous() && !layout.info.embedding) {
      needed += BytesOf(layout, static_cast<std::size_t>(rule_.gradients));
    }
  }
  const std::optional<std::uint64_t> available = AvailableMemory();
  if (available && needed > *available) {
    return ResourceExhausted(
        "job {}: its parameters, optimizer slots{} need {} MiB on this parameter server, which "
        "has {} MiB left; use more parameter servers{} or an optimizer with fewer slots",
        job_, rule_.synchronous() ? " and the gradients of a step" : "", needed >> 20,
        *available >> 20, rule_.synchronous() ? ", fewer gradients_per_step" : "");
  }
  for (ShardLayout& layout : layouts) {
    infos_.push_back(layout.info);
    Shard& shard = shards_.emplace_back(std::move(layout), start_step_, pool_);
    const WriteLock lock(shard.mutex);  // nobody waits: the shard is not known yet
    MUSTER_TRY_ASSIGN(shard.values, Region::Create(shard.layout.elements));
    for (std::size_t i = 0; i < optimizer_.slots().size(); ++i) {
      MUSTER_TRY_ASSIGN(Region slot, Region::Create(shard.layout.elements));
      shard.slots.push_back(std::move(slot));
    }
    MUSTER_TRY(checkpoint ? Restore(*checkpoint, shard) : Initialize(plan, shard));
  }
  return Ok();
}

Status Shards::Initialize(const v1::JobPlan& plan, Shard& shard) {
  const auto variable = std::find_if(
      plan.variables().begin(), plan.variables().end(),
      [&](const auto& candidate) { return candidate.id() == shard.layout.info.variable; });
  MUSTER_TRY_ASSIGN(const InitialValues initial, InitialValues::Create(*variable, seed_));
  if (!initial.zero()) {
    const std::span<float> values = shard.values.floats();
    InPieces(pool_, values.size(), kPieceFloats, kPieceFloats,
             [&](std::size_t first, std::size_t count) {
               initial.Fill(shard.layout.first_element + first, values.subspan(first, count));
             });
  }
  FillSlots(shard);
  return Ok();
}

void Shards::FillSlots(Shard& shard) {
  const std::span<const float> values = shard.values.floats();
  for (std::size_t i = 0; i < shard.slots.size(); ++i) {
    if (optimizer_.SlotIsZero(i)) continue;  // as fresh memory is; no page is taken for it
    const std::span<float> slot = shard.slots[i].floats();
    InPieces(pool_, values.size(), kPieceFloats, kPieceFloats,
             [&](std::size_t first, std::size_t count) {
               optimizer_.FillSlot(i, values.subspan(first, count), slot.subspan(first, count));
             });
  }
}

Status Shards::Restore(const storage::Checkpoint& checkpoint, Shard& shard) {
  const ShardLayout& layout = shard.layout;
  const auto restore = [&](const std::string& name, Region& into) -> Status {
    const Result<std::vector<std::int64_t>> shape = checkpoint.Shape(name);
    if (!shape.ok()) {
      return InvalidArgument("job {}: {}; the checkpoint is of another model or optimizer", job_,
                             Message(shape.status()));
    }
    if (*shape != layout.shape) {
      return InvalidArgument("job {}: tensor {} has another shape in the checkpoint", job_, name);
    }
    return checkpoint.ReadRows(name, layout.info.row_offset, layout.info.rows,
                               std::as_writable_bytes(into.floats()));
  };
  MUSTER_TRY(restore(layout.name, shard.values));
  for (std::size_t i = 0; i < shard.slots.size(); ++i) {
    const std::string slot(optimizer_.slots()[i]);
    MUSTER_TRY(restore(storage::SlotName(layout.name, slot), shard.slots[i]));
  }
  return Ok();
}

Result<const Shard*> Shards::At(std::uint32_t shard) const {
  if (shard < shards_.size()) return &shards_[shard];
  return InvalidArgument("job {}: shard {} of {}", job_, shard, shards_.size());
}

Result<std::uint64_t> Shards::ReadDense(std::uint32_t index, std::span<float> into) const {
  MUSTER_TRY_ASSIGN(const Shard* shard, At(index));
  if (shard->layout.info.embedding) {
    return InvalidArgument("variable {} is an embedding; pull its rows by id", shard->layout.name);
  }
  if (into.size() != shard->layout.elements) {
    return InvalidArgument("variable {}: {} floats for a shard of {}", shard->layout.name,
                           into.size(), shard->layout.elements);
  }
  pulls_.fetch_add(1, std::memory_order_relaxed);
  const ReadLock lock(shard->mutex);
  std::memcpy(into.data(), shard->values.floats().data(), into.size_bytes());
  return shard->version;
}

Result<std::uint64_t> Shards::ReadRows(std::uint32_t index, std::span<const std::int64_t> ids,
                                       std::span<float> into) const {
  MUSTER_TRY_ASSIGN(const Shard* shard, At(index));
  MUSTER_TRY(shard->layout.CheckIds(ids, into.size()));
  pulls_.fetch_add(1, std::memory_order_relaxed);
  const ReadLock lock(shard->mutex);
  GatherRows(shard->values.floats().data(),
             static_cast<std::size_t>(shard->layout.info.row_elements), ids, into.data());
  return shard->version;
}

bool Shards::Finite(std::span<const float> gradient) const {
  std::atomic<bool> finite{true};
  InPieces(pool_, gradient.size(), kPieceFloats, kParallelFloats,
           [&](std::size_t first, std::size_t count) {
             if (!AllFinite(gradient.subspan(first, count))) finite = false;
           });
  return finite;
}

Status Shards::NotFinite(const Shard& shard, PushId id, std::span<const float> gradient,
                         std::span<const std::int64_t> ids) const {
  const auto bad = std::find_if(gradient.begin(), gradient.end(),
                                [](float value) { return !std::isfinite(value); });
  if (bad == gradient.end()) {  // a peer's memory, which it may write to at any time
    return InvalidArgument(
        "step {}: the gradient of {} was not finite and changed while it was looked at; its worker "
        "writes to what it has sent",
        id.closure, shard.layout.name);
  }
  const auto place = bad - gradient.begin();
  const ShardInfo& info = shard.layout.info;
  std::int64_t row = place / info.row_elements;
  if (!ids.empty()) row = ids[static_cast<std::size_t>(row)];
  return InvalidArgument(
      "step {}: the gradient of {} is {} in row {}, element {}; lower the learning rate, or check "
      "the loss and the data",
      id.closure, shard.layout.name, *bad, info.row_offset + row, place % info.row_elements);
}

void Shards::Apply(Shard& shard, const Rule& rule, std::span<const float> gradient,
                   std::span<const std::int64_t> ids) {
  const Arrays arrays = shard.arrays();
  if (!shard.layout.info.embedding) {
    InPieces(pool_, gradient.size(), kPieceFloats, kParallelFloats,
             [&](std::size_t first, std::size_t count) {
               ps::ApplyDense(rule, arrays.At(first), gradient.subspan(first, count));
             });
    return;
  }
  const auto row = static_cast<std::size_t>(shard.layout.info.row_elements);
  InRowPieces(pool_, ids.size(), row, [&](std::size_t first, std::size_t count) {
    ps::ApplyRows(rule, arrays, row, ids.subspan(first, count), gradient.data() + first * row);
  });
}

// Once for each closure, whatever is sent twice; a later attempt ends earlier ones. Synchronous
// steps keep it for the step's end.
Result<ApplyOutcome> Shards::Push(Shard& shard, PushId id, std::span<const float> gradient,
                                  std::span<const std::int64_t> ids) {
  pushes_.fetch_add(1, std::memory_order_relaxed);
  // Before the lock: the gradient is the caller's.
  const bool finite = Finite(gradient);
  {
    const WriteLock lock(shard.mutex);
    const Result<ApplyOutcome> admitted = shard.window.Admit(id);
    if (!admitted.ok()) return Annotate(admitted.status(), "variable " + shard.layout.name);
    if (*admitted == ApplyOutcome::kDuplicate) {
      duplicates_.fetch_add(1, std::memory_order_relaxed);
      return admitted;
    }
    if (!finite) return NotFinite(shard, id, gradient, ids);
    if (rule_.synchronous()) {
      const std::uint64_t closure = id.closure.value();
      if (rule_.NeededFor(closure) > shard.version) {
        return Unavailable("variable {}: closure {} of step {} came before step {} was over",
                           shard.layout.name, closure, rule_.StepOf(closure),
                           rule_.StepOf(closure) - 1);
      }
      const std::uint64_t before = shard.sum.bytes();
      const Status added = shard.sum.Add(id.closure, ids, gradient);
      staged_bytes_ += shard.sum.bytes() - before;
      if (!added.ok()) return Annotate(added, "variable " + shard.layout.name);
    } else {
      Apply(shard, optimizer_.RuleOf(id.closure.value()), gradient, ids);
      ++shard.version;
      ++shard.changes;
    }
    shard.window.Mark(id.closure);
  }
  if (rule_.bounded()) step_signal_.Notify();
  return ApplyOutcome::kApplied;
}

bool Shards::StepIsOver(const Shard& shard, ClosureId closure) const {
  const std::uint64_t end = rule_.RoundUp(shard.version + 1);
  return shard.sum.next() == ClosureId(end + 1) && end > shard.version &&
         (closure == ClosureId() || closure.value() > end);
}

void Shards::ApplyStep(Shard& shard) {
  const std::uint64_t end = rule_.RoundUp(shard.version + 1);
  Apply(shard, optimizer_.RuleOf(end, rule_.StepOf(end)), shard.sum.values(), shard.sum.ids());
  shard.version = end;
  ++shard.changes;
  const std::uint64_t before = shard.sum.bytes();
  shard.sum.Clear();
  staged_bytes_ += shard.sum.bytes() - before;
}

std::optional<ClosureId> Shards::Missing(std::uint32_t index, ClosureId closure) {
  if (!rule_.bounded() || index >= shards_.size()) return std::nullopt;
  Shard& shard = shards_[index];
  const std::uint64_t needed = rule_.NeededFor(closure.value());
  if (!rule_.synchronous()) {
    const ReadLock lock(shard.mutex);
    if (shard.window.watermark() >= needed) return std::nullopt;
    return ClosureId(shard.window.watermark() + 1);
  }
  {
    const ReadLock lock(shard.mutex);
    if (!StepIsOver(shard, closure)) {
      if (shard.version >= needed) return std::nullopt;
      return shard.sum.next();
    }
  }
  {
    const WriteLock lock(shard.mutex);
    if (StepIsOver(shard, closure)) ApplyStep(shard);
    if (shard.version < needed) return shard.sum.next();
  }
  step_signal_.Notify();
  return std::nullopt;
}

Result<ApplyOutcome> Shards::ApplyDense(std::uint32_t index, PushId id,
                                        std::span<const float> gradient) {
  MUSTER_TRY_ASSIGN(const Shard* found, At(index));
  Shard& shard = shards_[index];
  if (found->layout.info.embedding) {
    return InvalidArgument("variable {} is an embedding; push its rows by id", shard.layout.name);
  }
  if (gradient.size() != shard.layout.elements) {
    return InvalidArgument("variable {}: a gradient of {} floats for a shard of {}",
                           shard.layout.name, gradient.size(), shard.layout.elements);
  }
  return Push(shard, id, gradient, {});
}

Result<ApplyOutcome> Shards::ApplyRows(std::uint32_t index, PushId id,
                                       std::span<const std::int64_t> ids,
                                       std::span<const float> gradients) {
  MUSTER_TRY_ASSIGN(const Shard* found, At(index));
  // What is applied to a shard that is no embedding is as large as the shard, or nothing.
  if (!found->layout.info.embedding && !ids.empty()) {
    return InvalidArgument(
        "variable {} is no embedding; {} of its gradient were pushed by id: push all of it, or no "
        "rows",
        found->layout.name, Counted(ids.size(), "row"));
  }
  MUSTER_TRY(found->layout.CheckIds(ids, gradients.size()));
  return Push(shards_[index], id, gradients, ids);
}

Status Shards::Assign(std::uint32_t index, std::span<const float> value) {
  MUSTER_TRY_ASSIGN(const Shard* found, At(index));
  Shard& shard = shards_[index];
  if (value.size() != found->layout.elements) {
    return InvalidArgument("variable {}: {} floats for a shard of {}", shard.layout.name,
                           value.size(), shard.layout.elements);
  }
  const WriteLock lock(shard.mutex);
  const std::uint64_t pushed = shard.window.watermark() + shard.window.applied_above();
  if (pushed != 0) {
    return FailedPrecondition(
        "variable {}: {} updates have been applied; it can only be assigned "
        "before the first",
        shard.layout.name, pushed);
  }
  ++shard.changes;
  std::memcpy(shard.values.floats().data(), value.data(), value.size_bytes());
  FillSlots(shard);
  return Ok();
}

Result<std::uint64_t> Shards::ChangesAtCut(Shard& shard, std::uint64_t step) {
  const WriteLock lock(shard.mutex);
  if (shard.window.watermark() != step || shard.window.applied_above() != 0) {
    return FailedPrecondition(
        "job {}, step {}: variable {} has closures 1 to {} applied and {} beyond; the job must "
        "stand still at the step",
        job_, step, shard.layout.name, shard.window.watermark(), shard.window.applied_above());
  }
  if (!rule_.synchronous()) return shard.changes;
  if (StepIsOver(shard, ClosureId())) ApplyStep(shard);
  if (shard.version == step) return shard.changes;
  return FailedPrecondition(
      "job {}, step {}: variable {} is made of closures 1 to {}, and {} more are only a part of "
      "their step; a synchronous job is saved at the end of one",
      job_, step, shard.layout.name, shard.version, step - shard.version);
}

// A process that was stopped and wakes late must not write over what counts.
Status Shards::RequireUncommitted(const std::string& directory, storage::FileSystem& files) const {
  MUSTER_TRY_ASSIGN(const bool committed, storage::IsCommitted(directory, files));
  if (!committed) return Ok();
  return Aborted("job {}: {} has been committed without this server's answer", job_, directory);
}

// Copies under the shard's lock, writes without it. The coordinator has quiesced the job, so that
// mostly nobody waits and nothing changes; it may have given this save up, though, and gone on.
Status Shards::CopyTensor(const SavedTensor& tensor, std::uint64_t step,
                          storage::SafetensorsWriter& writer, std::vector<std::byte>& piece) const {
  const std::uint64_t bytes = BytesOf(tensor.shard->layout, 1);
  for (std::size_t at = 0; at < bytes; at += piece.size()) {
    piece.resize(std::min<std::size_t>(storage::kChunkBytes, bytes - at));
    {
      const ReadLock lock(tensor.shard->mutex);
      if (tensor.shard->changes != tensor.changes) {
        return FailedPrecondition(
            "job {}, step {}: variable {} was changed before all of it was copied: the job has "
            "gone on without waiting for this save",
            job_, step, tensor.shard->layout.name);
      }
      const Region& array = tensor.shard->array(tensor.array);
      std::memcpy(piece.data(), std::as_bytes(array.floats()).data() + at, piece.size());
    }
    MUSTER_TRY(writer.Append(piece));
  }
  return Ok();
}

// Lists what there is to save at the cut, then copies it out piece by piece.
Result<v1::SaveReport> Shards::Save(std::uint64_t step, const std::string& directory,
                                    storage::FileSystem& files) {
  MUSTER_TRY(RequireUncommitted(directory, files));
  v1::SaveReport report;
  std::vector<SavedTensor> tensors;
  std::vector<storage::TensorDeclaration> declarations;
  const auto add = [&](const Shard& shard, std::uint64_t changes, const std::string& name,
                       std::size_t array) {
    const ShardLayout& layout = shard.layout;
    const std::string key = layout.KeyOf(name);
    tensors.push_back({&shard, array, changes});
    declarations.push_back({key, DType::kFloat32, layout.ShardShape()});
    v1::TensorSlice* slice = report.add_slices();
    slice->set_name(name);
    slice->set_dtype(v1::DTYPE_FLOAT32);
    slice->mutable_shape()->Assign(layout.shape.begin(), layout.shape.end());
    slice->set_row_offset(layout.info.row_offset);
    slice->set_rows(layout.info.rows);
    slice->set_file(file_name_);
    slice->set_key(key);
  };
  for (Shard& shard : shards_) {
    MUSTER_TRY_ASSIGN(const std::uint64_t changes, ChangesAtCut(shard, step));
    add(shard, changes, shard.layout.name, 0);
    for (std::size_t i = 0; i < optimizer_.slots().size(); ++i) {
      add(shard, changes, storage::SlotName(shard.layout.name, std::string(optimizer_.slots()[i])),
          1 + i);
    }
  }
  MUSTER_TRY(files.MakeFolders(directory));
  MUSTER_TRY_ASSIGN(const auto writer,
                    storage::SafetensorsWriter::Create(
                        files, storage::JoinPath(directory, file_name_), declarations));
  std::vector<std::byte> piece;
  for (const SavedTensor& tensor : tensors) {
    MUSTER_TRY(CopyTensor(tensor, step, *writer, piece));
  }
  MUSTER_TRY(RequireUncommitted(directory, files));
  MUSTER_TRY_ASSIGN(*report.mutable_file(), writer->Finish());
  return report;
}

void Shards::Report(v1::PsReport& report) const {
  for (const Shard& shard : shards_) {
    v1::PsShardInfo* info = report.add_shards();
    info->set_name(shard.layout.name);
    info->set_row_offset(shard.layout.info.row_offset);
    info->set_rows(shard.layout.info.rows);
    const ReadLock lock(shard.mutex);
    info->set_version(shard.version);
    info->set_watermark(shard.window.watermark());
    info->set_applied_above(shard.window.applied_above());
  }
  ReportTotals(report);
}

void Shards::ReportTotals(v1::PsReport& report) const {
  std::uint64_t parameter_bytes = 0;
  for (const Shard& shard : shards_) parameter_bytes += BytesOf(shard.layout, 1);
  report.set_parameter_bytes(parameter_bytes);
  report.set_slot_bytes(parameter_bytes * optimizer_.slots().size());
  report.set_staged_bytes(staged_bytes_);
  report.set_pulls(pulls_);
  report.set_pushes(pushes_);
  report.set_duplicates_refused(duplicates_);
}

// A push and its mark are one step under the shard's lock, so what this reports is final.
void Shards::Adopt(Attempt least_attempt, v1::AdoptReport& report) {
  std::set<std::string> told;
  for (Shard& shard : shards_) {
    v1::ClosureMarks marks;
    {
      const WriteLock lock(shard.mutex);
      shard.window.RefuseBelow(least_attempt);
      shard.window.Report(marks);
    }
    if (told.insert(marks.SerializeAsString()).second) *report.add_shards() = std::move(marks);
  }
}

}  // namespace

Result<std::shared_ptr<JobShards>> JobShards::Create(const v1::JobPlan& plan,
                                                     std::uint32_t ps_index,
                                                     const std::string& restore_from,
                                                     ApplyPool& pool) {
  MUSTER_TRY_ASSIGN(std::vector<ShardLayout> layouts, LayOut(plan, ps_index));
  MUSTER_TRY_ASSIGN(Optimizer optimizer, Optimizer::Create(plan.optimizer(), plan.total_steps()));
  auto shards = std::make_shared<Shards>(plan, ps_index, std::move(optimizer), pool);
  MUSTER_TRY(shards->Build(plan, std::move(layouts), restore_from));
  return shards;
}

}  // namespace muster::ps
