#include "strategy/cluster/local_cluster.h"

#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch/executor.h"

#include "common/process/no_more.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/cluster_link.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kPatience{30};

// A key that only this process knows: other users of the host can reach its ports.
net::Identity NewIdentity() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 8; ++i) key += fmt::format("{:08x}", random());
  return {.token = std::move(key), .host_id = "here"};
}

class LocalWorker {
 public:
  static Result<std::unique_ptr<LocalWorker>> Start(const net::Identity& identity,
                                                    std::uint32_t index, std::uint32_t closures) {
    MUSTER_TRY_ASSIGN(
        std::unique_ptr<dispatch::Executor> executor,
        dispatch::Executor::Create(
            {.identity = identity, .closures_at_a_time = closures, .worker_index = index},
            dispatch::ProgramFunctions()));
    MUSTER_TRY_ASSIGN(net::Listener listener, net::ListenTcp("127.0.0.1:0"));
    try {
      return std::unique_ptr<LocalWorker>(
          new LocalWorker(std::move(executor), std::move(listener)));
    } catch (const std::system_error& error) {
      return process::NoMore(error.code().value(), fmt::format("a thread for worker:{}", index));
    }
  }
  ~LocalWorker() {
    executor_->Stop();
    thread_.join();
  }
  const std::string& address() const { return listener_.address; }

 private:
  LocalWorker(std::unique_ptr<dispatch::Executor> executor, net::Listener listener)
      : executor_(std::move(executor)), listener_(std::move(listener)), thread_([this] {
          // An error of the listener ends it; the driver then finds its worker gone.
          (void)executor_->Serve(std::span(&listener_, 1));
        }) {}

  const std::unique_ptr<dispatch::Executor> executor_;
  const net::Listener listener_;
  std::thread thread_;
};

class LocalCluster final : public internal::ClusterLink {
 public:
  LocalCluster(int workers, int closures) {
    for (int i = 0; i < workers; ++i) {
      workers_.push_back(value_of(LocalWorker::Start(identity_, static_cast<std::uint32_t>(i),
                                                     static_cast<std::uint32_t>(closures))));
      tasks_.push_back(fmt::format("worker:{}", i));
      raise_unless_ok(driver_->Connect(tasks_.back(), Incarnation(1), net::LinkKind::kTcp,
                                       workers_.back()->address(),
                                       std::chrono::steady_clock::now() + kPatience));
    }
  }
  // First the driver: what runs is told that nobody waits for it any more.
  ~LocalCluster() override { driver_.reset(); }

  dispatch::Driver& driver() override { return *driver_; }
  std::vector<std::string> workers() const override { return tasks_; }
  // Threads of this process are not lost.
  std::vector<std::pair<std::string, bool>> tasks() const override {
    std::vector<std::pair<std::string, bool>> tasks;
    for (const std::string& task : tasks_) tasks.emplace_back(task, true);
    return tasks;
  }
  Status await_workers(std::optional<TimePoint>) override { return Ok(); }

 private:
  const net::Identity identity_ = NewIdentity();
  std::vector<std::unique_ptr<LocalWorker>> workers_;
  std::vector<std::string> tasks_;
  std::unique_ptr<dispatch::Driver> driver_ =
      std::make_unique<dispatch::Driver>(dispatch::Driver::Options{
          .identity = identity_, .functions = dispatch::ProgramFunctions().hash()});
};

}  // namespace

std::shared_ptr<internal::ClusterLink> local_cluster(int workers, int closures_per_worker) {
  if (workers < 1 || closures_per_worker < 1) {
    raise(
        InvalidArgument("a local cluster of {} workers with {} closures at a time: at least 1 of "
                        "both",
                        workers, closures_per_worker));
  }
  return std::make_shared<LocalCluster>(workers, closures_per_worker);
}

}  // namespace muster
