// Workers that train in step, each in a network of its own, over TCP: one of them has its cable
// pulled, or two do not reach each other. Skipped, with the reason, where this machine has no such
// networks.
#include <array>
#include <chrono>
#include <memory>
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

const std::string kProgram = MUSTER_TEST_PROGRAMS "/multi_worker_phases";
constexpr int kWorkers = 3;
// A member that is cut off is noticed in 4 s; the rest is the machine's, which may be busy.
constexpr seconds kNoticed{20};

std::string TaskOf(int worker) { return fmt::format("worker:{}", worker); }

// Workers that do one thing of a step again and again.
class Workers {
 public:
  explicit Workers(const std::string& phase) : networks_(kWorkers), phase_(phase) {
    for (int i = 0; i < kWorkers; ++i) {
      auto child =
          process::Child::Start({.argv = {"nsenter", "-t", std::to_string(networks_.pid(i)), "-n",
                                          kProgram, folder_.path(), "60000", phase},
                                 .environment = {{"TF_CONFIG", Networks::TfConfig(i, kWorkers)},
                                                 {"OMP_NUM_THREADS", "1"}},
                                 .on_line = [this, i](auto, const std::string& line) {
                                   const MutexLock lock(mutex_);
                                   lines_[static_cast<std::size_t>(i)].push_back(line);
                                 }});
      REQUIRE(child.ok());
      workers_.push_back(*std::move(child));
    }
  }
  ~Workers() { workers_.clear(); }

  // All of them are in the midst of it.
  bool Begun() const {
    return Eventually(seconds(100), [&] {
      for (int i = 0; i < kWorkers; ++i) {
        const MutexLock lock(mutex_);
        const auto& lines = lines_[static_cast<std::size_t>(i)];
        if (lines.empty() || lines.back() != "within " + phase_) return false;
      }
      return true;
    });
  }
  void Cut(int worker) const { networks_.Cut(worker); }
  void KeepApart(const std::vector<int>& workers) const { networks_.KeepApart(workers); }
  // Its last line, when it has ended; empty: it has not, within `limit`.
  std::string EndOf(int worker, seconds limit) const {
    if (!workers_[static_cast<std::size_t>(worker)]->Wait(limit).ok()) return "";
    const MutexLock lock(mutex_);
    return lines_[static_cast<std::size_t>(worker)].back();
  }

 private:
  const TempFolder folder_;
  const Networks networks_;
  const std::string phase_;
  mutable Mutex mutex_;
  std::array<std::vector<std::string>, kWorkers> lines_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<process::Child>> workers_;
};

TEST_CASE("a worker that is cut off in the midst of anything ends with an error, and so do all",
          "[cluster][cut][MWM-15]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const std::string phase = GENERATE("compute", "reduce", "started", "gather", "broadcast", "input",
                                     "metric", "checkpoint");
  const int victim = GENERATE(0, 1);
  Workers workers(phase);
  REQUIRE(workers.Begun());
  const auto cut = std::chrono::steady_clock::now();

  workers.Cut(victim);

  for (int i = 0; i < kWorkers; ++i) {
    const std::string error = workers.EndOf(i, seconds(100));
    CAPTURE(phase, victim, i, error);
    CHECK(std::chrono::steady_clock::now() - cut < kNoticed);
    CHECK(error.find("error UNAVAILABLE") == 0);
    // Who is cut off sees all others go.
    CHECK(error.find(i == victim ? "was lost" : TaskOf(victim) + " was lost") != std::string::npos);
  }
}

struct Pair {
  std::string phase;
  int a;
  int b;
};

TEST_CASE("two workers that do not reach each other but the third one are an error of all three",
          "[cluster][cut][MWM-15]") {
  if (const std::string why = Networks::WhyNot(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const Pair pair = GENERATE(Pair{"reduce", 0, 1}, Pair{"started", 1, 2}, Pair{"broadcast", 0, 2},
                             Pair{"input", 1, 2}, Pair{"checkpoint", 0, 1});
  Workers workers(pair.phase);
  REQUIRE(workers.Begun());
  const auto cut = std::chrono::steady_clock::now();

  workers.KeepApart({pair.a, pair.b});

  for (int i = 0; i < kWorkers; ++i) {
    const std::string error = workers.EndOf(i, seconds(100));
    CAPTURE(pair.phase, pair.a, pair.b, i, error);
    CHECK(std::chrono::steady_clock::now() - cut < kNoticed);
    CHECK(error.find("error UNAVAILABLE") == 0);
    // Whichever of both says first that it has lost the other one.
    CHECK((error.find(TaskOf(pair.a) + " was lost") != std::string::npos ||
           error.find(TaskOf(pair.b) + " was lost") != std::string::npos));
  }
}

}  // namespace
}  // namespace muster::testing
