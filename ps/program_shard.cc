#include "ps/program_shard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/limits.h"
#include "common/base/words.h"
#include "common/partition/placement.h"
#include "muster/v1/variables.pb.h"
#include "ps/float_mode.h"
#include "ps/initializers.h"
#include "ps/pieces.h"

namespace muster::ps {
namespace {

constexpr std::size_t kFillPiece = 64 << 10;

template <class T>
std::span<const T> As(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <class T>
std::span<T> As(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// One element of an integer dtype, as the initializer says.
template <class T>
Status FillIntegers(const v1::ProgramVariable& variable, const v1::Initializer& initializer,
                    std::span<T> into) {
  double value = 0;
  switch (initializer.kind()) {
    case v1::INITIALIZER_KIND_UNSPECIFIED:
    case v1::INITIALIZER_KIND_ZEROS:
      return Ok();  // as fresh memory is
    case v1::INITIALIZER_KIND_ONES:
      value = 1;
      break;
    case v1::INITIALIZER_KIND_CONSTANT:
      value = initializer.scale();
      break;
    default:
      return InvalidArgument(
          "variable {}: initializer {} is for float32 and float64; {} knows zeros, ones and "
          "constant",
          variable.name(), v1::InitializerKind_Name(initializer.kind()),
          NameOf(static_cast<DType>(variable.dtype())));
  }
  // Beyond 2^63 a double has no integer to become.
  const auto least = static_cast<double>(std::numeric_limits<T>::lowest());
  const auto most = static_cast<double>(std::numeric_limits<T>::max());
  if (!(value >= least && value <= most) || value >= 0x1p63 || value != std::trunc(value)) {
    return InvalidArgument("variable {}: {} is no value of {}", variable.name(), value,
                           NameOf(static_cast<DType>(variable.dtype())));
  }
  std::ranges::fill(into, static_cast<T>(value));
  return Ok();
}

// Where this shard is, as the variable's own layout says it.
Status CheckPart(const v1::ProgramVariable& variable, std::uint32_t part) {
  if (variable.id() == 0 || variable.name().empty()) {
    return InvalidArgument("variable \"{}\", id {}: a name and an id from 1 are required",
                           variable.name(), variable.id());
  }
  if (!IsVariableDType(static_cast<DType>(variable.dtype()))) {
    return InvalidArgument(
        "variable {}: dtype {}; float32, float64, int32, int64, uint8, bool, float16 and bfloat16 "
        "are possible",
        variable.name(), NameOf(static_cast<DType>(variable.dtype())));
  }
  if (part >= static_cast<std::uint32_t>(variable.shards_size())) {
    return InvalidArgument("variable {}: part {} of {}", variable.name(), part,
                           variable.shards_size());
  }
  const std::int64_t rows = variable.shape_size() > 0 ? variable.shape(0) : 1;
  std::int64_t next = 0;
  for (const v1::ShardPlacement& shard : variable.shards()) {
    if (shard.row_offset() != next || shard.rows() < 1 || shard.rows() > rows - next) {
      return InvalidArgument(
          "variable {} of {} rows: a shard of {} rows from {}, after others to {}", variable.name(),
          rows, shard.rows(), shard.row_offset(), next);
    }
    next += shard.rows();
  }
  if (next == rows) return Ok();
  return InvalidArgument("variable {}: its shards have {} of {} rows", variable.name(), next, rows);
}

}  // namespace

ProgramShard::ProgramShard(Description variable, std::uint32_t part, ApplyPool& pool)
    : variable_(std::move(variable)),
      part_(part),
      dtype_(static_cast<DType>(variable_->dtype())),
      pool_(pool) {}

// The description is checked before it sizes anything, and what memory there is before some is
// taken: the kernel would give address space for more, and end the process later.
Result<std::unique_ptr<ProgramShard>> ProgramShard::Create(const v1::CreateShard& create,
                                                           std::span<const std::byte> value,
                                                           ApplyPool& pool, Description variable) {
  if (variable == nullptr) {
    variable = std::make_shared<const v1::ProgramVariable>(create.variable());
  }
  MUSTER_TRY_ASSIGN(const std::int64_t elements,
                    partition::CountElements({variable->shape().data(),
                                              static_cast<std::size_t>(variable->shape_size())},
                                             "variable " + variable->name()));
  if (elements > kMostElements) {
    return InvalidArgument("variable {}: {} elements; at most 2^40", variable->name(), elements);
  }
  MUSTER_TRY(CheckPart(*variable, create.part()));
  std::unique_ptr<ProgramShard> shard(new ProgramShard(variable, create.part(), pool));
  const std::int64_t rows = variable->shape_size() > 0 ? variable->shape(0) : 1;
  shard->rows_ = variable->shards(static_cast<int>(create.part())).rows();
  shard->row_elements_ = static_cast<std::size_t>(elements / rows);
  shard->row_bytes_ = shard->row_elements_ * SizeOf(shard->dtype_);
  const std::optional<std::uint64_t> available = AvailableMemory();
  const double needed = static_cast<double>(shard->rows_) * static_cast<double>(shard->row_bytes_);
  if (available && needed > static_cast<double>(*available)) {
    return ResourceExhausted(
        "variable {}: a shard of {:.0f} MiB; this parameter server has {} MiB left; use more "
        "shards "
        "on more servers",
        variable->name(), needed / 0x1p20, *available >> 20);
  }
  shard->bytes_ = static_cast<std::size_t>(shard->rows_) * shard->row_bytes_;
  shard->held_ = shard->bytes_;
  const WriteLock lock(shard->mutex_);  // nobody waits: the shard is not known yet
  MUSTER_TRY_ASSIGN(shard->values_, Region::Create(DivideUp(shard->bytes_, sizeof(float))));
  MUSTER_TRY(shard->Fill(create, value));
  return shard;
}

// A value as it was given, or the initializer's numbers: those depend on the place in the whole
// variable, so they are the same however it is cut.
Status ProgramShard::Fill(const v1::CreateShard& create, std::span<const std::byte> value) {
  const std::span<std::byte> into = BytesOf(values_);
  if (create.value()) {
    if (value.size() != into.size()) {
      return InvalidArgument("variable {}: an initial value of {} bytes for {} rows, which have {}",
                             variable_->name(), value.size(), rows_, into.size());
    }
    std::memcpy(into.data(), value.data(), value.size());
    return Ok();
  }
  switch (dtype_) {
    case DType::kInt32:
      return FillIntegers(*variable_, create.initializer(), As<std::int32_t>(into));
    case DType::kInt64:
      return FillIntegers(*variable_, create.initializer(), As<std::int64_t>(into));
    case DType::kUint8:
      return FillIntegers(*variable_, create.initializer(), As<std::uint8_t>(into));
    case DType::kFloat32:
    case DType::kFloat64:
      break;
    default:
      if (create.initializer().kind() <= v1::INITIALIZER_KIND_ZEROS) return Ok();
      return InvalidArgument("variable {}: {} is made from a value, or of zeros", variable_->name(),
                             NameOf(dtype_));
  }
  v1::VariableLayout layout;
  layout.set_name(variable_->name());
  *layout.mutable_shape() = variable_->shape();
  *layout.mutable_initializer() = create.initializer();
  MUSTER_TRY_ASSIGN(const InitialValues initial, InitialValues::Create(layout, create.seed()));
  if (initial.zero()) return Ok();
  const auto first =
      static_cast<std::uint64_t>(variable_->shards(static_cast<int>(part_)).row_offset()) *
      row_elements_;
  const std::size_t elements = static_cast<std::size_t>(rows_) * row_elements_;
  InPieces(pool_, elements, kFillPiece, kPieceFloats, [&](std::size_t from, std::size_t count) {
    if (dtype_ == DType::kFloat32) {
      return initial.Fill(first + from, As<float>(into).subspan(from, count));
    }
    // float64: the same numbers as float32 has.
    std::vector<float> narrow(std::min(count, kFillPiece));
    for (std::size_t done = 0; done < count; done += narrow.size()) {
      const std::size_t n = std::min(narrow.size(), count - done);
      initial.Fill(first + from + done, std::span(narrow).first(n));
      std::copy_n(narrow.begin(), n, As<double>(into).begin() + from + done);
    }
  });
  return Ok();
}

std::span<std::byte> ProgramShard::BytesOf(Region& region) const {
  return std::as_writable_bytes(region.floats()).first(bytes_);
}

Status ProgramShard::CheckSize(bool rows, std::uint64_t ids, std::uint64_t bytes) const {
  if (!rows) {
    if (bytes == bytes_) return Ok();
    return InvalidArgument("variable {} ({}): {} bytes for a shard of {} rows, which has {}",
                           variable_->name(), NameOf(dtype_), bytes, rows_, bytes_);
  }
  if (bytes / row_bytes_ == ids && bytes % row_bytes_ == 0) return Ok();
  return InvalidArgument("variable {} ({}): {} bytes for {} of {} bytes", variable_->name(),
                         NameOf(dtype_), bytes, Counted(ids, "row"), row_bytes_);
}

Status ProgramShard::CheckAccess(bool rows, std::span<const std::int64_t> ids,
                                 std::size_t bytes) const {
  MUSTER_TRY(CheckSize(rows, ids.size(), bytes));
  if (!rows) return Ok();
  std::uint64_t worst = 0;
  for (const std::int64_t id : ids) worst = std::max(worst, static_cast<std::uint64_t>(id));
  if (worst < static_cast<std::uint64_t>(rows_)) return Ok();
  return InvalidArgument("variable {}: row {} of the shard from row {}, which has {}",
                         variable_->name(), static_cast<std::int64_t>(worst),
                         variable_->shards(static_cast<int>(part_)).row_offset(),
                         Counted(static_cast<std::uint64_t>(rows_), "row"));
}

Result<const Region*> ProgramShard::Storage(std::uint32_t slot) const {
  if (slot == 0) return &values_;
  if (slot <= slots_.size()) return &slots_[slot - 1];
  return InvalidArgument("variable {}: slot {} of {}", variable_->name(), slot, slots_.size());
}

Result<ReadMark> ProgramShard::Read(std::uint32_t slot, bool rows,
                                    std::span<const std::int64_t> ids, std::span<std::byte> into,
                                    ReadBy reader) const {
  MUSTER_TRY(CheckAccess(rows, ids, into.size()));
  const ReadLock lock(mutex_);
  MUSTER_TRY_ASSIGN(const Region* from, Storage(slot));
  const std::byte* const bytes = std::as_bytes(from->floats()).data();
  if (rows) {
    GatherRowBytes(bytes, row_bytes_, ids, into.data());
  } else {
    CopyFor(reader, into.data(), bytes, into.size());
  }
  return ReadMark{.version = version_, .updates = updates_};
}

bool ProgramShard::has_optimizer() const {
  const ReadLock lock(mutex_);
  return optimizer_.has_value();
}

Status ProgramShard::CheckGradient(const ShardWrite& write) const {
  MUSTER_TRY(ps::CheckGradient(dtype_, write.values, write.learning_rate,
                               "variable " + variable_->name()));
  if (has_optimizer()) return Ok();
  return FailedPrecondition("variable {}: a gradient, and no optimizer is attached to it",
                            variable_->name());
}

Status ProgramShard::Check(const ShardWrite& write) const {
  MUSTER_TRY(CheckAccess(write.rows, write.ids, write.values.size()));
  if (write.op == kGradient) return CheckGradient(write);
  if (write.slot != 0) {
    const ReadLock lock(mutex_);
    MUSTER_TRY(Storage(write.slot).status());
  }
  return CheckOperands(static_cast<ElementOp>(write.op), dtype_, write.values,
                       "variable " + variable_->name());
}

template <class T>
void ProgramShard::ApplyGradient(const ShardWrite& write) {
  BasicArrays<T> arrays;
  arrays.values = As<T>(BytesOf(values_)).data();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    arrays.slots[i] = As<T>(BytesOf(slots_[i])).data();
  }
  const BasicRule<T> rule = optimizer_->RuleAt<T>(++updates_, write.learning_rate);
  const auto gradient = As<T>(write.values);
  if (!write.rows) {
    InPieces(pool_, gradient.size(), kPieceFloats, kParallelFloats,
             [&](std::size_t first, std::size_t count) {
               ApplyDense(rule, arrays.At(first), gradient.subspan(first, count));
             });
    return;
  }
  InRowPieces(pool_, write.ids.size(), row_elements_, [&](std::size_t first, std::size_t count) {
    ApplyRows(rule, arrays, row_elements_, write.ids.subspan(first, count),
              gradient.data() + first * row_elements_);
  });
}

void ProgramShard::ApplyOne(const ShardWrite& write) {
  if (write.op == kGradient) {
    return dtype_ == DType::kFloat32 ? ApplyGradient<float>(write) : ApplyGradient<double>(write);
  }
  Region& region = write.slot == 0 ? values_ : slots_[write.slot - 1u];
  std::byte* const to = BytesOf(region).data();
  const auto op = static_cast<ElementOp>(write.op);
  if (write.rows) {
    ScatterElements(op, dtype_, to, row_bytes_, write.ids, write.values);
  } else {
    ApplyElements(op, dtype_, to, write.values);
  }
}

Status ProgramShard::BeginStep(std::uint64_t step) {
  if (step <= step_.load(std::memory_order_acquire)) return Ok();
  const WriteLock lock(mutex_);
  if (step <= step_) return Ok();
  if (!staged_.empty()) {
    const auto merged = staged_.Merge(dtype_, row_bytes_);
    if (!merged.ok()) return Annotate(merged.status(), "variable " + variable_->name());
    for (const ShardWrite& write : *merged) ApplyOne(write);
    held_ -= staged_.bytes();
    staged_.Clear();
    ++version_;
  }
  step_.store(step, std::memory_order_release);
  return Ok();
}

Result<bool> ProgramShard::Apply(const FlushId& id, ClosureId settled,
                                 std::span<const ShardWrite> writes, std::uint64_t step) {
  if (step > 0) MUSTER_TRY(BeginStep(step));
  const WriteLock lock(mutex_);
  const Result<bool> admitted = window_.Admit(id, settled);
  if (!admitted.ok()) return Annotate(admitted.status(), "variable " + variable_->name());
  if (!*admitted) return false;
  if (step > 0 && step < step_) {
    return Aborted("variable {}: closure {} is of step {}, which is over", variable_->name(),
                   id.closure, step);
  }
  if (step > 0) {
    const std::uint64_t before = staged_.bytes();
    MUSTER_TRY(Annotate(staged_.Add(id, writes), "variable " + variable_->name()));
    held_ += staged_.bytes() - before;
  } else {
    for (const ShardWrite& write : writes) ApplyOne(write);
    ++version_;
  }
  window_.Mark(id);
  return true;
}

Status ProgramShard::CheckAttach(const v1::OptimizerSpec& spec) const {
  if (dtype_ != DType::kFloat32 && dtype_ != DType::kFloat64) {
    return InvalidArgument("variable {} is {}; an optimizer is for float32 and float64",
                           variable_->name(), NameOf(dtype_));
  }
  const ReadLock lock(mutex_);
  return CheckSpec(spec);
}

Status ProgramShard::CheckSpec(const v1::OptimizerSpec& spec) const {
  if (!optimizer_ || optimizer_spec_ == spec.SerializeAsString()) return Ok();
  return FailedPrecondition("variable {} has another optimizer already", variable_->name());
}

Status ProgramShard::Attach(const v1::OptimizerSpec& spec, std::optional<std::uint64_t> updates) {
  MUSTER_TRY(CheckAttach(spec));
  MUSTER_TRY_ASSIGN(Optimizer made, Optimizer::Create(spec, 1));
  const WriteLock lock(mutex_);
  MUSTER_TRY(CheckSpec(spec));  // another client may have attached one since
  if (!optimizer_) {
    std::vector<Region> slots;
    for (std::size_t i = 0; i < made.slots().size(); ++i) {
      MUSTER_TRY_ASSIGN(Region slot, Region::Create(DivideUp(bytes_, sizeof(float))));
      if (!made.SlotIsZero(i)) {
        const std::span<std::byte> into = BytesOf(slot);
        if (dtype_ == DType::kFloat32) {
          std::ranges::fill(As<float>(into), static_cast<float>(made.initial_slot()));
        } else {
          std::ranges::fill(As<double>(into), made.initial_slot());
        }
      }
      slots.push_back(std::move(slot));
    }
    held_ += bytes_ * slots.size();
    slots_held_ = bytes_ * slots.size();
    slots_ = std::move(slots);
    optimizer_ = std::move(made);
    optimizer_spec_ = spec.SerializeAsString();
  }
  if (updates) updates_ = *updates;
  return Ok();
}

void ProgramShard::Trim(ClosureId settled) {
  const WriteLock lock(mutex_);
  window_.Trim(settled);
}

}  // namespace muster::ps
