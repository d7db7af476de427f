#include "strategy/cluster/program.h"

#include "program/runtime.h"

#include "muster/v1/program.pb.h"
#include "strategy/base/torch.h"
#include "strategy/base/version.h"
#include "strategy/cluster/internal/cluster_link.h"

namespace muster {
namespace {

// As ProgramStart.wait_ms says for 0.
constexpr std::chrono::milliseconds kFirstWorker{60'000};

// The driver's side of a job; lives as long as the process.
class ProcessLink final : public internal::ClusterLink {
 public:
  explicit ProcessLink(program::Runtime& runtime) : runtime_(runtime) {}

  dispatch::Driver& driver() override { return runtime_.dispatch(); }
  std::vector<std::string> workers() const override {
    std::vector<std::string> tasks;
    for (const program::Worker& worker : runtime_.workers()) {
      tasks.push_back(fmt::format("worker:{}", worker.index));
    }
    return tasks;
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
  if (runtime == nullptr) {
    return FailedPrecondition(
        "this program has no cluster: muster::init(argc, argv) is the first line of main(), or "
        "give "
        "the coordinator a muster::local_cluster()");
  }
  static const auto link = std::make_shared<ProcessLink>(*runtime);
  return std::shared_ptr<ClusterLink>(link);
}

void init(int argc, char** argv) {
  program::Init(
      argc, argv,
      {.torch_version = std::string(torch_version()),
       .use_threads = [](unsigned threads) { at::set_num_threads(static_cast<int>(threads)); }});
}

std::stop_token stop_requested() {
  const program::Runtime* const runtime = program::Driver();
  return runtime == nullptr ? std::stop_token() : runtime->stop_requested();
}

void report(const std::string& phase) {
  if (program::Runtime* const runtime = program::Driver()) runtime->Report(phase);
}

}  // namespace muster
