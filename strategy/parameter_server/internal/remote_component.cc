#include "strategy/parameter_server/internal/remote_component.h"

#include <exception>
#include <thread>
#include <utility>

#include "common/partition/div_layout.h"
#include "common/partition/placement.h"
#include "common/torch/dtypes.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/cluster/internal/stderr_line.h"
#include "strategy/parameter_server/internal/cached_reads.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/variables/internal/ordinary.h"
#include "strategy/variables/variable.h"

namespace muster::internal {
namespace {

ps::ElementOp OpOf(WriteKind kind) {
  switch (kind) {
    case WriteKind::kAssignAdd:
    case WriteKind::kScatterAdd:
      return ps::ElementOp::kAdd;
    case WriteKind::kAssignSub:
    case WriteKind::kScatterSub:
      return ps::ElementOp::kSub;
    case WriteKind::kScatterMul:
      return ps::ElementOp::kMul;
    case WriteKind::kScatterDiv:
      return ps::ElementOp::kDiv;
    case WriteKind::kScatterMin:
      return ps::ElementOp::kMin;
    case WriteKind::kScatterMax:
      return ps::ElementOp::kMax;
    case WriteKind::kAssign:
    case WriteKind::kScatterUpdate:
      break;
  }
  return ps::ElementOp::kAssign;
}

std::string Text(torch::ScalarType type, const std::vector<std::int64_t>& sizes) {
  return fmt::format("{} of shape {}", torch::toString(type), ShapeText(sizes));
}

VariablePart PartAt(const std::vector<std::int64_t>& sizes, std::int64_t offset,
                    std::int64_t rows) {
  VariablePart part{.shape = sizes, .offset = std::vector<std::int64_t>(sizes.size())};
  if (sizes.empty()) return part;  // a scalar is one row
  part.shape[0] = rows;
  part.offset[0] = offset;
  return part;
}

// One part as it is sent; copied only where it lies or looks otherwise.
torch::Tensor PlainHere(const std::string& name, const torch::Tensor& part,
                        torch::ScalarType type) {
  if (part.layout() != torch::kStrided) {
    raise(
        InvalidArgument("the initial value of variable {} is sparse: give to_dense() of it", name));
  }
  const Ordinary ordinary(device::Place{});
  return plain_of(part.to(torch::kCPU, type));
}

// Who looks up, outside closures.
Lookups::Who LooksUpHere() {
  return {.replica = ReplicaHere(), .thread = std::this_thread::get_id()};
}

// Outside closures.
torch::Tensor ReadOnce(PsConnection& connection, const ps::VariableHandle& variable) {
  CachedReads* const cached = CachedReads::Current();
  if (cached != nullptr) return cached->Read(connection, variable);
  return ReadVariable(connection, variable, nullptr);
}

}  // namespace

RemoteComponent::RemoteComponent(std::string name, device::Place place,
                                 std::shared_ptr<PsConnection> driver,
                                 VariablePartitioner partitioner,
                                 std::vector<std::uint32_t> colocated, Writes writes,
                                 Placement placement, std::int64_t warned_above)
    : Component(std::move(name), place),
      driver_(std::move(driver)),
      partitioner_(std::move(partitioner)),
      colocated_(std::move(colocated)),
      writes_(writes),
      placement_(placement),
      warned_above_(warned_above) {}

RemoteComponent::~RemoteComponent() {
  const MutexLock lock(mutex_);
  if (made_ != nullptr) driver_->Delete(made_);
}

// Where this is not the driver, the variable that the driver has made by the name.
ps::VariableHandle RemoteComponent::Bound(PsConnection& connection) const {
  const ps::VariableHandle found = connection.Find(name());
  const MutexLock lock(mutex_);
  if (found == nullptr || !declared_.has_value()) return found;
  const torch::ScalarType type = *ScalarTypeOf(found->dtype);
  if (type == declared_->type && found->shape == declared_->sizes) return found;
  raise(
      InvalidArgument("variable {}: the driver has made it as {}, this process as {}: they must be "
                      "the same everywhere",
                      name(), Text(type, found->shape), Text(declared_->type, declared_->sizes)));
}

RemoteComponent::Use RemoteComponent::Begin() const {
  Use use{.session = ClosureSession::Current()};
  const std::shared_ptr<PsConnection> current = PsConnection::Current();
  if (driver_ == nullptr) {
    use.connection = current;
    if (current == nullptr) return use;
    use.variable = Bound(*current);
    return use;
  }
  if (use.session != nullptr && &use.session->connection() != driver_.get()) {
    raise(InvalidArgument("variable {} is of job {}, this closure of job {}", name(),
                          driver_->job_id(), use.session->connection().job_id()));
  }
  use.connection = driver_;
  const MutexLock lock(mutex_);
  use.variable = made_;
  return use;
}

std::optional<Component::Form> RemoteComponent::form() const {
  {
    const MutexLock lock(mutex_);
    if (declared_.has_value()) return declared_;
  }
  const Use use = Begin();
  if (use.variable == nullptr) return std::nullopt;
  return Form{.type = *ScalarTypeOf(use.variable->dtype), .sizes = use.variable->shape};
}

ps::VariableHandle RemoteComponent::placed() const {
  Use use = Begin();
  if (use.variable == nullptr) RaiseNotMade();
  return use.variable;
}

std::string RemoteComponent::device() const {
  return fmt::format("/job:ps/replica:0/task:{}/device:CPU:0", placed()->shards[0].server);
}

void RemoteComponent::RaiseNotMade() const {
  raise(
      FailedPrecondition("variable {} is on no parameter server: variables are made in the driver, "
                         "before the closures "
                         "that use them",
                         name()));
}

torch::Tensor RemoteComponent::Snapshot() const {
  const Use use = Begin();
  if (use.variable == nullptr && driver_ == nullptr) RaiseNotMade();
  if (use.variable == nullptr) return {};
  if (use.session != nullptr) return use.session->Read(use.variable);
  // No CachingScope's: a checkpoint holds what is there, not what was read once.
  return ReadVariable(*use.connection, use.variable, nullptr);
}

torch::Tensor RemoteComponent::Leaf(int slot, bool trainable) {
  const Use use = Begin();
  if (use.variable == nullptr && driver_ == nullptr) RaiseNotMade();
  if (use.variable == nullptr) return {};
  const bool gradients = trainable && torch::isFloatingType(*ScalarTypeOf(use.variable->dtype));
  if (use.session != nullptr) return use.session->Leaf(use.variable, slot, gradients);
  return NewLeaf(ReadOnce(*use.connection, use.variable), slot, gradients);
}

torch::Tensor RemoteComponent::Gather(const torch::Tensor& rows) const {
  const Use use = Begin();
  if (use.variable == nullptr) RaiseNotMade();
  if (use.session != nullptr) return use.session->Gather(use.variable, rows);
  return GatherRows(*use.connection, use.variable, rows, nullptr);
}

torch::Tensor RemoteComponent::LookUp(const torch::Tensor& ids, bool trainable) {
  const torch::Tensor rows = Gather(ids);
  // Without gradients, as in an evaluation, there is nothing to remember.
  const torch::Tensor leaf = NewLeaf(
      rows, 0,
      trainable && torch::GradMode::is_enabled() && torch::isFloatingType(rows.scalar_type()));
  if (!leaf.requires_grad()) return leaf;
  if (ClosureSession* const session = ClosureSession::Current()) {
    session->AddLookup(placed(), ids, leaf);
    return leaf;
  }
  const MutexLock lock(mutex_);
  lookups_.Add(LooksUpHere(), ids, leaf);
  return leaf;
}

std::vector<Lookup> RemoteComponent::TakeLookups() {
  if (ClosureSession* const session = ClosureSession::Current())
    return session->TakeLookups(placed());
  const MutexLock lock(mutex_);
  return lookups_.Take(LooksUpHere());
}

std::int64_t RemoteComponent::CountShards(const std::vector<std::int64_t>& sizes,
                                          torch::ScalarType type) const {
  return colocated_.empty() ? count_shards(partitioner_, sizes, type) : std::int64_t{1};
}

torch::Tensor RemoteComponent::FirstValue(const InitialValue& initial) {
  if (!initial.parts().has_value()) return initial();
  const InitialValue::Parts& parts = *initial.parts();
  if (parts.shape.empty() || parts.shape[0] < 1) return initial();
  const partition::DivLayout layout(parts.shape[0], CountShards(parts.shape, parts.type));
  std::vector<torch::Tensor> values;
  for (std::int64_t shard = 0; shard < layout.shards(); ++shard) {
    values.push_back(initial.part(PartAt(parts.shape, layout.Offset(shard), layout.Rows(shard))));
  }
  return torch::cat(values);
}

bool RemoteComponent::Declare(const Form& form) {
  if (driver_ != nullptr) return false;
  const MutexLock lock(mutex_);
  if (declared_.has_value()) return false;
  declared_ = form;
  return true;
}

// A table may be larger than this process's memory: each part is let go when its server has it,
// before the next one is made. What the function throws is thrown on when the parts that are made
// have been deleted.
bool RemoteComponent::TakeParts(const InitialValue& initial, torch::ScalarType type) {
  const Use use = Begin();
  if (driver_ == nullptr || use.variable != nullptr) return false;
  if (use.session != nullptr) RaiseNotMade();
  const std::vector<std::int64_t>& sizes = initial.parts()->shape;
  std::exception_ptr thrown;
  torch::Tensor part;
  const auto next = [&](const ps::VariableInfo&, const ps::ShardRef& shard) -> ps::ShardValue {
    part = torch::Tensor();
    try {
      part = PlainHere(name(), initial.part(PartAt(sizes, shard.row_offset, shard.rows)), type);
      return std::span<const std::byte>(BytesOf(part));
    } catch (...) {
      thrown = std::current_exception();
      return Cancelled("variable {}: a part of its initial value could not be made", name());
    }
  };
  try {
    Make({.type = type, .sizes = sizes}, next, [](std::int64_t) {});
  } catch (const Error&) {
    if (thrown != nullptr) std::rethrow_exception(thrown);
    throw;
  }
  return true;
}

std::string WholeValueWarning(const std::string& name, std::int64_t elements, std::int64_t shards,
                              std::int64_t limit) {
  if (shards < 2 || elements <= limit) return "";
  return fmt::format(
      "the initial value of variable {} has {} elements: this process has made all of them, before "
      "they are cut into {} shards",
      name, elements, shards);
}

// `cut`: hears how many shards there are when all else is checked, before there is one.
void RemoteComponent::Make(const Form& form, ps::ShardValues values,
                           absl::FunctionRef<void(std::int64_t)> cut) {
  const DType dtype = DTypeOf(form.type);
  if (dtype == DType::kUnspecified) {
    raise(InvalidArgument("variable {}: parameter servers have no {}", name(),
                          torch::toString(form.type)));
  }
  // Before it is cut: no rows make no shards.
  (void)value_of(partition::CountElements(form.sizes, "variable " + name()));
  const std::int64_t shards = CountShards(form.sizes, form.type);
  cut(shards);
  ps::VariableHandle made =
      driver_->Create(name(), dtype, form.sizes, shards, {colocated_, placement_}, values);
  const MutexLock lock(mutex_);
  made_ = std::move(made);
  declared_ = form;
}

void RemoteComponent::MakeWhole(const torch::Tensor& value, torch::ScalarType type) {
  torch::Tensor whole;
  const auto rows = [&](const ps::VariableInfo& variable,
                        const ps::ShardRef& shard) -> ps::ShardValue {
    return BytesOf(whole).subspan(static_cast<std::size_t>(shard.row_offset) * variable.row_bytes,
                                  static_cast<std::size_t>(shard.rows) * variable.row_bytes);
  };
  Make({.type = type, .sizes = value.sizes().vec()}, rows, [&](std::int64_t shards) {
    const std::string warning = WholeValueWarning(name(), value.numel(), shards, warned_above_);
    if (!warning.empty()) TellStderr(warning);
    whole = CopyAt(device::Place{}, value, type).contiguous();
  });
}

void RemoteComponent::Assign(const torch::Tensor& value, torch::ScalarType type) {
  if (driver_ == nullptr) {
    const MutexLock lock(mutex_);
    if (!declared_.has_value()) {
      declared_ = Form{.type = type, .sizes = value.sizes().vec()};
      return;
    }
  }
  const Use use = Begin();
  if (use.variable == nullptr) {
    if (driver_ == nullptr || use.session != nullptr) RaiseNotMade();
    return MakeWhole(value, type);
  }
  (void)Apply(WriteKind::kAssign, name(), {.values = value.to(type)});
}

// In a closure the write joins the others of its session and is sent with them (kImmediate: now);
// outside it is sent by itself. False: there is no variable yet, nothing was written.
bool RemoteComponent::Apply(WriteKind kind, const std::string& variable,
                            const WriteArgument& argument) {
  const Use use = Begin();
  // A closure has nowhere to write to; outside of one an executor only says what the variable looks
  // like (Assign).
  if (use.variable == nullptr && use.session != nullptr) RaiseNotMade();
  if (use.variable == nullptr) return false;
  const WriteArgument fitted =
      Fitted(kind, variable, *ScalarTypeOf(use.variable->dtype), use.variable->shape, argument);
  const auto add = [&](ps::WriteSet& set) {
    const ps::Operands operands{.bytes = BytesOf(fitted.values)};
    if (!is_scatter(kind)) {
      return raise_unless_ok(set.Update(use.variable, OpOf(kind), operands));
    }
    const std::span<const std::int64_t> rows(fitted.indices.data_ptr<std::int64_t>(),
                                             static_cast<std::size_t>(fitted.indices.numel()));
    if (!rows.empty()) raise_unless_ok(set.Scatter(use.variable, OpOf(kind), rows, operands));
  };
  if (use.session != nullptr) {
    if (writes_ == Writes::kImmediate) {
      use.session->WriteNow({use.variable}, add);
    } else {
      use.session->Write(use.variable, add);
    }
    return true;
  }
  ps::WriteSet set;
  add(set);
  use.connection->RaiseUnlessOk(use.connection->client().Flush(set), ClosurePhase::kWrites);
  return true;
}

WriteArgument RemoteComponent::FittedWhole(const torch::Tensor& gradient) const {
  const ps::VariableHandle variable = placed();
  return Fitted(WriteKind::kAssignSub, name(), *ScalarTypeOf(variable->dtype), variable->shape,
                {.values = gradient});
}

WriteArgument RemoteComponent::FittedRows(const torch::Tensor& gradients,
                                          const torch::Tensor& rows) const {
  const ps::VariableHandle variable = placed();
  return Fitted(WriteKind::kScatterSub, name(), *ScalarTypeOf(variable->dtype), variable->shape,
                {.values = gradients, .indices = rows});
}

ps::WriteSet RemoteComponent::UpdateBy(const WriteArgument& gradient, double learning_rate) const {
  const ps::VariableHandle variable = placed();
  ps::WriteSet update;
  const ps::Operands values{.bytes = BytesOf(gradient.values)};
  if (!gradient.indices.defined()) {
    raise_unless_ok(update.Gradient(variable, values, learning_rate));
    return update;
  }
  const std::span<const std::int64_t> rows(gradient.indices.data_ptr<std::int64_t>(),
                                           static_cast<std::size_t>(gradient.indices.numel()));
  if (!rows.empty()) {
    raise_unless_ok(update.GradientRows(variable, rows, values, learning_rate));
  }
  return update;
}

void RemoteComponent::AddUpdate(ps::WriteSet update, ps::WriteSet& outside_closures) {
  const Use use = Begin();
  if (use.variable == nullptr) RaiseNotMade();
  if (use.session == nullptr) return outside_closures.Take(update);
  if (update.empty()) return;
  use.session->Write(use.variable, [&](ps::WriteSet& set) { set.Take(update); });
}

}  // namespace muster::internal
