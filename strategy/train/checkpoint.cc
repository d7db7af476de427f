#include "strategy/train/checkpoint.h"

#include <algorithm>
#include <exception>
#include <future>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/base/dtype.h"
#include "common/base/mutex.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "common/storage/checkpoint.h"
#include "common/telemetry/log.h"
#include "common/torch/dtypes.h"
#include "muster/v1/checkpoint.pb.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/between.h"
#include "strategy/train/internal/saved_state.h"
#include "strategy/train/module.h"
#include "strategy/variables/internal/variable_policy.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {
namespace {

// A checkpoint that is written over another uses the name that the other one does not, so that the
// old one is whole until the new manifest takes its place.
constexpr char kFile[] = "variables.safetensors";
constexpr char kOtherFile[] = "variables-2.safetensors";

struct Named {
  std::string name;
  torch::Tensor value;
};

DType TypeOf(const Named& one) {
  const DType type = DTypeOf(one.value.scalar_type());
  if (type != DType::kUnspecified) return type;
  raise(InvalidArgument("variable {}: checkpoints do not hold {}", one.name,
                        torch::toString(one.value.scalar_type())));
}

torch::ScalarType TorchTypeOf(const std::string& name, DType type) {
  if (const auto known = ScalarTypeOf(type)) return *known;
  raise(InvalidArgument("tensor {} of the checkpoint has type {}, which no variable has", name,
                        NameOf(type)));
}

void RequireOutsideReplicas(const char* call) {
  const ReplicaContext* const replica = get_replica_context();
  if (replica == nullptr || &replica->strategy() == &default_strategy()) return;
  raise(FailedPrecondition(
      "{} requires cross-replica context, use merge_call: this is inside a replica function",
      call));
}

// Whether the checkpoint that is there now has this file. One that a save has left which failed
// may lie beside it.
Result<bool> Names(const std::string& directory, std::string_view file) {
  const Result<v1::CheckpointManifest> manifest = storage::ReadManifest(directory);
  const StatusCode code = manifest.status().code();
  if (code == StatusCode::kNotFound || code == StatusCode::kDataLoss) return false;
  if (!manifest.ok()) return manifest.status();
  return std::any_of(manifest->files().begin(), manifest->files().end(),
                     [&](const v1::CheckpointFile& one) { return one.name() == file; });
}

// One attempt: tensors, manifest, then its name, so that no half of it is ever found.
Status WriteOnce(const std::string& directory, std::uint64_t step, const CheckpointJob& job,
                 const std::vector<Named>& values) {
  std::vector<storage::TensorToWrite> tensors;
  v1::CheckpointManifest manifest;
  storage::FileSystem& disk = storage::RealFileSystem();
  // Not a file of the checkpoint that is there; nor, as long as there is another name, one that
  // somebody else may be about to commit.
  MUSTER_TRY_ASSIGN(const bool first, disk.Exists(storage::JoinPath(directory, kFile)));
  MUSTER_TRY_ASSIGN(const bool other, disk.Exists(storage::JoinPath(directory, kOtherFile)));
  bool taken = first;
  if (first && other) {
    MUSTER_TRY_ASSIGN(taken, Names(directory, kFile));
  }
  const std::string name_of_file = taken ? kOtherFile : kFile;
  for (const Named& one : values) {
    const auto& [name, value] = one;
    const DType dtype = TypeOf(one);
    tensors.push_back({name, dtype, value.sizes().vec(), internal::BytesOf(value)});
    v1::TensorSlice& slice = *manifest.add_slices();
    slice.set_name(name);
    slice.set_dtype(static_cast<v1::DType>(dtype));
    for (const std::int64_t size : value.sizes()) slice.add_shape(size);
    slice.set_rows(value.dim() == 0 ? 1 : value.size(0));
    slice.set_file(name_of_file);
    slice.set_key(name);
  }
  MUSTER_TRY_ASSIGN(*manifest.add_files(),
                    storage::WriteSafetensors(directory, name_of_file, tensors));
  manifest.set_job_id(job.id);
  manifest.set_job_name(job.name);
  manifest.set_spec_hash(job.spec_hash);
  manifest.set_step(step);
  manifest.set_created_at(UtcText(std::chrono::system_clock::now()));
  Status committed = storage::Commit(directory, std::move(manifest));
  // The old one's file; that of a save that failed is written over by the next.
  if (committed.ok()) (void)disk.Remove(storage::JoinPath(directory, taken ? kFile : kOtherFile));
  // Before the commit, which has failed then, or behind it.
  MUSTER_TRY_ASSIGN(const bool stays, disk.Exists(storage::JoinPath(directory, name_of_file)));
  if (stays) return committed;
  return NotFound("{} has gone from {}: does another process save there, too?", name_of_file,
                  directory);
}

// A chief that stood still or was cut off may write the same checkpoint when another one has taken
// its place, and who commits takes away what the other has there: that one writes all of it again.
void WriteAll(const std::string& directory, std::uint64_t step, const CheckpointJob& job,
              const std::vector<Named>& values) {
  constexpr int kTries = 5;
  Status written = WriteOnce(directory, step, job, values);
  for (int more = 1; more < kTries && written.code() == StatusCode::kNotFound; ++more) {
    written = WriteOnce(directory, step, job, values);
  }
  raise_unless_ok(written);
}

}  // namespace

namespace {

// The state of an optimizer; its names in files begin with `prefix`.
struct TrackedState {
  std::string prefix;
  std::shared_ptr<const internal::SavedState> state;
  std::set<std::string> names;  // in files
};

using Tensors = std::map<std::string, torch::Tensor>;

}  // namespace

struct RestoreStatus::Impl {
  mutable Mutex mutex;
  std::map<std::string, Variable> variables MUSTER_GUARDED_BY(mutex);
  std::vector<TrackedState> states MUSTER_GUARDED_BY(mutex);
  std::unique_ptr<storage::Checkpoint> restored MUSTER_GUARDED_BY(mutex);
  std::map<std::string, DType> saved MUSTER_GUARDED_BY(mutex);  // what `restored` holds
  CheckpointJob job MUSTER_GUARDED_BY(mutex);
  std::uint64_t step MUSTER_GUARDED_BY(mutex) = 0;
  mutable Mutex saving;  // held while a save begins or is waited for
  mutable std::shared_future<void> save MUSTER_GUARDED_BY(saving);

  ~Impl() {
    if (save.valid()) save.wait();
  }

  // The error of a save in the background is thrown once, of several processes by all. One that has
  // joined the others since, or another chief, knows of no save, and waits with them all the same.
  void Wait() const MUSTER_REQUIRES(saving) {
    const auto wait = [done = std::exchange(save, {})] {
      if (done.valid()) done.get();
    };
    if (collectives::Group* const between = Between()) {
      internal::done_by_each(*between, "save of a checkpoint", wait);
    } else {
      wait();
    }
  }

  // A save that has failed before it began: whoever waits is told, all members.
  static std::shared_future<void> Failed() {
    std::promise<void> failed;
    failed.set_exception(std::current_exception());
    return failed.get_future().share();
  }

  // Takes the values, and writes them meanwhile where this process does. What one of several
  // processes cannot read is an error of the save: the others wait for it in Wait(), unless the
  // group is over, which they hear of by itself.
  void Begin(const std::string& directory, std::uint64_t at_step) const MUSTER_REQUIRES(saving) {
    Wait();
    std::vector<Named> values;
    try {
      values = Collect();
    } catch (...) {
      const collectives::Group* const between = Between();
      if (between == nullptr || !between->Health().ok()) throw;
      save = Failed();
      return;
    }
    if (!Writes()) {  // what there was to do is done
      std::promise<void> done;
      done.set_value();
      save = done.get_future().share();
      return;
    }
    CheckpointJob of;
    {
      const MutexLock lock(mutex);
      of = job;
    }
    try {
      save = std::async(std::launch::async, [=, values = std::move(values)] {
               WriteAll(directory, at_step, of, values);
             }).share();
    } catch (const std::system_error&) {  // no thread for it
      save = Failed();
    }
  }

  // Whether this process writes the files.
  bool Writes() const {
    const collectives::Group* const between = Between();
    return between == nullptr || between->rank() == 0;
  }

  // The processes whose variables these are; null: this one's alone.
  collectives::Group* Between() const {
    const MutexLock lock(mutex);
    for (const auto& [name, variable] : variables) {
      const Strategy* const strategy = variable.state()->strategy.get();
      if (strategy == nullptr) continue;
      if (collectives::Group* const between = strategy->collectives()) return between;
    }
    for (const TrackedState& tracked : states) {
      if (collectives::Group* const between = tracked.state->collectives()) return between;
    }
    return nullptr;
  }

  // Not under the lock: of several processes it may wait for the others. They may wait for this one
  // at any variable, so that one which cannot be read does not keep it from the others; the first
  // error is thrown at the end.
  std::vector<Named> Collect() const {
    std::map<std::string, Variable> all;
    std::vector<TrackedState> all_states;
    {
      const MutexLock lock(mutex);
      all = variables;
      all_states = states;
    }
    std::vector<Named> values;
    const torch::NoGradGuard no_grad;
    std::exception_ptr first;
    const auto read = [&first, alone = Between() == nullptr](const auto& one) {
      try {
        one();
      } catch (...) {
        if (alone) throw;
        if (first == nullptr) first = std::current_exception();
      }
    };
    for (const auto& one : all) {
      read([&] {
        const torch::Tensor value = one.second.state()->ReadAcross();
        values.push_back({one.first, internal::plain_of(value.to(torch::kCPU))});
      });
    }
    for (const TrackedState& tracked : all_states) {
      read([&] {
        for (const auto& [name, value] : tracked.state->Values()) {
          values.push_back({tracked.prefix + name, internal::plain_of(value.to(torch::kCPU))});
        }
      });
    }
    if (first != nullptr) std::rethrow_exception(first);
    return values;
  }

  torch::Tensor Read(const std::string& name) const MUSTER_REQUIRES(mutex) {
    const auto shape = restored->Shape(name);
    raise_unless_ok(shape.status());
    const torch::Tensor value = torch::empty(*shape, TorchTypeOf(name, saved.at(name)));
    const std::int64_t rows = shape->empty() ? 1 : shape->front();
    raise_unless_ok(restored->ReadRows(name, 0, rows, internal::BytesOf(value)));
    return value;
  }

  // Read, and checked against what the variable is now.
  torch::Tensor ReadFor(const std::string& name, const Variable& variable) const
      MUSTER_REQUIRES(mutex) {
    torch::Tensor value = Read(name);
    if (variable.is_initialized() && value.sizes() != variable.sizes()) {
      raise(InvalidArgument("tensor {} of the checkpoint has shape {}, variable {} has {}", name,
                            ShapeText(value), variable.name(), ShapeText(variable.sizes())));
    }
    // One without a value may have been given a type.
    const std::optional<torch::ScalarType> type =
        variable.is_initialized() ? variable.dtype() : variable.state()->dtype;
    if (type.has_value() && !c10::canCast(value.scalar_type(), *type)) {
      raise(InvalidArgument(
          "tensor {} of the checkpoint is {}, which variable {} of {} cannot hold", name,
          torch::toString(value.scalar_type()), variable.name(), torch::toString(*type)));
    }
    if (!type.has_value())
      variable.state()->policy->CheckType(*variable.state(), value.scalar_type());
    return value;
  }

  // What the checkpoint has of it, checked.
  Tensors ReadFor(const TrackedState& tracked) const MUSTER_REQUIRES(mutex) {
    Tensors values;
    for (const std::string& name : tracked.names) {
      if (saved.contains(name)) values[name.substr(tracked.prefix.size())] = Read(name);
    }
    // A job's optimizers count steps all together: by the checkpoint's.
    const std::string count = "/slot/step";
    for (const std::string& full : tracked.names) {
      const std::string name = full.substr(tracked.prefix.size());
      if (!name.ends_with(count) || values.contains(name)) continue;
      const std::string slots = name.substr(0, name.size() - std::string("step").size());
      const auto other = values.lower_bound(slots);
      if (other == values.end() || !other->first.starts_with(slots)) continue;
      values[name] = torch::scalar_tensor(static_cast<std::int64_t>(restored->manifest().step()),
                                          torch::kLong);
    }
    tracked.state->Check(values);
    return values;
  }

  bool Tracks(const std::string& name) const MUSTER_REQUIRES(mutex) {
    return variables.contains(name) ||
           std::any_of(states.begin(), states.end(),
                       [&](const TrackedState& tracked) { return tracked.names.contains(name); });
  }
};

std::vector<std::string> RestoreStatus::unused() const {
  const MutexLock lock(impl_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, dtype] : impl_->saved) {
    if (!impl_->Tracks(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> RestoreStatus::unmatched() const {
  const MutexLock lock(impl_->mutex);
  std::vector<std::string> names;
  for (const auto& [name, variable] : impl_->variables) {
    if (!impl_->saved.contains(name)) names.push_back(name);
  }
  return names;
}

const RestoreStatus& RestoreStatus::assert_existing_matched() const {
  const std::vector<std::string> names = unmatched();
  if (names.empty()) return *this;
  raise(FailedPrecondition("the checkpoint has no value for {} of the variables: {}", names.size(),
                           Joined(names)));
}

const RestoreStatus& RestoreStatus::assert_consumed() const {
  assert_existing_matched();
  const std::vector<std::string> names = unused();
  if (names.empty()) return *this;
  raise(FailedPrecondition("{} of the checkpoint {} to no variable: {}",
                           Counted(names.size(), "tensor"),
                           Agreeing(names.size(), "belongs", "belong"), Joined(names)));
}

Checkpoint::Checkpoint(std::map<std::string, Variable> variables)
    : impl_(std::make_shared<RestoreStatus::Impl>()) {
  for (const auto& [name, variable] : variables) track(name, variable);
}

void Checkpoint::track(const std::string& name, const Variable& variable) {
  if (!variable.valid()) raise(FailedPrecondition("{}: a handle of no variable", name));
  const MutexLock lock(impl_->mutex);
  const auto known = impl_->variables.find(name);
  if (known != impl_->variables.end()) {
    if (known->second.is_same(variable.container())) return;
    raise(AlreadyExists("the checkpoint tracks another variable as {}", name));
  }
  if (impl_->saved.contains(name)) variable.state()->Restore(impl_->ReadFor(name, variable));
  impl_->variables.emplace(name, variable.container());
}

void Checkpoint::track(const DistributedModuleBase& module, const std::string& prefix) {
  for (const auto* variables : {&module.parameters(), &module.buffers()}) {
    for (const Variable& variable : *variables) track(prefix + variable.name(), variable);
  }
}

void Checkpoint::track_state(const std::shared_ptr<const internal::SavedState>& state,
                             const std::string& prefix) {
  TrackedState tracked{prefix, state, {}};
  for (const std::string& name : tracked.state->Names()) tracked.names.insert(prefix + name);
  const MutexLock lock(impl_->mutex);
  for (const TrackedState& other : impl_->states) {
    if (other.state == tracked.state && other.prefix == prefix) return;
    for (const std::string& name : tracked.names) {
      if (!other.names.contains(name)) continue;
      raise(AlreadyExists("the checkpoint tracks another optimizer that has {}: give one a prefix",
                          name));
    }
  }
  if (impl_->restored != nullptr) tracked.state->Restore(impl_->ReadFor(tracked));
  impl_->states.push_back(std::move(tracked));
}

Variable Checkpoint::create(const std::string& name, InitialValue initial_value,
                            const VariableOptions& options) {
  std::function<torch::Tensor()> restored;
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->saved.contains(name)) {
      restored = [value = impl_->Read(name)] { return value; };
    }
  }
  const VariableCreatorScope creator(
      [&](const std::function<Variable(VariableSpec)>& next, VariableSpec spec) {
        spec.restored = restored;
        return next(std::move(spec));
      });
  Variable variable = Variable::create(name, std::move(initial_value), options);
  const MutexLock lock(impl_->mutex);
  const auto [known, added] = impl_->variables.try_emplace(name, variable);
  if (!added && !known->second.is_same(variable)) {
    raise(AlreadyExists("the checkpoint tracks another variable as {}", name));
  }
  return variable;
}

// Nobody else's save comes between: the error that is waited for is this one's.
void Checkpoint::save(const std::string& directory, std::uint64_t step) const {
  RequireOutsideReplicas("Checkpoint::save()");
  const MutexLock saving(impl_->saving);
  impl_->Begin(directory, step);
  impl_->Wait();
}

void Checkpoint::save_async(const std::string& directory, std::uint64_t step) const {
  RequireOutsideReplicas("Checkpoint::save()");
  const MutexLock saving(impl_->saving);
  impl_->Begin(directory, step);
}

bool Checkpoint::writes() const { return impl_->Writes(); }

std::string Checkpoint::said_by_first(const std::string& text) const {
  collectives::Group* const between = impl_->Between();
  return between == nullptr ? text
                            : internal::text_of_first(*between, "choice of a checkpoint", text);
}

void Checkpoint::wait() const {
  const MutexLock saving(impl_->saving);
  impl_->Wait();
}

// Reads and checks everything first, and writes into variables and optimizers only when all of it
// fits, on all processes: a checkpoint that does not fit changes nothing. No save takes values
// meanwhile.
RestoreStatus Checkpoint::restore(const std::string& directory) {
  RequireOutsideReplicas("Checkpoint::restore()");
  const MutexLock saving(impl_->saving);
  impl_->Wait();
  collectives::Group* const between = impl_->Between();

  const MutexLock lock(impl_->mutex);
  std::unique_ptr<storage::Checkpoint> restored_before = std::move(impl_->restored);
  std::map<std::string, DType> saved_before = std::exchange(impl_->saved, {});
  std::vector<std::pair<Variable, torch::Tensor>> values;
  std::vector<Tensors> states;
  const auto read = [&]() MUSTER_REQUIRES(impl_->mutex) {
    auto opened = storage::Checkpoint::Open(directory);
    raise_unless_ok(opened.status());
    impl_->restored = *std::move(opened);
    for (const v1::TensorSlice& slice : impl_->restored->manifest().slices()) {
      impl_->saved[slice.name()] = static_cast<DType>(slice.dtype());
    }
    for (const auto& [name, variable] : impl_->variables) {
      if (impl_->saved.contains(name))
        values.emplace_back(variable, impl_->ReadFor(name, variable));
    }
    for (const TrackedState& tracked : impl_->states) states.push_back(impl_->ReadFor(tracked));
  };
  try {
    internal::ready_on_all(between, "restore of a checkpoint", read);
  } catch (...) {
    impl_->restored = std::move(restored_before);
    impl_->saved = std::move(saved_before);
    throw;
  }
  for (const auto& [variable, value] : values) variable.state()->Restore(value);
  for (std::size_t i = 0; i < states.size(); ++i) impl_->states[i].state->Restore(states[i]);
  const v1::CheckpointManifest& manifest = impl_->restored->manifest();
  impl_->step = manifest.step();
  impl_->job = {manifest.job_id(), manifest.job_name(), manifest.spec_hash()};
  return RestoreStatus(impl_);
}

std::uint64_t Checkpoint::step() const {
  const MutexLock lock(impl_->mutex);
  return impl_->step;
}

CheckpointJob Checkpoint::job() const {
  const MutexLock lock(impl_->mutex);
  return impl_->job;
}

void Checkpoint::set_job(CheckpointJob job) {
  const MutexLock lock(impl_->mutex);
  impl_->job = std::move(job);
}

internal::TrackedValues Checkpoint::tracked() const {
  const MutexLock lock(impl_->mutex);
  internal::TrackedValues all{.variables = impl_->variables, .states = {}};
  for (const TrackedState& state : impl_->states) {
    all.states.emplace_back(state.prefix, state.state);
  }
  return all;
}

CheckpointManager::CheckpointManager(Checkpoint checkpoint, std::string directory, int max_to_keep)
    : checkpoint_(std::move(checkpoint)),
      directory_(std::move(directory)),
      max_to_keep_(max_to_keep) {
  if (max_to_keep >= 1) return;
  raise(InvalidArgument("max_to_keep is {}: at least 1 checkpoint must be kept", max_to_keep));
}

std::string CheckpointManager::save(std::uint64_t step) const {
  std::string path = storage::CheckpointDirectory(directory_, step);
  checkpoint_.save(path, step);
  // The checkpoint counts whether or not old ones could be removed.
  if (checkpoint_.writes()) {
    (void)storage::Collect(directory_, static_cast<std::uint32_t>(max_to_keep_), path);
  }
  return path;
}

std::vector<std::string> CheckpointManager::checkpoints() const {
  auto found = storage::ListCheckpoints(directory_);
  raise_unless_ok(found.status());
  std::reverse(found->begin(), found->end());
  return *std::move(found);
}

std::optional<std::string> CheckpointManager::latest_checkpoint() const {
  const std::vector<std::string> all = checkpoints();
  if (all.empty()) return std::nullopt;
  return all.back();
}

std::optional<std::string> CheckpointManager::restore_latest() {
  checkpoint_.wait();
  std::string newest;  // the name of its folder
  const auto look = [&] {
    const std::vector<std::string> all = checkpoints();
    for (auto path = all.rbegin(); path != all.rend() && newest.empty(); ++path) {
      const std::string name = path->substr(path->rfind('/') + 1);
      const Status whole = storage::Verify(*path);
      if (whole.code() == StatusCode::kDataLoss) {
        log::Warning("checkpoint {} is damaged and is not restored: {}", name, Message(whole));
        continue;
      }
      newest = name;
    }
  };
  if (collectives::Group* const between = checkpoint_.impl_->Between()) {
    // Only the first reads all of it; what it cannot, the others do not wait for.
    internal::done_by_first(*between, "look for a checkpoint", look);
  } else {
    look();
  }
  newest = checkpoint_.said_by_first(newest);
  if (newest.empty()) return std::nullopt;
  std::string path = storage::JoinPath(directory_, newest);
  checkpoint_.restore(path);
  return path;
}

}  // namespace muster
