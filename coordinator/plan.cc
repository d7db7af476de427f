#include "coordinator/plan.h"

#include <algorithm>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "common/base/words.h"
#include "common/config/job_yaml/validate_job.h"
#include "common/partition/placement.h"

namespace muster::coordinator {
namespace {

v1::InitializerKind DefaultKind(const v1::VariableLayout& variable) {
  return variable.shape_size() >= 2 ? v1::INITIALIZER_KIND_GLOROT_UNIFORM
                                    : v1::INITIALIZER_KIND_ZEROS;
}

v1::Initializer WrittenOut(const v1::Initializer& given, v1::InitializerKind otherwise) {
  v1::Initializer initializer = given;
  if (initializer.kind() == v1::INITIALIZER_KIND_UNSPECIFIED) initializer.set_kind(otherwise);
  const bool scaled = initializer.kind() == v1::INITIALIZER_KIND_UNIFORM ||
                      initializer.kind() == v1::INITIALIZER_KIND_NORMAL ||
                      initializer.kind() == v1::INITIALIZER_KIND_TRUNCATED_NORMAL;
  if (scaled && initializer.scale() == 0) initializer.set_scale(0.05);
  return initializer;
}

// A job of which nobody said when it is to be saved must not begin anew, after an hour, because a
// parameter server died.
constexpr std::uint32_t kDefaultCheckpointSeconds = 60;

std::uint32_t CheckpointSeconds(const v1::CheckpointSpec& checkpoint) {
  if (checkpoint.has_every_seconds()) return checkpoint.every_seconds();
  return checkpoint.every_steps() > 0 ? 0 : kDefaultCheckpointSeconds;
}

// Nothing where the spec is asynchronous.
void SetSteps(const v1::StrategySpec& strategy, v1::JobPlan& plan) {
  const v1::ConsistencySpec& consistency = strategy.consistency();
  const bool synchronous = consistency.kind() == v1::CONSISTENCY_KIND_SYNCHRONOUS;
  if (!synchronous && !consistency.has_staleness()) return;
  plan.mutable_steps()->set_gradients(std::max<std::uint32_t>(1, strategy.gradients_per_step()));
  plan.mutable_steps()->set_staleness(synchronous ? 0 : consistency.staleness());
  plan.mutable_steps()->set_speculative(strategy.speculative());
}

}  // namespace

std::vector<std::string> FindProblems(const v1::JobSpec& spec) {
  std::vector<std::string> problems;
  for (const config::Problem& problem : config::ValidateJob(spec)) {
    problems.push_back(problem.path.empty() ? problem.message
                                            : problem.path + ": " + problem.message);
  }
  return problems;
}

std::string CheckpointFolder(const v1::JobSpec& spec) {
  std::string folder = spec.checkpoint().directory();
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

std::uint32_t KeptCheckpoints(const v1::JobSpec& spec) {
  constexpr std::uint32_t kDefault = 3;
  return spec.checkpoint().keep() > 0 ? spec.checkpoint().keep() : kDefault;
}

Result<std::uint64_t> TotalSteps(const v1::JobSpec& spec, std::uint64_t training_examples) {
  const std::uint64_t batch = std::max<std::uint32_t>(1, spec.batch_size());
  const std::uint64_t batches = spec.data().drop_remainder()
                                    ? training_examples / batch
                                    : (training_examples + batch - 1) / batch;
  if (batches == 0) {
    return InvalidArgument("data: {} {} not make one batch of {}",
                           Counted(training_examples, "example"),
                           Agreeing(training_examples, "does", "do"), batch);
  }
  return spec.steps() > 0 ? spec.steps() : spec.epochs() * batches;
}

bool NeedsPs(const v1::JobSpec& spec) {
  return spec.strategy().kind() == v1::STRATEGY_KIND_UNSPECIFIED ||
         spec.strategy().kind() == v1::STRATEGY_KIND_PARAMETER_SERVER;
}

Result<v1::JobPlan> MakePlan(const v1::JobRecord& record, const std::vector<v1::PsAddress>& ps) {
  const v1::JobSpec& spec = record.job().spec();
  std::vector<v1::VariableLayout> variables;
  if (record.parameters_size() > 0) {
    variables.assign(record.parameters().begin(), record.parameters().end());
  } else {
    for (const auto& [name, parameter] : spec.model().parameters()) {
      v1::VariableLayout& variable = variables.emplace_back();
      variable.set_name(name);
      *variable.mutable_shape() = parameter.shape();
      *variable.mutable_initializer() = parameter.initializer();
    }
  }
  // A report may list the embeddings too.
  std::erase_if(variables, [&](const v1::VariableLayout& variable) {
    return spec.embeddings().contains(variable.name());
  });
  for (v1::VariableLayout& variable : variables) {
    variable.set_dtype(v1::DTYPE_FLOAT32);
    variable.clear_shards();
    *variable.mutable_initializer() = WrittenOut(variable.initializer(), DefaultKind(variable));
  }
  for (const auto& [name, embedding] : spec.embeddings()) {
    v1::VariableLayout& variable = variables.emplace_back();
    variable.set_name(name);
    variable.set_dtype(v1::DTYPE_FLOAT32);
    variable.add_shape(embedding.rows());
    variable.add_shape(embedding.dim());
    *variable.mutable_initializer() =
        WrittenOut(embedding.initializer(), v1::INITIALIZER_KIND_UNIFORM);
    variable.set_embedding(true);
  }

  v1::JobPlan plan;
  plan.set_job_id(record.job().id());
  plan.set_job_number(record.number());
  plan.set_seed(spec.seed());
  *plan.mutable_optimizer() = spec.optimizer();
  MUSTER_TRY_ASSIGN(const std::uint64_t steps, TotalSteps(spec, record.training_examples()));
  plan.set_total_steps(steps);
  SetSteps(spec.strategy(), plan);
  plan.set_checkpoint_seconds(CheckpointSeconds(spec.checkpoint()));
  v1::PartitionerSpec partitioner = spec.strategy().partitioner();
  auto servers = static_cast<std::uint32_t>(ps.size());
  if (!NeedsPs(spec)) {
    partitioner.set_kind(v1::PARTITIONER_KIND_NONE);
    servers = 1;
  }
  using Policy = partition::Placer::Policy;
  const bool by_bytes = spec.strategy().placement() == v1::PLACEMENT_KIND_BY_BYTES;
  MUSTER_TRY_ASSIGN(std::vector<v1::VariableLayout> placed,
                    partition::PlaceVariables(std::move(variables), partitioner, servers,
                                              by_bytes ? Policy::kByBytes : Policy::kRoundRobin));
  for (v1::VariableLayout& variable : placed) {
    if (!NeedsPs(spec)) variable.clear_shards();
    *plan.add_variables() = std::move(variable);
  }
  // Placement counts servers from 0; the plan speaks of them by their task index.
  for (v1::VariableLayout& variable : *plan.mutable_variables()) {
    for (v1::ShardPlacement& shard : *variable.mutable_shards()) {
      shard.set_ps_index(ps[shard.ps_index()].index());
    }
  }
  for (const v1::PsAddress& address : ps) *plan.add_ps() = address;
  return plan;
}

std::string SpecHash(const v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&coded);
  }
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

std::string TrainingHash(const v1::JobSpec& spec) {
  v1::JobSpec training = spec;
  training.clear_name();
  training.clear_checkpoint();
  return SpecHash(training);
}

bool GoesOnFrom(const v1::JobSpec& spec, const v1::CheckpointManifest& manifest) {
  if (manifest.spec_hash() == TrainingHash(spec)) return true;
  v1::JobSpec named = spec;
  named.set_name(manifest.job_name());
  return manifest.spec_hash() == SpecHash(named);
}

}  // namespace muster::coordinator
