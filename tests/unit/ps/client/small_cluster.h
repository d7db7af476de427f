// Parameter servers with fake shards in this process, and the plan that names them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/net/host_id.h"
#include "muster/v1/common.pb.h"
#include "ps/client/ps_client.h"
#include "ps/server/ps_server.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/client/fake_shards.h"

namespace muster::ps::testing {

inline constexpr const char* kToken = "a token of the tests";
inline constexpr JobNumber kJob(7);
inline constexpr const char* kJobId = "job-7";

// What proves that job's clients.
inline std::string ModelKey(const std::string& job_id = kJobId) {
  return net::JobKey(kToken, job_id, Epoch());
}

// Adds a variable divided evenly over `servers` servers.
inline void AddVariable(v1::JobPlan& plan, const std::string& name, std::vector<std::int64_t> shape,
                        std::uint32_t servers, bool embedding = false) {
  v1::VariableLayout& layout = *plan.add_variables();
  layout.set_id(static_cast<std::uint32_t>(plan.variables_size() - 1));
  layout.set_name(name);
  layout.set_embedding(embedding);
  for (const std::int64_t dimension : shape) layout.add_shape(dimension);
  const std::int64_t rows = shape.empty() ? 1 : shape[0];
  std::int64_t offset = 0;
  for (std::uint32_t s = 0; s < servers; ++s) {
    const std::int64_t n = rows / servers + (s < rows % servers ? 1 : 0);
    v1::ShardPlacement& shard = *layout.add_shards();
    shard.set_ps_index(s);
    shard.set_row_offset(offset);
    shard.set_rows(n);
    offset += n;
  }
}

inline const std::vector<std::uint32_t> kW = {0};

inline v1::JobPlan OneVariable(std::int64_t rows = 1000) {
  v1::JobPlan plan;
  AddVariable(plan, "w", {rows}, 1);
  return plan;
}

inline TimePoint Soon() { return std::chrono::steady_clock::now() + Millis(5'000); }

inline bool Eventually(const std::function<bool()>& condition) {
  for (const TimePoint end = Soon(); std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

class SmallCluster {
 public:
  // `plan` has the variables; this adds ids and addresses, and publishes view 1.
  explicit SmallCluster(v1::JobPlan plan, std::uint32_t servers = 2, PsServer::Options base = {})
      : plan_(std::move(plan)), host_id_(*net::HostId()) {
    plan_.set_job_id(kJobId);
    plan_.set_job_number(kJob.value());
    plan_.set_epoch(1);
    plan_.set_view(1);
    base.unix_directory = directory_.path();
    base.token = kToken;
    base.host_id = host_id_;
    base.on_warning = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      warnings_.push_back(line);
    };
    base_ = base;
    for (std::uint32_t i = 0; i < servers; ++i) {
      servers_.push_back(std::move(PsServer::Start(base)).value());
      v1::PsAddress& address = *plan_.add_ps();
      address.set_index(i);
      *address.mutable_data() = servers_.back()->endpoint();
    }
    Publish(1);
  }

  void Publish(std::uint64_t view) {
    plan_.set_view(view);
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      servers_[i]->Publish(kJob, std::make_shared<FakeShards>(plan_, i));
    }
  }

  // A new server where server `i` was, with new shards of the same view.
  void Restart(std::uint32_t i) {
    PsServer::Options options = base_;
    options.tcp_address = servers_[i]->endpoint().tcp_address();
    servers_[i].reset();
    servers_[i] = std::move(PsServer::Start(options)).value();
    servers_[i]->Publish(kJob, std::make_shared<FakeShards>(plan_, i));
  }

  Result<std::unique_ptr<PsClient>> Connect(LinkMode link) const {
    return PsClient::Connect(plan_, ClientOptions(link));
  }
  PsClient::Options ClientOptions(LinkMode link) const {
    return {.key = ModelKey(), .link = link, .host_id = host_id_, .timeout = Millis(20'000)};
  }

  const v1::JobPlan& plan() const { return plan_; }
  v1::JobPlan& plan() { return plan_; }
  PsServer& server(std::size_t i) { return *servers_[i]; }
  const std::string& host_id() const { return host_id_; }
  const std::string& directory() const { return directory_.path(); }
  std::vector<std::string> warnings() const {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  muster::testing::TempFolder directory_;
  v1::JobPlan plan_;
  std::string host_id_;
  PsServer::Options base_;
  mutable std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::unique_ptr<PsServer>> servers_;
};

// Shards that a test can hold up, or have fail.
class HeldShards : public FakeShards {
 public:
  using FakeShards::FakeShards;

  Result<ApplyOutcome> ApplyDense(std::uint32_t shard, PushId id,
                                  std::span<const float> gradient) override {
    began.set_value();
    release.get_future().wait();
    return FakeShards::ApplyDense(shard, id, gradient);
  }
  Result<std::uint64_t> ReadDense(std::uint32_t shard, std::span<float> into) const override {
    if (failing && shard == 0) return Unavailable("this shard cannot be read now");
    return FakeShards::ReadDense(shard, into);
  }

  std::promise<void> began;
  std::promise<void> release;
  std::atomic<bool> failing{false};
};

}  // namespace muster::ps::testing
