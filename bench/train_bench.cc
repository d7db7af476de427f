// `muster-bench train`: the demo job on a local cluster beside a plain libtorch loop, taking turns.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/cluster.h"
#include "bench/execute.h"
#include "bench/measure.h"
#include "bench/subcommands.h"
#include "common/process/child.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr const char* kTrainMethod =
    "A cluster of separate processes on this machine (`muster up`) trains the job; a plain "
    "libtorch "
    "loop trains the same model with the same batch on the same decoded data with 2 threads in one "
    "process. They take turns, never at the same time. Cluster: examples/s between 20 % and 90 % "
    "of "
    "the job's steps, as the coordinator saw them. Loop: after 50 steps of warm-up. ratio: median "
    "over median.";

struct TrainOptions {
  std::string job = "examples/fashion.yaml";
  int ps = 2;
  int workers = 3;
  int rounds = 3;
  double loop_seconds = 5;
};

struct Point {
  double seconds;
  double step;
};

// Trains the job once; examples/s of its middle part.
Result<double> TrainOnce(const Cluster& cluster, const TrainOptions& options, int round,
                         Json& last) {
  MUSTER_TRY_ASSIGN(
      const std::string submitted,
      cluster.Muster({"submit", "-f", options.job, "--name", "bench-" + std::to_string(round)}));
  const std::string id = submitted.substr(0, submitted.find('\n'));
  std::vector<Point> points;
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    MUSTER_TRY_ASSIGN(const std::string text, cluster.Muster({"describe", id, "-o", "json"}));
    const Json job = Json::parse(text, nullptr, false);
    if (job.is_discarded()) return Internal("describe printed no JSON: {}", text);
    const std::string state = job.value("state", "");
    const Json progress = job.value("progress", Json::object());
    // 64-bit integers are strings in protobuf's JSON.
    const auto number = [&](const char* key) { return std::stod(progress.value(key, "0")); };
    const std::chrono::duration<double> now = std::chrono::steady_clock::now() - start;
    const double step = number("step");
    const double total = std::max(1.0, number("totalSteps"));
    if (step >= 0.2 * total && step <= 0.9 * total &&
        (points.empty() || points.back().step != step)) {
      points.push_back({now.count(), step});
    }
    if (state == "JOB_STATE_FAILED" || state == "JOB_STATE_CANCELLED") {
      return Internal("job {} ended as {}: {}", id, state, job.value("message", ""));
    }
    if (state == "JOB_STATE_SUCCEEDED") {
      if (points.size() < 2) return Internal("job {} was too short to be measured", id);
      last = progress;
      const double batch = job["spec"].value("batchSize", 1);
      return (points.back().step - points.front().step) * batch /
             (points.back().seconds - points.front().seconds);
    }
    std::this_thread::sleep_for(250ms);
  }
}

Json ToJson(const std::vector<double>& values) {
  const Spread spread = SpreadOf(values);
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

Status MeasureTrain(const TrainOptions& options) {
  std::vector<double> cluster_rates, loop_rates;
  Json progress;
  {
    MUSTER_TRY_ASSIGN(const auto cluster, Cluster::Start(options.ps, options.workers));
    for (int round = 0; round < options.rounds; ++round) {
      MUSTER_TRY_ASSIGN(
          const std::string loop,
          Execute({process::SiblingProgram("muster-plain-loop"), options.job,
                   std::to_string(options.loop_seconds), cluster->folder() + "/bench-cache"},
                  300s));
      loop_rates.push_back(std::atof(loop.c_str()));
      MUSTER_TRY_ASSIGN(const double rate, TrainOnce(*cluster, options, round, progress));
      cluster_rates.push_back(rate);
    }
  }
  const Json result = {
      {"benchmark", "train"},
      {"job", options.job},
      {"ps", options.ps},
      {"workers", options.workers},
      {"rounds", options.rounds},
      {"cluster_examples_per_second", ToJson(cluster_rates)},
      {"loop_examples_per_second", ToJson(loop_rates)},
      {"ratio", SpreadOf(cluster_rates).median / SpreadOf(loop_rates).median},
      {"last_progress", progress},
      {"method", kTrainMethod},
  };
  std::printf("%s\n", result.dump(2).c_str());
  return Ok();
}

}  // namespace

int RunTrain(int argc, char** argv) {
  TrainOptions options;
  CLI::App app{"Trains a job on a local cluster, and the same model in a plain libtorch loop."};
  app.add_option("--job", options.job, "job file with IDX columns image and label")
      ->capture_default_str();
  app.add_option("--ps", options.ps, "parameter servers")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--workers", options.workers, "workers")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "rounds of one job and one loop")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--loop-seconds", options.loop_seconds, "seconds of one loop")
      ->check(CLI::Range(0.1, 240.0))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Status status = MeasureTrain(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "muster-bench train: %s\n", ToString(status).c_str());
  return 1;
}

}  // namespace muster::bench
