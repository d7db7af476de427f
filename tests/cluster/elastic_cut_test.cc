// Workers that come and go, each in a network of its own, over TCP: some are cut off from the
// others, and come back. Skipped, with the reason, where this machine has no such networks.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/mutex.h"
#include "common/process/child.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/networks.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;
using Lines = std::vector<std::string>;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/elastic";
constexpr seconds kPatience{100};
// Who is cut off is noticed in 4 s; 5 s later the others go on without it.
constexpr std::chrono::milliseconds kGoesOn{9'000};
constexpr char kSteps[] = "350";

// Steps with their losses, and the parameters at the end; without the number of workers.
Lines Results(const Lines& output) {
  Lines results;
  for (const std::string& line : output) {
    if (line.starts_with("step ")) results.push_back(line.substr(0, line.find(" of ")));
    if (line.starts_with("parameter ")) results.push_back(line);
  }
  return results;
}

Lines Alone() {
  const RunResult run = RunProgram(kProgram, {kSteps, "adam"}, {{"OMP_NUM_THREADS", "1"}});
  REQUIRE(run.code == 0);
  Lines lines;
  std::istringstream stream(run.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return Results(lines);
}

class ElasticWorkers {
 public:
  explicit ElasticWorkers(int count) : networks_(count), lines_(static_cast<std::size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      auto child = process::Child::Start(
          {.argv = {"nsenter", "-t", std::to_string(networks_.pid(i)), "-n", kProgram, kSteps,
                    "adam", "slow"},
           .environment = {{"TF_CONFIG", Networks::TfConfig(i, count)}, {"OMP_NUM_THREADS", "1"}},
           .on_line = [this, i](auto, const std::string& line) {
             const MutexLock lock(mutex_);
             lines_[static_cast<std::size_t>(i)].push_back(line);
           }});
      REQUIRE(child.ok());
      workers_.push_back(*std::move(child));
    }
  }
  ~ElasticWorkers() { workers_.clear(); }

  const Networks& networks() const { return networks_; }
  Lines OutputOf(int worker) const {
    const MutexLock lock(mutex_);
    return lines_[static_cast<std::size_t>(worker)];
  }
  // It makes `how_many` steps of so many workers from now on.
  bool MakesStepsOf(int worker, int workers, seconds limit, int how_many = 1) const {
    const std::size_t before = OutputOf(worker).size();
    const std::string wanted = fmt::format(" of {}", workers);
    return Eventually(limit, [&] {
      const Lines lines = OutputOf(worker);
      return std::count_if(lines.begin() + static_cast<std::ptrdiff_t>(before), lines.end(),
                           [&](const std::string& line) { return line.ends_with(wanted); }) >=
             how_many;
    });
  }
  // After `loss` those of `part` make steps of them alone, soon.
  void CheckGoOn(const std::vector<int>& part, const std::function<void()>& loss) const {
    const Lateness lateness;
    const auto began = std::chrono::steady_clock::now();
    loss();
    for (const int i : part) {
      CAPTURE(i, OutputOf(i));
      CHECK(MakesStepsOf(i, static_cast<int>(part.size()), kPatience));
    }
    const auto took =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
    CAPTURE(lateness.worst_ms());
    CHECK(took.count() - lateness.worst_ms() <= kGoesOn.count());
  }
  // None of them has done anything else than one alone, and all that counts has been seen.
  void CheckResults(const Lines& alone, const std::vector<int>& never_cut_off) const {
    Lines all;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const auto exit = workers_[i]->Wait(kPatience);
      const Lines output = OutputOf(static_cast<int>(i));
      CAPTURE(i, output);
      REQUIRE(exit.ok());
      CHECK(exit->ok());
      const Lines results = Results(output);
      if (std::count(never_cut_off.begin(), never_cut_off.end(), i) > 0) CHECK((results == alone));
      all.insert(all.end(), results.begin(), results.end());
      CHECK(std::all_of(results.begin(), results.end(), [&](const std::string& line) {
        return std::find(alone.begin(), alone.end(), line) != alone.end();
      }));
      CHECK(std::count(results.begin(), results.end(), alone.back()) == 1);
    }
    CHECK(std::all_of(alone.begin(), alone.end(), [&](const std::string& line) {
      return std::find(all.begin(), all.end(), line) != all.end();
    }));
  }

 private:
  const Networks networks_;
  mutable Mutex mutex_;
  std::vector<Lines> lines_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<process::Child>> workers_;
};

struct Cut {
  int workers;
  std::vector<int> off;  // they see each other
  std::vector<int> go_on;
};

TEST_CASE(
    "of an elastic run that is cut in two one part alone goes on, and the other joins it "
    "again, and no bit changes",
    "[cluster][elastic][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const Lines alone = Alone();
  // Those that are more, or as many and have the lowest.
  const Cut cut = GENERATE(Cut{3, {0}, {1, 2}}, Cut{2, {1}, {0}}, Cut{4, {2, 3}, {0, 1}});
  const ElasticWorkers workers(cut.workers);
  const auto part = static_cast<int>(cut.go_on.size());
  std::vector<int> waits;
  for (int i = 0; i < cut.workers; ++i) {
    if (std::count(cut.go_on.begin(), cut.go_on.end(), i) == 0) waits.push_back(i);
  }
  CAPTURE(cut.workers, cut.off);
  for (int i = 0; i < cut.workers; ++i) {
    REQUIRE(workers.MakesStepsOf(i, cut.workers, kPatience));
  }

  workers.CheckGoOn(cut.go_on, [&] { workers.networks().SetApart(cut.off); });

  std::vector<Lines> before;
  for (const int i : waits) before.push_back(Results(workers.OutputOf(i)));
  CHECK(workers.MakesStepsOf(cut.go_on.front(), part, kPatience, 30));
  for (std::size_t i = 0; i < waits.size(); ++i) {
    CAPTURE(waits[i], workers.OutputOf(waits[i]));
    CHECK(Results(workers.OutputOf(waits[i])) == before[i]);
  }
  for (const int host : cut.off) workers.networks().Mend(host);
  for (int i = 0; i < cut.workers; ++i) CHECK(workers.MakesStepsOf(i, cut.workers, kPatience));
  workers.CheckResults(alone, cut.go_on);
}

TEST_CASE(
    "an elastic run of which two workers are cut off from each other alone goes on without one of "
    "both, which joins it again, and no bit changes",
    "[cluster][elastic][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const Lines alone = Alone();
  const Cut cut = GENERATE(Cut{3, {1, 2}, {0, 1}}, Cut{3, {0, 2}, {0, 1}}, Cut{3, {0, 1}, {0, 2}});
  const int waits = 3 - cut.go_on.back();  // worker 0 goes on
  CAPTURE(cut.off);
  const ElasticWorkers workers(cut.workers);
  for (int i = 0; i < cut.workers; ++i) {
    REQUIRE(workers.MakesStepsOf(i, cut.workers, kPatience));
  }

  workers.CheckGoOn(cut.go_on, [&] { workers.networks().KeepApart(cut.off); });

  const Lines before = Results(workers.OutputOf(waits));
  CHECK(workers.MakesStepsOf(0, 2, kPatience, 30));
  CHECK(Results(workers.OutputOf(waits)) == before);
  for (const int host : cut.off) workers.networks().Mend(host);
  for (int i = 0; i < cut.workers; ++i) CHECK(workers.MakesStepsOf(i, cut.workers, kPatience));
  workers.CheckResults(alone, cut.go_on);
}

TEST_CASE("workers that are all cut off from each other wait, and go on when they meet again",
          "[cluster][elastic][cut]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const Lines alone = Alone();
  const ElasticWorkers workers(3);
  for (int i = 0; i < 3; ++i) REQUIRE(workers.MakesStepsOf(i, 3, kPatience));

  for (int i = 0; i < 3; ++i) workers.networks().Cut(i);

  CHECK_FALSE(workers.MakesStepsOf(0, 1, seconds(10)));
  for (int i = 0; i < 3; ++i) {
    const Lines output = workers.OutputOf(i);
    CHECK(std::none_of(output.begin(), output.end(), [](const std::string& line) {
      return line.ends_with(" of 1") || line.ends_with(" of 2");
    }));
  }
  for (int i = 0; i < 3; ++i) workers.networks().Mend(i);
  for (int i = 0; i < 3; ++i) CHECK(workers.MakesStepsOf(i, 3, kPatience));
  // Two that meet before the third one may go on at once, and let it in.
  workers.CheckResults(alone, {});
}

}  // namespace
}  // namespace muster::testing
