#include "common/config/job_yaml/validate_job.h"

#include <cmath>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "common/config/job_yaml/job_yaml.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/common/config/job_yaml/good_job.h"

namespace muster::config {
namespace {

v1::JobSpec GoodSpec() { return ParseJobYaml(testing::kGoodJob, "job.yaml").spec; }

// The problems after one change to a good job: "path: message", one a line.
std::string After(const std::function<void(v1::JobSpec&)>& change) {
  v1::JobSpec spec = GoodSpec();
  change(spec);
  std::string all;
  for (const Problem& problem : ValidateJob(spec)) {
    all += (all.empty() ? "" : "\n") + problem.path + ": " + problem.message;
  }
  return all;
}

void ExpectStart(const std::string& problems, const std::string& start) {
  CAPTURE(problems, start);
  CHECK(problems.starts_with(start));
}

TEST_CASE("a good job has no problem", "[config][unit]") {
  CHECK(After([](v1::JobSpec&) {}).empty());
}

TEST_CASE("the learning rate is above 0 and finite", "[config][unit]") {
  for (const double rate : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
    CAPTURE(rate);
    ExpectStart(After([&](v1::JobSpec& s) { s.mutable_optimizer()->set_learning_rate(rate); }),
                "optimizer.learning_rate: required, above 0 and finite; given ");
  }
}

TEST_CASE("a job says how long it is exactly once", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) { s.set_steps(10); }),
              "steps: exactly one of epochs and steps, above 0; given both");
  ExpectStart(After([](v1::JobSpec& s) { s.clear_epochs(); }),
              "epochs: exactly one of epochs and steps, above 0; given none");
  ExpectStart(After([](v1::JobSpec& s) { s.clear_batch_size(); }), "batch_size: required, above 0");
  ExpectStart(After([](v1::JobSpec& s) { s.set_batch_size(1 << 21); }), "batch_size: at most ");
}

TEST_CASE("no path of a job has a zero byte", "[config][unit]") {
  CHECK(After([](v1::JobSpec& s) {
          s.mutable_model()->Clear();
          s.mutable_model()->set_archive({'a', '\0'});
          s.mutable_checkpoint()->set_directory({'a', '\0'});
        }) ==
        "model.archive: the path has a zero byte\n"
        "checkpoint.directory: the path has a zero byte");
}

TEST_CASE("how often a job is saved and evaluated has a limit", "[config][unit]") {
  CHECK(After([](v1::JobSpec& s) {
          s.mutable_checkpoint()->set_every_steps(std::uint64_t{1} << 40);
          *s.mutable_evaluation()->mutable_data() = s.data();
          s.mutable_evaluation()->set_every_epochs(1'000'000);
        }) == "");
  ExpectStart(
      After([](v1::JobSpec& s) { s.mutable_checkpoint()->set_every_steps(~std::uint64_t{0}); }),
      "checkpoint.every_steps: at most 1099511627776; given 18446744073709551615");
  ExpectStart(After([](v1::JobSpec& s) {
                *s.mutable_evaluation()->mutable_data() = s.data();
                s.mutable_evaluation()->set_every_epochs(1'000'001);
              }),
              "evaluation.every_epochs: at most 1000000; given 1000001");
}

TEST_CASE("a job has one model and one reader", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_model()->set_archive("m.pt"); }),
              "model: exactly one of forward (TorchScript source) and archive");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_model()->clear_forward(); }), "model: exactly");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_data()->mutable_text()->add_files("a"); }),
              "data: exactly one reader of idx, csv, criteo, tfrecord, text; given 2");
  ExpectStart(After([](v1::JobSpec& s) { s.clear_data(); }), "data: required");
}

TEST_CASE("an evaluator evaluates each checkpoint and no epochs", "[config][unit]") {
  CHECK(After([](v1::JobSpec& s) {
          *s.mutable_evaluation()->mutable_data() = s.data();
          s.mutable_evaluation()->set_evaluator(true);
        }) == "");
  ExpectStart(After([](v1::JobSpec& s) {
                s.mutable_evaluation()->set_evaluator(true);
                s.mutable_evaluation()->set_every_epochs(2);
              }),
              "evaluation.every_epochs: not with evaluator");
}

TEST_CASE("placement is said where there are parameter servers", "[config][unit]") {
  const auto by_bytes = [](v1::JobSpec& s) {
    s.mutable_strategy()->set_placement(v1::PLACEMENT_KIND_BY_BYTES);
  };
  CHECK(After(by_bytes).empty());
  ExpectStart(After([&](v1::JobSpec& s) {
                s.clear_strategy();
                s.mutable_strategy()->set_kind(v1::STRATEGY_KIND_ONE_DEVICE);
                by_bytes(s);
              }),
              "strategy.placement: is for parameter_server; the other kinds");
}

TEST_CASE("names keep to their letters", "[config][unit]") {
  for (const char* name : {"", "a b", "a/b", "../x", ".hidden", "-f", "é"}) {
    CAPTURE(name);
    ExpectStart(After([&](v1::JobSpec& s) { s.set_name(name); }), "name: letters, digits");
  }
  ExpectStart(After([](v1::JobSpec& s) { s.set_name(std::string(65, 'a')); }), "name: ");
  CHECK(After([](v1::JobSpec& s) { s.set_name(std::string(64, 'a')); }).empty());
  for (const char* name : {"", "1w", "a.b", "training", "w-1"}) {
    CAPTURE(name);
    ExpectStart(After([&](v1::JobSpec& s) { (*s.mutable_model()->mutable_parameters())[name]; }),
                std::string("model.parameters.") + name + ": '" + name + "' cannot be");
  }
}

TEST_CASE("shapes are positive and bounded", "[config][unit]") {
  const auto with = [](std::vector<std::int64_t> shape) {
    return After([&](v1::JobSpec& s) {
      auto& w = (*s.mutable_model()->mutable_parameters())["w"];
      w.mutable_shape()->Assign(shape.begin(), shape.end());
    });
  };
  ExpectStart(with({3, 0}), "model.parameters.w.shape: every dimension must be above 0; given 0");
  ExpectStart(with({-1}), "model.parameters.w.shape: every dimension");
  ExpectStart(with({1, 1, 1, 1, 1, 1, 1, 1, 1}), "model.parameters.w.shape: at most 8 dimensions");
  ExpectStart(with({std::numeric_limits<std::int64_t>::max(), 2}),
              "model.parameters.w.shape: [9223372036854775807, 2] takes more than");
  CHECK(with({}).empty());
}

TEST_CASE("an embedding needs a column, rows and a width", "[config][unit]") {
  const auto with = [](std::int64_t rows, std::int64_t dim, const char* feature) {
    return After([&](v1::JobSpec& s) {
      auto& e = (*s.mutable_embeddings())["emb"];
      e.set_rows(rows);
      e.set_dim(dim);
      e.set_feature(feature);
    });
  };
  CHECK(with(10, 4, "label").empty());
  ExpectStart(with(0, 4, "label"), "embeddings.emb.rows: required, above 0; given 0");
  ExpectStart(with(10, -4, "label"), "embeddings.emb.dim: required, above 0; given -4");
  ExpectStart(with(10, 4, ""), "embeddings.emb.feature: required");
  ExpectStart(with(10, 4, "lebel"), "embeddings.emb.feature: the data has no column 'lebel'");
  ExpectStart(with(std::int64_t{1} << 40, 1 << 10, "label"), "embeddings.emb.rows: [");
  ExpectStart(After([](v1::JobSpec& s) {
                auto& e = (*s.mutable_embeddings())["w"];
                e.set_rows(1);
                e.set_dim(1);
                e.set_feature("label");
              }),
              "embeddings.w: a parameter has the same name");
}

TEST_CASE("an embedding has a row for every id that the reader makes", "[config][unit]") {
  const std::string problems = After([](v1::JobSpec& s) {
    s.mutable_data()->clear_idx();
    s.mutable_data()->mutable_criteo()->add_files("a.tsv");
    auto& e = (*s.mutable_embeddings())["emb"];
    e.set_rows(1000);
    e.set_dim(4);
    e.set_feature("cat");
  });
  CHECK(problems ==
        "embeddings.emb.rows: 1000 rows, but ids of cat go up to 1000002: give the reader "
        "hash_buckets: 1000");
}

TEST_CASE("a loss is a kind with a label, or a function", "[config][unit]") {
  ExpectStart(
      After([](v1::JobSpec& s) { s.mutable_loss()->set_function("def loss(o): return o"); }),
      "loss: exactly one of kind and function; given both");
  ExpectStart(After([](v1::JobSpec& s) { s.clear_loss(); }),
              "loss: exactly one of kind and function; given none");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_loss()->clear_label(); }),
              "loss.label: required");
}

TEST_CASE("metrics fit the loss", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) { s.add_metrics(v1::METRIC_AUC); }), "metrics.2: auc needs");
  ExpectStart(After([](v1::JobSpec& s) { s.add_metrics(v1::METRIC_LOSS); }),
              "metrics.2: listed twice");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_loss()->set_kind(v1::LOSS_KIND_MSE); }),
              "metrics.1: accuracy needs classes");
}

TEST_CASE("an optimizer takes its own options, in their range", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_optimizer()->set_momentum(0.9); }),
              "optimizer.momentum: is an option of momentum, not of this optimizer");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_optimizer()->set_l1(1); }),
              "optimizer.l1: is an");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_optimizer()->set_beta1(1); }),
              "optimizer.beta1: must be at least 0 and below 1; given 1");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_optimizer()->set_weight_decay(-0.1); }),
              "optimizer.weight_decay: must be 0 or more, and a finite float32; given -0.1");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_optimizer()->set_epsilon(std::nan("")); }),
              "optimizer.epsilon: must be 0 or more");
  CHECK(After([](v1::JobSpec& s) {
          s.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_MOMENTUM);
          s.mutable_optimizer()->set_momentum(0.9);
          s.mutable_optimizer()->set_nesterov(true);
        }).empty());
}

TEST_CASE("a schedule takes its own arguments", "[config][unit]") {
  const auto with = [](v1::ScheduleKind kind,
                       const std::function<void(v1::ScheduleSpec&)>& change) {
    return After([&](v1::JobSpec& s) {
      s.mutable_optimizer()->mutable_schedule()->set_kind(kind);
      change(*s.mutable_optimizer()->mutable_schedule());
    });
  };
  ExpectStart(with(v1::SCHEDULE_KIND_STEP, [](auto&) {}), "optimizer.schedule.step_size: required");
  ExpectStart(with(v1::SCHEDULE_KIND_CONSTANT, [](auto& s) { s.set_gamma(0.5); }),
              "optimizer.schedule.gamma: is for kind step only");
  ExpectStart(with(v1::SCHEDULE_KIND_COSINE, [](auto& s) { s.set_final_factor(2); }),
              "optimizer.schedule.final_factor: must be from 0 to 1; given 2");
  ExpectStart(with(v1::SCHEDULE_KIND_COSINE,
                   [](auto& s) {
                     s.set_total_steps(10);
                     s.set_warmup_steps(10);
                   }),
              "optimizer.schedule.warmup_steps: 10 steps of warm-up leave nothing of 10 steps");
  CHECK(with(v1::SCHEDULE_KIND_COSINE, [](auto& s) { s.set_warmup_steps(10); }).empty());
}

TEST_CASE("strategies of one machine take devices and no partitioner", "[config][unit]") {
  const auto with = [](
                        v1::StrategyKind kind, std::uint32_t devices,
                        const std::function<void(v1::JobSpec&)>& change = [](auto&) {}) {
    return After([&](v1::JobSpec& s) {
      s.set_batch_size(128);
      s.mutable_strategy()->set_kind(kind);
      if (devices > 0) s.mutable_strategy()->set_devices(devices);
      change(s);
    });
  };
  const auto deterministic = [](v1::JobSpec& s) { s.mutable_strategy()->set_deterministic(true); };
  const auto partitioned = [](v1::JobSpec& s) {
    s.mutable_strategy()->mutable_partitioner()->set_kind(v1::PARTITIONER_KIND_MIN_SIZE);
  };
  CHECK(with(v1::STRATEGY_KIND_ONE_DEVICE, 0).empty());
  CHECK(with(v1::STRATEGY_KIND_ONE_DEVICE, 1, deterministic).empty());
  CHECK(with(v1::STRATEGY_KIND_MIRRORED, 64).empty());
  CHECK(with(v1::STRATEGY_KIND_CENTRAL_STORAGE, 8, deterministic).empty());
  ExpectStart(with(v1::STRATEGY_KIND_ONE_DEVICE, 2),
              "strategy.devices: from 1 to 1; given 2; for more than one use kind mirrored");
  const auto none = [](v1::JobSpec& s) { s.mutable_strategy()->set_devices(0); };
  ExpectStart(with(v1::STRATEGY_KIND_MIRRORED, 0, none), "strategy.devices: from 1 to 64; given 0");
  ExpectStart(with(v1::STRATEGY_KIND_ONE_DEVICE, 0, none),
              "strategy.devices: from 1 to 1; given 0");
  ExpectStart(with(v1::STRATEGY_KIND_MIRRORED, 65), "strategy.devices: from 1 to 64; given 65");
  ExpectStart(with(v1::STRATEGY_KIND_MIRRORED, 9, deterministic),
              "strategy.devices: from 1 to 8 with deterministic, the number of its logical shards; "
              "given 9");
  ExpectStart(with(v1::STRATEGY_KIND_MIRRORED, 4, [](v1::JobSpec& s) { s.set_batch_size(3); }),
              "strategy.devices: 4 devices have nothing to do with a batch_size of 3");
  ExpectStart(with(v1::STRATEGY_KIND_MIRRORED, 2, partitioned),
              "strategy.partitioner: mirrored keeps every variable whole on each device; remove "
              "it, or use kind parameter_server");
  ExpectStart(with(v1::STRATEGY_KIND_CENTRAL_STORAGE, 2, partitioned),
              "strategy.partitioner: central_storage keeps every variable whole on its device");
  ExpectStart(with(v1::STRATEGY_KIND_PARAMETER_SERVER, 2),
              "strategy.devices: has no meaning with parameter_server; remove it");
  ExpectStart(with(v1::STRATEGY_KIND_PARAMETER_SERVER, 0, deterministic),
              "strategy.deterministic: has no meaning with parameter_server");
}

TEST_CASE("how far batches may run ahead is said in one way, and where it has a meaning",
          "[config][unit]") {
  const auto with = [](const std::function<void(v1::StrategySpec&)>& change) {
    return After([&](v1::JobSpec& s) { change(*s.mutable_strategy()); });
  };
  const auto synchronous = [](v1::StrategySpec& s) {
    s.mutable_consistency()->set_kind(v1::CONSISTENCY_KIND_SYNCHRONOUS);
  };
  const auto stale = [](std::uint32_t k) {
    return [k](v1::StrategySpec& s) { s.mutable_consistency()->set_staleness(k); };
  };
  CHECK(with(synchronous).empty());
  CHECK(with(stale(3)).empty());
  CHECK(with([](v1::StrategySpec& s) {
          s.mutable_consistency()->set_kind(v1::CONSISTENCY_KIND_ASYNC);
        }).empty());
  ExpectStart(with(stale(0)),
              "strategy.consistency.staleness: from 1; given 0, which is called synchronous");
  ExpectStart(with(stale(10'001)), "strategy.consistency.staleness: at most 10000; given 10001");
  ExpectStart(with([&](v1::StrategySpec& s) { synchronous(s), stale(2)(s); }),
              "strategy.consistency.staleness: goes without a kind: write {staleness: k}");
  ExpectStart(with([](v1::StrategySpec& s) { s.mutable_consistency(); }),
              "strategy.consistency: expected async, synchronous or {staleness: k}");
  ExpectStart(with([](v1::StrategySpec& s) { s.set_gradients_per_step(4); }),
              "strategy.gradients_per_step: has no meaning with consistency async");
  ExpectStart(with([&](v1::StrategySpec& s) { synchronous(s), s.set_gradients_per_step(4'097); }),
              "strategy.gradients_per_step: at most 4096; given 4097");
  CHECK(with([&](v1::StrategySpec& s) { synchronous(s), s.set_speculative(1'000); }).empty());
  ExpectStart(with([&](v1::StrategySpec& s) { synchronous(s), s.set_speculative(1'001); }),
              "strategy.speculative: at most 1000; given 1001");
  ExpectStart(with([&](v1::StrategySpec& s) { stale(2)(s), s.set_speculative(1); }),
              "strategy.speculative: needs consistency: synchronous");
  ExpectStart(
      with([](v1::StrategySpec& s) { s.set_kind(v1::STRATEGY_KIND_TPU), s.set_speculative(1); }),
      "strategy.speculative: is for parameter_server");
  ExpectStart(
      with([&](v1::StrategySpec& s) { s.set_kind(v1::STRATEGY_KIND_MIRRORED), synchronous(s); }),
      "strategy.consistency: is for parameter_server");
}

TEST_CASE("consistency is a word or the number of steps in the file", "[config][unit]") {
  const auto parsed = [](const std::string& consistency) {
    return ParseJobYaml(
        std::string(testing::kGoodJob) + "strategy:\n  consistency: " + consistency + "\n",
        "job.yaml");
  };
  CHECK(parsed("synchronous").spec.strategy().consistency().kind() ==
        v1::CONSISTENCY_KIND_SYNCHRONOUS);
  CHECK(parsed("{staleness: 4}").spec.strategy().consistency().staleness() == 4);
  CHECK(parsed("async").problems.empty());
  const JobFile typo = parsed("synchronuos");
  REQUIRE(typo.problems.size() == 1);
  CHECK(typo.Describe(typo.problems[0]).find("did you mean \"synchronous\"?") != std::string::npos);
  const JobFile zero = parsed("{staleness: 0}");
  REQUIRE(zero.problems.size() == 1);
  CHECK(zero.Describe(zero.problems[0]).find("strategy.consistency.staleness: from 1") !=
        std::string::npos);
}

TEST_CASE("workers in step and cores are checked with their place", "[config][unit]") {
  const auto with = [](const auto& change) {
    return After([&](v1::JobSpec& s) {
      s.set_batch_size(128);
      change(*s.mutable_strategy());
    });
  };
  const auto together = [&](std::uint32_t workers, std::uint32_t most, std::uint32_t devices = 0,
                            bool deterministic = false) {
    return with([=](v1::StrategySpec& strategy) {
      strategy.set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
      strategy.set_workers(workers);
      strategy.set_max_workers(most);
      if (devices > 0) strategy.set_devices(devices);
      strategy.set_deterministic(deterministic);
    });
  };
  CHECK(together(2, 0).empty());
  CHECK(together(1, 4, 2, true).empty());
  ExpectStart(together(0, 0), "strategy.workers: required with multi_worker_mirrored");
  ExpectStart(together(3, 2), "strategy.max_workers: must not be below workers, 3; given 2");
  ExpectStart(together(1, 65), "strategy.max_workers: at most 64; given 65");
  ExpectStart(together(9, 0, 0, true), "strategy.workers: 9 workers: with deterministic at most 8");
  ExpectStart(together(1, 4, 3, true),
              "strategy.max_workers: 4 workers with 3 devices each: with deterministic at most 8");
  ExpectStart(together(64, 0, 4),
              "strategy.workers: 64 workers with 4 devices each, and a batch_size of 128: each "
              "needs an example");
  const auto cores = [&](const std::string& topology) {
    return with([=](v1::StrategySpec& strategy) {
      strategy.set_kind(v1::STRATEGY_KIND_TPU);
      strategy.set_topology(topology);
    });
  };
  CHECK(cores("2x2x1x2").empty());
  ExpectStart(cores(""), "strategy.topology: required with tpu");
  for (const char* bad : {"2x2", "2x2x1x0", "2x2x1x2x1", "2*2x1x2", "9x9x9x9", "2x2x1x-2"}) {
    CAPTURE(bad);
    ExpectStart(cores(bad), "strategy.topology: chips along x, y and z and cores of a chip");
  }
  ExpectStart(with([](v1::StrategySpec& strategy) {
                strategy.set_kind(v1::STRATEGY_KIND_MIRRORED);
                strategy.set_topology("2x2x1x2");
              }),
              "strategy.topology: is for kind tpu");
  ExpectStart(with([](v1::StrategySpec& strategy) {
                strategy.set_kind(v1::STRATEGY_KIND_TPU);
                strategy.set_topology("2x2x1x2");
                strategy.set_devices(2);
              }),
              "strategy.devices: has no meaning with tpu");
  ExpectStart(
      with([](v1::StrategySpec& strategy) {
        strategy.set_kind(v1::STRATEGY_KIND_MIRRORED);
        strategy.set_workers(2);
      }),
      "strategy.workers: belongs to parameter_server and multi_worker_mirrored; mirrored runs on "
      "one worker: remove it");
}

TEST_CASE("what is not built yet is refused in those words", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_checkpoint()->set_every_seconds(604'801); }),
              "checkpoint.every_seconds: at most 604800 (a week); given 604801");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_checkpoint()->set_durability("replicated"); }),
              "checkpoint.durability: 'replicated' is not built yet; use checkpoint");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_checkpoint()->set_durability("solid"); }),
              "checkpoint.durability: 'solid' is not known; use checkpoint");
}

TEST_CASE("a partitioner takes its own arguments", "[config][unit]") {
  const auto with = [](const std::function<void(v1::PartitionerSpec&)>& change) {
    return After([&](v1::JobSpec& s) { change(*s.mutable_strategy()->mutable_partitioner()); });
  };
  CHECK(with([](auto& p) { p.set_min_shard_bytes(1024); }).empty());
  ExpectStart(with([](auto& p) { p.set_kind(v1::PARTITIONER_KIND_MAX_SIZE); }),
              "strategy.partitioner.max_shard_bytes: required with kind max_size");
  ExpectStart(with([](auto& p) { p.set_kind(v1::PARTITIONER_KIND_FIXED); }),
              "strategy.partitioner.num_shards: required with kind fixed");
  ExpectStart(with([](auto& p) { p.set_num_shards(2); }),
              "strategy.partitioner.num_shards: is for kind fixed only");
}

TEST_CASE("columns of a CSV are found by header or by index", "[config][unit]") {
  const auto with = [](const std::function<void(v1::CsvData&)>& change) {
    return After([&](v1::JobSpec& s) {
      s.mutable_data()->clear_idx();
      auto& csv = *s.mutable_data()->mutable_csv();
      csv.add_files("a.csv");
      (*csv.mutable_columns())["label"].set_dtype(v1::DTYPE_INT64);
      change(csv);
    });
  };
  CHECK(with([](auto&) {}).empty());
  ExpectStart(with([](auto& c) { c.set_header(false); }),
              "data.csv.columns.label: index is required");
  ExpectStart(with([](auto& c) { (*c.mutable_columns())["label"].set_index(1); }),
              "data.csv.columns.label.index: only for files without a header");
  ExpectStart(with([](auto& c) { c.set_delimiter(";;"); }),
              "data.csv.delimiter: must be one character");
  ExpectStart(with([](auto& c) { c.clear_files(); }),
              "data.csv.files: at least one file is needed");
  ExpectStart(with([](auto& c) { (*c.mutable_columns())["label"].set_dtype(v1::DTYPE_UINT8); }),
              "data.csv.columns.label.dtype: must be float32, float64 or int64");
}

TEST_CASE("held-out data has the columns of the training data", "[config][unit]") {
  ExpectStart(After([](v1::JobSpec& s) {
                auto& idx = *s.mutable_evaluation()->mutable_data()->mutable_idx();
                (*idx.mutable_columns())["image"].add_files("t10k");
              }),
              "evaluation.data: lacks column label that the training data has");
  ExpectStart(After([](v1::JobSpec& s) {
                auto& columns = *s.mutable_data()->mutable_idx()->mutable_columns();
                for (int i = 10; i < 40; ++i) columns[fmt::format("also{}", i)].add_files("train");
                auto& idx = *s.mutable_evaluation()->mutable_data()->mutable_idx();
                (*idx.mutable_columns())["label"].add_files("t10k");
              }),
              "evaluation.data: lacks column also10, also11, also12, also13, also14, also15, "
              "also16, also17, also18, also19, also20, also21, also22, also23, also24, also25, "
              "also26, also27, also28, also29 and 11 more that the training data has");
  ExpectStart(After([](v1::JobSpec& s) { s.mutable_evaluation(); }), "evaluation.data: required");
}

TEST_CASE("a model's job with parameter servers says how many workers it wants", "[config][unit]") {
  const auto wants = [](std::uint32_t workers, std::uint32_t most) {
    return After([=](v1::JobSpec& s) {
      s.mutable_strategy()->set_workers(workers);
      s.mutable_strategy()->set_max_workers(most);
    });
  };
  CHECK(wants(2, 0).empty());
  CHECK(wants(2, 4).empty());
  ExpectStart(wants(3, 2), "strategy.max_workers: must not be below workers, 3; given 2");
  ExpectStart(wants(20'000, 0), "strategy.workers: at most 10000; given 20000");
  ExpectStart(wants(0, 20'000), "strategy.max_workers: at most 10000; given 20000");
}

TEST_CASE("a program has nothing of a model, and sound numbers", "[config][unit]") {
  const auto with = [](const std::function<void(v1::JobSpec&)>& change) {
    return After([&](v1::JobSpec& spec) {
      spec = v1::JobSpec();
      spec.set_name("words");
      spec.mutable_program()->set_sha256(std::string(64, 'a'));
      spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_PARAMETER_SERVER);
      change(spec);
    });
  };
  CHECK(with([](auto&) {}).empty());
  ExpectStart(with([](auto& s) { s.set_batch_size(1); }), "program: a program brings its own");
  ExpectStart(with([](auto& s) { s.mutable_data(); }), "program: a program brings its own");
  ExpectStart(with([](auto& s) { s.mutable_program()->clear_sha256(); }),
              "program.sha256: required");
  ExpectStart(with([](auto& s) { s.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MIRRORED); }),
              "strategy.kind: programs run under parameter_server");
  ExpectStart(with([](auto& s) {
                s.mutable_strategy()->set_workers(3);
                s.mutable_strategy()->set_max_workers(2);
              }),
              "strategy.max_workers: must not be below workers, 3; given 2");
  ExpectStart(with([](auto& s) { s.mutable_program()->set_max_restarts(2); }),
              "program.max_restarts: belongs to restart: on_failure");
  ExpectStart(with([](auto& s) { s.mutable_program()->set_closures_per_worker(2'000); }),
              "program.closures_per_worker: at most 1024; given 2000");
  ExpectStart(with([](auto& s) { s.mutable_program()->add_arguments(std::string(1 << 19, 'x')); }),
              "program.arguments: 524289 bytes; at most 262144");
  ExpectStart(with([](auto& s) { s.clear_name(); }), "name: ");
}

TEST_CASE("a launched command says what it is and nothing of a model", "[config][unit]") {
  const auto with = [](auto change) {
    return After([&](v1::JobSpec& spec) {
      spec = v1::JobSpec();
      spec.set_name("train");
      spec.mutable_launch()->set_command("python3");
      change(spec);
    });
  };
  const auto file = [](v1::JobSpec& s, const std::string& path) {
    s.mutable_launch()->add_files()->set_path(path);
    s.mutable_launch()->mutable_files()->rbegin()->set_sha256("a");
  };
  CHECK(with([](auto&) {}).empty());
  CHECK(with([&](auto& s) {
          file(s, "src/train.py");
          s.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
          s.mutable_strategy()->set_workers(2);
          s.mutable_launch()->set_restart(v1::RESTART_POLICY_EXIT_CODE);
          s.mutable_launch()->set_max_restarts(2);
        }).empty());
  ExpectStart(with([](auto& s) { s.set_steps(1); }), "launch: a command brings its own");
  ExpectStart(with([](auto& s) { s.mutable_program(); }), "launch: a command brings its own");
  ExpectStart(with([](auto& s) { s.mutable_strategy()->set_devices(2); }),
              "strategy: of a launched command only kind, workers and max_workers");
  ExpectStart(with([](auto& s) { s.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MIRRORED); }),
              "strategy.kind: a launched command has multi_worker_mirrored, or none");
  ExpectStart(with([](auto& s) { s.mutable_strategy()->set_workers(20'000); }),
              "strategy.workers: at most 10000; given 20000");
  ExpectStart(with([](auto& s) { s.mutable_launch()->set_command("bin/python3"); }),
              "launch.command: a name without '/'");
  ExpectStart(with([](auto& s) { s.mutable_launch()->clear_command(); }), "launch.command: ");
  ExpectStart(with([](auto& s) { s.mutable_launch()->set_processes_per_worker(2'000); }),
              "launch.processes_per_worker: at most 1024; given 2000");
  ExpectStart(with([](auto& s) { s.mutable_launch()->set_max_restarts(2); }),
              "launch.max_restarts: belongs to restart");
  // The addresses of all, in the environment of each.
  const auto each_of = [&](std::uint32_t workers, std::uint32_t each, std::uint32_t most = 0) {
    return with([&](auto& s) {
      s.mutable_strategy()->set_workers(workers);
      s.mutable_strategy()->set_max_workers(most);
      s.mutable_launch()->set_processes_per_worker(each);
    });
  };
  CHECK(each_of(5'000, 1).empty());
  CHECK(each_of(100, 50).empty());
  CHECK(each_of(0, 700).empty());
  ExpectStart(
      each_of(1, 1'024),
      "launch.processes_per_worker: 1024 processes on each of 1 worker are more than can be told "
      "of each other: each has the addresses of all in TF_CONFIG, 127 KiB for a process and 12 MiB "
      "for a worker; at most 709 on each of 1");
  ExpectStart(each_of(100, 64), "launch.processes_per_worker: 64 processes on each of 100 workers");
  CHECK(each_of(100, 64).ends_with("; at most 81 workers with 64 each, or 52 on each of 100"));
  ExpectStart(each_of(6'500, 1), "strategy.workers: 1 process on each of 6500 workers are more");
  ExpectStart(each_of(1, 1, 6'500), "strategy.max_workers: 1 process on each of 6500 workers");
  for (const char* path : {"", "/etc/passwd", "../x", "a/../../x", "a/", "./x"}) {
    ExpectStart(with([&](auto& s) { file(s, path); }), "launch.files: \"");
  }
  ExpectStart(with([&](auto& s) {
                file(s, "x");
                file(s, "x");
              }),
              "launch.files: two files would be x");
  const auto elastic = [&](auto change) {
    return with([&](auto& s) {
      s.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
      s.mutable_strategy()->set_max_workers(3);
      s.mutable_launch()->set_elastic(true);
      change(s);
    });
  };
  CHECK(elastic([](auto&) {}).empty());
  ExpectStart(elastic([](auto& s) { s.mutable_strategy()->clear_kind(); }),
              "launch.elastic: processes that come and go");
  ExpectStart(elastic([](auto& s) { s.mutable_launch()->set_processes_per_worker(2); }),
              "launch.elastic: processes that come and go");
  ExpectStart(elastic([](auto& s) { s.mutable_strategy()->clear_max_workers(); }),
              "strategy.max_workers: an elastic job says how many");
  ExpectStart(elastic([](auto& s) { s.mutable_strategy()->set_max_workers(501); }),
              "strategy.max_workers: an elastic job has at most 500; given 501");
  for (const char* name : {"TF_CONFIG", "MUSTER_TOKEN", "", "a=b"}) {
    ExpectStart(with([&](auto& s) { (*s.mutable_launch()->mutable_environment())[name] = "x"; }),
                "launch.environment: ");
  }
  ExpectStart(with([](auto& s) { s.mutable_launch()->add_files()->set_path("x"); }),
              "launch.files: x: its SHA-256 is required");
}

}  // namespace
}  // namespace muster::config
