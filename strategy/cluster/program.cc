#include "strategy/cluster/program.h"

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <set>

#include "program/runtime.h"

#include "common/base/mutex.h"
#include "muster/v1/program.pb.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/torch.h"
#include "strategy/base/version.h"
#include "strategy/cluster/internal/cluster_link.h"

namespace muster {
namespace {

// Between two looks for checkpoints.
constexpr std::chrono::milliseconds kLookAgain{200};

// As ProgramStart.wait_ms says for 0.
constexpr std::chrono::milliseconds kFirstWorker{60'000};

// The driver's side of a job; lives as long as the process.
class ProcessLink final : public internal::ClusterLink {
 public:
  explicit ProcessLink(program::Runtime& runtime) : runtime_(runtime) {}

  dispatch::Driver& driver() override { return runtime_.dispatch(); }
  std::vector<std::string> workers() const override {
    std::vector<std::string> workers;
    // One that is lost is no member any more, and who asks for its value is to hear of it.
    for (const program::Task& task : runtime_.tasks()) {
      if (task.name.starts_with("worker:")) workers.push_back(task.name);
    }
    return workers;
  }
  std::vector<std::pair<std::string, bool>> tasks() const override {
    std::vector<std::pair<std::string, bool>> tasks;
    for (const program::Task& task : runtime_.tasks()) tasks.emplace_back(task.name, task.up);
    return tasks;
  }
  Status await_workers(std::optional<TimePoint> deadline) override {
    const std::uint32_t patience = program::Start().wait_ms();
    return runtime_.AwaitWorkers(
        1, deadline.value_or(std::chrono::steady_clock::now() +
                             (patience == 0 ? kFirstWorker : std::chrono::milliseconds(patience))));
  }

 private:
  program::Runtime& runtime_;
};

}  // namespace

Result<std::shared_ptr<internal::ClusterLink>> internal::process_link() {
  program::Runtime* const runtime = program::Driver();
  if (program::OwnEvaluator() != nullptr) {
    return FailedPrecondition(
        "the evaluator takes no part in training and has no coordinator: ask is_evaluator() before "
        "one is made");
  }
  if (runtime == nullptr) {
    return FailedPrecondition(
        "this program has no cluster: muster::init(argc, argv) is the first line of main(), or "
        "give "
        "the coordinator a muster::local_cluster()");
  }
  static const auto link = std::make_shared<ProcessLink>(*runtime);
  return std::shared_ptr<ClusterLink>(link);
}

void internal::init(int argc, char** argv, std::string_view built_with) {
  program::Init(
      argc, argv,
      {.version = std::string(built_with),
       .torch_version = std::string(torch_version()),
       .use_threads = [](unsigned threads) { at::set_num_threads(static_cast<int>(threads)); }});
}

std::stop_token stop_requested() {
  if (const program::Evaluator* evaluator = program::OwnEvaluator()) {
    return evaluator->stop_requested();
  }
  const program::Runtime* const runtime = program::Driver();
  return runtime == nullptr ? std::stop_token() : runtime->stop_requested();
}

bool is_evaluator() { return program::OwnEvaluator() != nullptr; }

void report_evaluation(const std::string& checkpoint, const Evaluation& values) {
  if (!is_evaluator()) {
    raise(
        FailedPrecondition("an evaluation outside of the evaluator: `muster submit --evaluator` "
                           "starts one, where is_evaluator() is true"));
  }
  program::OwnEvaluator()->Evaluated(checkpoint, values);
}

// After each evaluation it lists anew: those that it has seen may be gone by then. The last look is
// made after the stop, so what was saved before that is evaluated, too.
void evaluate_checkpoints(
    const std::function<std::vector<std::string>()>& list,
    const std::function<Evaluation(const std::string& checkpoint)>& evaluate) {
  if (!is_evaluator()) report_evaluation("", {});  // throws
  const std::stop_token stop = stop_requested();
  std::set<std::string> done;
  Mutex mutex;
  std::condition_variable_any stopped;
  for (bool last = false;; last = stop.stop_requested()) {
    bool any = false;
    for (const std::string& checkpoint : list()) {
      if (!done.insert(checkpoint).second) continue;
      any = true;
      std::optional<Evaluation> evaluation;
      try {
        evaluation = evaluate(checkpoint);
      } catch (...) {
        // Removed meanwhile, it is left out.
        if (std::ranges::count(list(), checkpoint) > 0) throw;
      }
      if (evaluation) report_evaluation(checkpoint, *evaluation);
      // Older ones may be gone by now, newer ones there.
      break;
    }
    if (any) continue;
    // What was saved before the stop has been seen by a look after it.
    if (last) return;
    const MutexLock lock(mutex);
    stopped.wait_for(mutex, stop, kLookAgain, [] { return false; });
  }
}

void report(const std::string& phase) {
  if (program::Runtime* const runtime = program::Driver()) runtime->Report(phase);
}

}  // namespace muster
