#include "services/executor/local_variables.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "common/base/limits.h"
#include "common/base/words.h"
#include "common/storage/checkpoint.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "ps/float_mode.h"
#include "ps/initializers.h"
#include "ps/kernels.h"
#include "strategy/base/error.h"
#include "strategy/core/context.h"
#include "strategy/train/checkpoint.h"
#include "strategy/variables/extended.h"

namespace muster::executor {
namespace {

constexpr char kFile[] = "variables.safetensors";

std::span<float> Floats(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// Runs `rule` over copies of a variable and of its slots, which then become their values; in the
// update context of one component.
template <class Take, class Rule, class Put>
void UpdateComponent(const Variable& value, const std::vector<Variable>& slots, const Take& take,
                     const Rule& rule, const Put& put) {
  const torch::NoGradGuard no_grad;
  const int index = get_update_replica_id().value_or(0);
  std::vector<Variable> variables{value};
  for (const Variable& slot : slots) variables.push_back(slot.component(index));
  std::vector<torch::Tensor> fresh;
  for (const Variable& variable : variables) fresh.push_back(take(variable.value()));
  ps::Arrays arrays;
  arrays.values = fresh[0].data_ptr<float>();
  for (std::size_t i = 1; i < fresh.size(); ++i) arrays.slots[i - 1] = fresh[i].data_ptr<float>();
  {
    const ps::FlushSubnormals flush;
    rule(arrays);
  }
  for (std::size_t i = 0; i < fresh.size(); ++i) put(variables[i], fresh[i]);
}

}  // namespace

// From a checkpoint all variables and slots, or none of them: one that lacks a tensor, has another
// shape or is of another step is refused, since initial values beside trained ones train on
// unnoticed.
LocalVariables::LocalVariables(Strategy& strategy, const v1::JobPlan& plan,
                               const std::string& restore_from, const ArchiveValue& archive_value)
    : strategy_(strategy),
      optimizer_(Require(ps::Optimizer::Create(plan.optimizer(), plan.total_steps()))) {
  RequireMemory(plan);
  Checkpoint checkpoint;
  if (!restore_from.empty()) {
    (void)checkpoint.restore(restore_from);
    if (checkpoint.step() != plan.start_step()) {
      Raise(InvalidArgument("job {}: the plan starts after step {}; checkpoint {} is of step {}",
                            plan.job_id(), plan.start_step(), restore_from, checkpoint.step()));
    }
  } else if (plan.start_step() != 0) {
    Raise(InvalidArgument("job {}: the plan starts after step {} but names no checkpoint",
                          plan.job_id(), plan.start_step()));
  }
  const Scope scope = strategy.scope();
  const auto create = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          bool trainable, const std::function<void(std::span<float>)>& fill) {
    bool filled = false;
    const std::function<torch::Tensor()> initial = [&] {
      filled = true;
      const torch::Tensor value = torch::empty(shape, torch::kFloat);
      fill(Floats(value));
      return value;
    };
    Variable variable = checkpoint.create(name, initial, {.trainable = trainable});
    if (filled && !restore_from.empty()) {
      Raise(InvalidArgument(
          "job {}: checkpoint {} has no tensor {}; it is of another model or optimizer",
          plan.job_id(), restore_from, name));
    }
    if (variable.sizes() != shape) {
      Raise(InvalidArgument("job {}: tensor {} has shape [{}] in the checkpoint, wanted [{}]",
                            plan.job_id(), name, fmt::join(variable.sizes(), ", "),
                            fmt::join(shape, ", ")));
    }
    return variable;
  };
  for (const v1::VariableLayout& layout : plan.variables()) {
    Stored& stored = stored_.emplace_back();
    stored.name = layout.name();
    stored.shape.assign(layout.shape().begin(), layout.shape().end());
    stored.value = create(layout.name(), stored.shape, true, [&](std::span<float> into) {
      if (layout.initializer().kind() == v1::INITIALIZER_KIND_ARCHIVE) {
        std::ranges::copy(archive_value(layout.id()), into.begin());
      } else {
        Require(ps::InitialValues::Create(layout, plan.seed())).Fill(0, into);
      }
    });
    const auto slots = optimizer_.slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      stored.slots.push_back(create(storage::SlotName(layout.name(), std::string(slots[i])),
                                    stored.shape, false, [&](std::span<float> into) {
                                      const torch::NoGradGuard no_grad;
                                      optimizer_.FillSlot(
                                          i, Floats(stored.value.component(0).value()), into);
                                    }));
    }
  }
}

void LocalVariables::RequireMemory(const v1::JobPlan& plan) const {
  std::uint64_t floats = 0;
  for (const v1::VariableLayout& layout : plan.variables()) {
    floats += std::accumulate(
        layout.shape().begin(), layout.shape().end(), std::uint64_t{1},
        [](std::uint64_t n, std::int64_t size) { return n * static_cast<std::uint64_t>(size); });
  }
  const std::uint64_t copies = strategy_.parameter_devices().size();
  const std::uint64_t needed = floats * sizeof(float) * copies * (1 + optimizer_.slots().size());
  const std::optional<std::uint64_t> available = AvailableMemory();
  if (!available || needed <= *available) return;
  Raise(ResourceExhausted(
      "job {}: its parameters and optimizer slots need {} MiB on {} of this worker, which "
      "has {} MiB left; use central_storage or fewer devices, an optimizer with fewer slots, or "
      "parameter_server",
      plan.job_id(), needed >> 20, Counted(copies, "device"), *available >> 20));
}

void LocalVariables::UpdateDense(std::uint32_t id, std::uint64_t step,
                                 const torch::Tensor& gradient) {
  const Stored& stored = at(id);
  const ps::Rule rule = optimizer_.RuleOf(step);
  strategy_.extended().update(stored.value, [&](const Variable& value) {
    UpdateComponent(
        value, stored.slots, [](const torch::Tensor& whole) { return whole.clone(); },
        [&](const ps::Arrays& arrays) { ps::ApplyDense(rule, arrays, Floats(gradient)); },
        [](const Variable& variable, const torch::Tensor& fresh) {
          variable.assign(fresh, /*read_value=*/false);
        });
  });
}

void LocalVariables::UpdateRows(std::uint32_t id, std::uint64_t step,
                                const IndexedSlices& gradient) {
  const Stored& stored = at(id);
  const ps::Rule rule = optimizer_.RuleOf(step);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(gradient.indices.numel()));
  std::iota(rows.begin(), rows.end(), 0);
  const auto row_elements = static_cast<std::size_t>(stored.shape[1]);
  strategy_.extended().update(stored.value, [&](const Variable& value) {
    UpdateComponent(
        value, stored.slots,
        [&](const torch::Tensor& whole) { return whole.index_select(0, gradient.indices); },
        [&](const ps::Arrays& arrays) {
          ps::ApplyRows(rule, arrays, row_elements, rows, gradient.values.data_ptr<float>());
        },
        [&](const Variable& variable, const torch::Tensor& fresh) {
          variable.scatter_update({fresh, gradient.indices}, /*read_value=*/false);
        });
  });
}

void LocalVariables::ForEach(const std::function<void(const Variable&)>& each) const {
  for (const Stored& stored : stored_) {
    each(stored.value);
    for (const Variable& slot : stored.slots) each(slot);
  }
}

v1::SaveReport LocalVariables::Save(const std::string& directory) const {
  const torch::NoGradGuard no_grad;
  v1::SaveReport report;
  std::vector<torch::Tensor> values;  // kept until they are written
  std::vector<storage::TensorToWrite> tensors;
  const auto add = [&](const std::string& name, const Stored& stored, const Variable& variable) {
    values.push_back(variable.component(0).value().contiguous());
    tensors.push_back({name, DType::kFloat32, stored.shape, std::as_bytes(Floats(values.back()))});
    v1::TensorSlice& slice = *report.add_slices();
    slice.set_name(name);
    slice.set_dtype(v1::DTYPE_FLOAT32);
    slice.mutable_shape()->Assign(stored.shape.begin(), stored.shape.end());
    slice.set_rows(stored.shape.empty() ? 1 : stored.shape[0]);
    slice.set_file(kFile);
    slice.set_key(name);
  };
  for (const Stored& stored : stored_) {
    add(stored.name, stored, stored.value);
    for (std::size_t i = 0; i < stored.slots.size(); ++i) {
      add(storage::SlotName(stored.name, std::string(optimizer_.slots()[i])), stored,
          stored.slots[i]);
    }
  }
  *report.mutable_file() = Require(storage::WriteSafetensors(directory, kFile, tensors));
  return report;
}

}  // namespace muster::executor
