#include "coordinator/plan.h"

#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

std::vector<v1::PsAddress> Servers(const std::vector<std::uint32_t>& indices) {
  std::vector<v1::PsAddress> servers;
  for (const std::uint32_t index : indices) servers.emplace_back().set_index(index);
  return servers;
}

TEST_CASE("Steps are given, or epochs of whole and last batches", "[coordinator][unit]") {
  v1::JobSpec spec;
  spec.set_batch_size(10);
  spec.set_epochs(3);
  CHECK(*TotalSteps(spec, 95) == 30);
  spec.mutable_data()->set_drop_remainder(true);
  CHECK(*TotalSteps(spec, 95) == 27);
  CHECK(TotalSteps(spec, 9).status().code() == StatusCode::kInvalidArgument);
  spec.set_steps(7);
  CHECK(*TotalSteps(spec, 95) == 7);
}

TEST_CASE("A plan says how far steps may run ahead, unless they may as they like",
          "[coordinator][unit]") {
  v1::JobRecord record;
  v1::JobSpec& spec = *record.mutable_job()->mutable_spec();
  spec = testing::Cluster::Spec();
  record.set_training_examples(1'000);
  const std::vector<v1::PsAddress> ps = Servers({0});
  CHECK_FALSE(MakePlan(record, ps)->has_steps());
  spec.mutable_strategy()->mutable_consistency()->set_kind(v1::CONSISTENCY_KIND_SYNCHRONOUS);
  CHECK(MakePlan(record, ps)->steps().gradients() == 1);
  CHECK(MakePlan(record, ps)->steps().staleness() == 0);
  spec.mutable_strategy()->clear_consistency();
  spec.mutable_strategy()->mutable_consistency()->set_staleness(3);
  spec.mutable_strategy()->set_gradients_per_step(8);
  CHECK(MakePlan(record, ps)->steps().gradients() == 8);
  CHECK(MakePlan(record, ps)->steps().staleness() == 3);
}

TEST_CASE("A plan has parameters and embeddings by name, over the servers that are there",
          "[coordinator][unit]") {
  v1::JobRecord record;
  record.set_training_examples(100);
  v1::JobSpec& spec = *record.mutable_job()->mutable_spec();
  spec = testing::Cluster::Spec();
  v1::EmbeddingSpec& users = (*spec.mutable_embeddings())["a_users"];
  users.set_rows(100'000);
  users.set_dim(16);

  const auto plan = MakePlan(record, Servers({1, 4}));
  REQUIRE(plan.ok());
  REQUIRE(plan->variables_size() == 2);
  CHECK(plan->variables(0).name() == "a_users");
  CHECK(plan->variables(0).embedding());
  CHECK(plan->variables(0).initializer().kind() == v1::INITIALIZER_KIND_UNIFORM);
  CHECK(plan->variables(0).initializer().scale() == 0.05);
  REQUIRE(plan->variables(0).shards_size() == 2);
  CHECK(plan->variables(0).shards(0).ps_index() == 1);
  CHECK(plan->variables(0).shards(1).ps_index() == 4);
  CHECK(plan->variables(1).name() == "w");
}

TEST_CASE("The hash of a spec does not depend on the order of its maps", "[coordinator][unit]") {
  v1::JobSpec one = testing::Cluster::Spec();
  v1::JobSpec other = testing::Cluster::Spec();
  for (int i = 0; i < 40; ++i) {
    (*one.mutable_model()->mutable_parameters())["p" + std::to_string(i)].add_shape(1);
    (*other.mutable_model()->mutable_parameters())["p" + std::to_string(39 - i)].add_shape(1);
  }
  CHECK(SpecHash(one) == SpecHash(other));
  other.set_seed(1);
  CHECK(SpecHash(one) != SpecHash(other));
}

TEST_CASE("A job of which nobody says when to save is saved by time", "[coordinator][unit]") {
  v1::JobRecord record;
  *record.mutable_job()->mutable_spec() = testing::Cluster::Spec("one");
  record.set_training_examples(1000);
  v1::CheckpointSpec& checkpoint = *record.mutable_job()->mutable_spec()->mutable_checkpoint();
  const auto seconds = [&] { return MakePlan(record, Servers({0})).value().checkpoint_seconds(); };

  checkpoint.clear_every_steps();
  CHECK(seconds() == 60);
  checkpoint.set_every_steps(7);
  CHECK(seconds() == 0);
  checkpoint.set_every_seconds(5);
  CHECK(seconds() == 5);
  checkpoint.clear_every_steps();
  checkpoint.set_every_seconds(0);
  CHECK(seconds() == 0);
}

TEST_CASE("A job goes on from a checkpoint of another name, not from one of another training",
          "[coordinator][unit]") {
  const v1::JobSpec spec = testing::Cluster::Spec("one");
  v1::CheckpointManifest manifest;
  manifest.set_job_name("one");
  manifest.set_spec_hash(TrainingHash(spec));

  v1::JobSpec other = spec;
  other.set_name("other");
  other.mutable_checkpoint()->set_every_steps(7);
  CHECK(GoesOnFrom(spec, manifest));
  CHECK(GoesOnFrom(other, manifest));
  other.set_seed(1);
  CHECK_FALSE(GoesOnFrom(other, manifest));
}

TEST_CASE("Checkpoints whose manifest has the hash of the whole spec are still gone on from",
          "[coordinator][unit]") {
  const v1::JobSpec spec = testing::Cluster::Spec("one");
  v1::CheckpointManifest manifest;
  manifest.set_job_name("one");
  manifest.set_spec_hash(SpecHash(spec));

  v1::JobSpec other = spec;
  other.set_name("other");
  CHECK(GoesOnFrom(spec, manifest));
  CHECK(GoesOnFrom(other, manifest));
  other.set_seed(1);
  CHECK_FALSE(GoesOnFrom(other, manifest));
}

}  // namespace
}  // namespace muster::coordinator
