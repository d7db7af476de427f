// The real muster-executor over a socket pair, against real parameter servers in this process.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "dispatch/driver.h"
#include "program/model_functions.h"
#include <unistd.h>

#include "common/base/mutex.h"
#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "common/process/child.h"
#include "common/process/message_pipe.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/executor.pb.h"
#include "ps/apply_pool.h"
#include "ps/client/ps_client.h"
#include "ps/job_shards.h"
#include "ps/server/ps_server.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::executor {
namespace {

constexpr const char* kToken = "an-executor-test-token";
const std::string kKey = net::JobKey(kToken, "job-1", Epoch());
constexpr std::uint64_t kJobNumber = 7;
constexpr int kExamples = 10;
constexpr Millis kPatience{60'000};

// An IDX file of bytes, [kExamples, width]: the k-th byte is start + 3k.
void WriteIdx(const std::string& path, int width, int start) {
  std::string bytes{0, 0, 0x08, static_cast<char>(width == 0 ? 1 : 2), 0, 0, 0, kExamples};
  if (width != 0) bytes += std::string{0, 0, 0, static_cast<char>(width)};
  for (int k = 0; k < kExamples * std::max(1, width); ++k) {
    bytes.push_back(static_cast<char>((start + 3 * k) % 100));
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

// Two parameter servers, one executor, and the daemon's end of its pipe.
class Cluster {
 public:
  explicit Cluster(std::string link = "auto") : link_(std::move(link)) {
    WriteIdx(folder_ / "x", 4, 1);
    WriteIdx(folder_ / "label", 0, 0);
    for (int i = 0; i < 2; ++i) {
      ps::PsServer::Options options;
      options.unix_directory = folder_ / ("ps" + std::to_string(i));
      std::filesystem::create_directory(options.unix_directory);
      options.token = kToken;
      options.host_id = *net::HostId();
      servers_.push_back(*ps::PsServer::Start(std::move(options)));
    }
    spec_.set_batch_size(3);
    (*spec_.mutable_data()->mutable_idx()->mutable_columns())["x"].add_files(folder_ / "x");
    (*spec_.mutable_data()->mutable_idx()->mutable_columns())["label"].add_files(folder_ / "label");
    *spec_.mutable_evaluation()->mutable_data() = spec_.data();
    spec_.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
    spec_.mutable_optimizer()->set_learning_rate(1);
    StartExecutorProcess();
  }

  void StartExecutorProcess() {
    const auto ends = *process::MessagePipe::MakePair();
    pipe_ = std::make_unique<process::MessagePipe>(ends.first);
    process::Child::Options options;
    options.argv = {MUSTER_EXECUTOR};
    options.descriptors = {{ends.second, 3}};
    child_ = *process::Child::Start(std::move(options));
    close(ends.second);
  }

  // No parameter servers: executors make the steps of the sum's model together.
  void UseSumModelTogether() {
    UseSumModel();
    plan_.mutable_variables(0)->clear_shards();
    spec_.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
    plan_.set_job_id("job-1");
    plan_.set_view(1);
    plan_.set_epoch(1);
    *plan_.mutable_optimizer() = spec_.optimizer();
  }

  // A variable split in two halves, one on each server.
  void AddVariable(const std::string& name, const std::vector<std::int64_t>& shape) {
    v1::VariableLayout& layout = *plan_.add_variables();
    layout.set_id(static_cast<std::uint32_t>(plan_.variables_size() - 1));
    layout.set_name(name);
    layout.set_dtype(v1::DTYPE_FLOAT32);
    for (const std::int64_t size : shape) layout.add_shape(size);
    layout.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
    const std::int64_t rows = shape.empty() ? 1 : shape[0];
    const std::int64_t half = (rows + 1) / 2;
    for (std::uint32_t i = 0; i < 2 && half * i < rows; ++i) {
      v1::ShardPlacement& shard = *layout.add_shards();
      shard.set_ps_index(i);
      shard.set_row_offset(half * i);
      shard.set_rows(std::min(half, rows - half * i));
    }
  }

  void Publish() {
    plan_.set_job_id("job-1");
    plan_.set_job_number(kJobNumber);
    plan_.set_view(1);
    plan_.set_epoch(1);
    *plan_.mutable_optimizer() = spec_.optimizer();
    for (std::uint32_t i = 0; i < 2; ++i) {
      v1::PsAddress& address = *plan_.add_ps();
      address.set_index(i);
      *address.mutable_data() = servers_[i]->endpoint();
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto shards = ps::JobShards::Create(plan_, i, "", pool_);
      REQUIRE(shards.ok());
      servers_[i]->Publish(JobNumber(kJobNumber), *shards);
    }
  }

  v1::FromExecutor Ask(const v1::ToExecutor& message) {
    REQUIRE(pipe_->Send(message).ok());
    return Answer();
  }
  // Pulses come between.
  v1::FromExecutor Answer() {
    v1::FromExecutor answer;
    do {
      const Status status = pipe_->Receive(answer, kPatience);
      INFO(ToString(status));
      REQUIRE(status.ok());
    } while (answer.has_pulse());
    return answer;
  }

  v1::ExecutorReady Start(const std::string& archive = "", bool assign = false) {
    v1::ToExecutor message;
    v1::ExecutorStart& start = *message.mutable_start();
    *start.mutable_start()->mutable_plan() = plan_;
    *start.mutable_start()->mutable_spec() = spec_;
    start.mutable_start()->set_assign_initial_values(assign);
    start.set_archive_path(archive);
    start.set_cache_directory(folder_ / "cache");
    start.set_link(link_);
    start.set_host_id(*net::HostId());
    start.set_threads(1);
    v1::ProgramStart& serving = *start.mutable_start()->mutable_program();
    serving.set_key(kKey);
    serving.set_host_id(*net::HostId());
    serving.set_link(link_);
    serving.set_socket_directory(folder_ / "");
    const v1::FromExecutor answer = Ask(message);
    REQUIRE(answer.has_ready());
    if (answer.ready().status().code() == 0) Connect(answer.ready().endpoint());
    return answer.ready();
  }

  // Its driver.
  void Connect(const v1::DataEndpoint& endpoint) {
    driver_.emplace(
        dispatch::Driver::Options{.dispatch = {.epoch = Epoch(1)},
                                  .identity = {.token = kKey, .host_id = *net::HostId()},
                                  .functions = program::ModelFunctions().hash(),
                                  .watcher = &returned_});
    const bool local = !endpoint.unix_path().empty();
    const Status connected = driver_->Connect("worker:0", Incarnation(1),
                                              local ? net::LinkKind::kUnix : net::LinkKind::kTcp,
                                              local ? endpoint.unix_path() : endpoint.tcp_address(),
                                              std::chrono::steady_clock::now() + kPatience);
    INFO(ToString(connected));
    REQUIRE(connected.ok());
  }
  dispatch::RemoteValue Schedule(v1::ClosureKind kind, std::uint64_t id) {
    v1::ClosureAssignment assignment;
    assignment.mutable_closure()->set_kind(kind);
    assignment.mutable_closure()->set_id(id);
    const std::string bytes = assignment.SerializeAsString();
    return *driver_->Schedule(program::ModelFunction(kind), std::as_bytes(std::span(bytes)));
  }
  // Its value, its own error, or what the executor has handed it back with.
  Result<v1::ClosureResult> Fetch(const dispatch::RemoteValue& value) {
    for (;;) {
      const auto bytes = value.Fetch(std::chrono::steady_clock::now() + Millis(20));
      if (bytes.ok()) {
        v1::ClosureResult result;
        REQUIRE(result.ParseFromArray(bytes->data(), static_cast<int>(bytes->size())));
        return result;
      }
      if (bytes.status().code() != StatusCode::kDeadlineExceeded) {
        (void)driver_->Join();  // it is clean again
        return bytes.status();
      }
      if (const auto returned = returned_.Take()) return *returned;
    }
  }
  Result<v1::ClosureResult> Run(v1::ClosureKind kind, std::uint64_t id) {
    return Fetch(Schedule(kind, id));
  }

  std::vector<float> Values(std::uint32_t variable) {
    auto client = *ps::PsClient::Connect(plan_, {.key = kKey, .host_id = *net::HostId()});
    const std::vector<std::uint32_t> ids{variable};
    REQUIRE(client->PullDense(ids).ok());
    const auto value = client->Value(variable);
    return {value.begin(), value.end()};
  }

  // w gets the negative sum of all samples: exactly once each, or the numbers differ.
  void UseSumModel() {
    AddVariable("w", {4});
    for (const std::int64_t size : {4}) {
      (*spec_.mutable_model()->mutable_parameters())["w"].add_shape(size);
    }
    spec_.mutable_model()->set_forward(
        "def forward(self, x):\n    return self.w * x.to(torch.float32)\n");
    spec_.mutable_loss()->set_function("def loss(output, x):\n    return output.sum()\n");
  }

  v1::JobSpec& spec() { return spec_; }
  process::MessagePipe& pipe() { return *pipe_; }
  process::Child& child() { return *child_; }
  ps::PsServer& server(int i) { return *servers_[static_cast<std::size_t>(i)]; }
  std::string file(const std::string& name) const { return folder_ / name; }
  void ClosePipe() {
    driver_.reset();
    pipe_.reset();
  }

 private:
  testing::TempFolder folder_;
  const std::string link_;
  ps::ApplyPool pool_{0};
  std::vector<std::unique_ptr<ps::PsServer>> servers_;
  v1::JobSpec spec_;
  v1::JobPlan plan_;
  std::unique_ptr<process::MessagePipe> pipe_;
  std::unique_ptr<process::Child> child_;
  // Why closures were handed back.
  struct Returned : dispatch::DriverWatcher {
    void OnRequeued(const std::string&, std::span<const ClosureId>) override {}
    void OnGivenAgain(const std::string&, ClosureId) override {}
    void OnReturned(const std::string&, ClosureId, const Status& why) override {
      const MutexLock lock(mutex);
      last = why;
    }
    std::optional<Status> Take() {
      const MutexLock lock(mutex);
      return std::exchange(last, std::nullopt);
    }
    Mutex mutex;
    std::optional<Status> last;
  };
  Returned returned_;
  std::optional<dispatch::Driver> driver_;
};

std::vector<float> NegativeSums(int epochs) {
  std::vector<float> sums(4, 0);
  for (int k = 0; k < kExamples * 4; ++k) {
    sums[static_cast<std::size_t>(k % 4)] -= static_cast<float>(epochs * ((1 + 3 * k) % 100));
  }
  return sums;
}

TEST_CASE("a group forms while another command waits for it", "[executor][unit]") {
  Cluster cluster;
  cluster.UseSumModelTogether();
  const v1::ExecutorReady ready = cluster.Start();
  REQUIRE(ready.status().message() == "");
  std::filesystem::create_directory(cluster.file("checkpoint"));
  v1::ToExecutor save;
  save.mutable_save()->set_job_id("job-1");
  save.mutable_save()->set_view(1);
  save.mutable_save()->set_directory(cluster.file("checkpoint"));
  v1::ToExecutor join;
  join.mutable_join()->set_job_id("job-1");
  join.mutable_join()->set_view(1);
  join.mutable_join()->set_generation(1);
  v1::GroupMember& member = *join.mutable_join()->add_members();
  member.mutable_task()->set_type("worker");
  member.set_address(ready.group_address());

  REQUIRE(cluster.pipe().Send(save).ok());
  REQUIRE(cluster.pipe().Send(join).ok());

  const v1::FromExecutor first = cluster.Answer();
  REQUIRE(first.has_joined());
  CHECK(first.joined().status().message() == "");
  const v1::FromExecutor second = cluster.Answer();
  REQUIRE(second.has_saved());
  CHECK(second.saved().status().message() == "");
}

TEST_CASE("an executor trains every sample exactly once, also when closures run again",
          "[executor][unit]") {
  const std::string link = GENERATE("local", "tcp");
  Cluster cluster(link);
  cluster.UseSumModel();
  cluster.Publish();
  const v1::ExecutorReady ready = cluster.Start();
  REQUIRE(ready.status().message() == "");
  CHECK(!ready.torch_version().empty());
  CHECK(!ready.blas().empty());

  // Two epochs of four batches.
  std::uint64_t examples = 0, local = 0, tcp = 0;
  std::vector<dispatch::RemoteValue> values;
  for (std::uint64_t id = 1; id <= 8; ++id) {
    values.push_back(cluster.Schedule(v1::CLOSURE_KIND_TRAIN, id));
  }
  for (const dispatch::RemoteValue& value : values) {
    const auto result = cluster.Fetch(value);
    REQUIRE(result.ok());
    CHECK(result->compute_us() > 0);
    examples += result->metrics().examples();
    local += result->local_bytes();
    tcp += result->tcp_bytes();
  }
  CHECK(cluster.Run(v1::CLOSURE_KIND_TRAIN, 5).ok());

  CHECK(examples == 2 * kExamples);
  CHECK(cluster.Values(0) == NegativeSums(2));
  CHECK((link == "local" ? local : tcp) >= 8 * 2 * 4 * sizeof(float));
  CHECK((link == "local" ? tcp : local) == 0);

  // Evaluation scores every example once and changes nothing.
  std::uint64_t evaluated = 0;
  for (std::uint64_t batch = 1; batch <= 4; ++batch) {
    const auto result = cluster.Run(v1::CLOSURE_KIND_EVALUATE, batch);
    REQUIRE(result.ok());
    evaluated += result->metrics().examples();
  }
  CHECK(evaluated == kExamples);
  CHECK(cluster.Run(v1::CLOSURE_KIND_EVALUATE, 5).status().code() == StatusCode::kOutOfRange);
  CHECK(cluster.Values(0) == NegativeSums(2));
  CHECK(cluster.Run(v1::CLOSURE_KIND_TRAIN, 9).ok());

  cluster.ClosePipe();
  const auto exit = cluster.child().Wait(kPatience);
  REQUIRE(exit.ok());
  CHECK(exit->ToString() == "exit code 0");
}

TEST_CASE("a lost parameter server makes a closure UNAVAILABLE and names the server",
          "[executor][unit]") {
  Cluster cluster;
  cluster.UseSumModel();
  cluster.Publish();
  REQUIRE(cluster.Start().status().code() == 0);

  cluster.server(1).Stop();
  const Status status = cluster.Run(v1::CLOSURE_KIND_TRAIN, 1).status();

  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(Message(status).find("ps:1") != std::string::npos);
}

TEST_CASE("the user's error is INVALID_ARGUMENT, and the next closure runs", "[executor][unit]") {
  Cluster cluster;
  cluster.UseSumModel();
  cluster.spec().mutable_model()->set_forward(
      "def forward(self, x):\n    if x[0][0] == 1:\n        raise ValueError('one')\n"
      "    return self.w * x.to(torch.float32)\n");
  cluster.spec().mutable_data()->set_shuffle(false);
  cluster.Publish();
  REQUIRE(cluster.Start().status().code() == 0);

  const Status bad = cluster.Run(v1::CLOSURE_KIND_TRAIN, 1).status();
  const auto good = cluster.Run(v1::CLOSURE_KIND_TRAIN, 2);

  CHECK(bad.code() == StatusCode::kInvalidArgument);
  CHECK(Message(bad).find("step 1: forward, line 3, column 9: ValueError: one") !=
        std::string::npos);
  CHECK(good.ok());
}

TEST_CASE("an archive's values become the variables' initial ones", "[executor][unit]") {
  Cluster cluster;
  cluster.AddVariable("bn.bias", {2});
  cluster.AddVariable("bn.weight", {2});
  cluster.AddVariable("linear.bias", {2});
  cluster.AddVariable("linear.weight", {2, 3});
  WriteIdx(cluster.file("x"), 3, 1);
  cluster.spec().mutable_model()->set_archive("normed.pt");
  cluster.spec().mutable_model()->set_buffers(v1::BUFFER_POLICY_WORKER_LOCAL);
  cluster.spec().mutable_loss()->set_function("def loss(output, x):\n    return output.mean()\n");
  cluster.Publish();
  const std::string archive = MUSTER_FIXTURES "/torchscript/normed-1.13.pt";

  const v1::ExecutorReady ready = cluster.Start(archive, /*assign=*/true);

  CHECK(ready.status().message() == "");
  const std::vector<float> bias = cluster.Values(0);
  CHECK(bias[0] == Approx(std::sin(1.0)));
  CHECK(cluster.Values(3)[5] == Approx(std::sin(6.0)));
  // The archive wants float32; the data are bytes.
  CHECK(cluster.Run(v1::CLOSURE_KIND_TRAIN, 1).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("check and probe need no start, a failed start is said, SIGTERM ends quietly",
          "[executor][unit]") {
  Cluster cluster;
  cluster.UseSumModel();
  cluster.Publish();
  v1::ToExecutor check;
  *check.mutable_check()->mutable_spec() = cluster.spec();
  check.set_cache_directory(cluster.file("cache"));

  const v1::CheckReport good = cluster.Ask(check).check().report();
  CHECK(good.problems().empty());
  REQUIRE(good.parameters_size() == 1);
  CHECK(good.parameters(0).name() == "w");
  check.mutable_check()->mutable_spec()->mutable_loss()->set_function(
      "def loss(output, y):\n    return output.sum()\n");
  CHECK(cluster.Ask(check).check().report().problems_size() == 1);

  v1::ToExecutor probe;
  *probe.mutable_probe()->mutable_spec() = cluster.spec();
  probe.set_cache_directory(cluster.file("cache"));
  CHECK(cluster.Ask(probe).probe().report().training_examples() == kExamples);
  auto& columns =
      *probe.mutable_probe()->mutable_spec()->mutable_data()->mutable_idx()->mutable_columns();
  *columns["x"].mutable_files(0) = cluster.file("nowhere");
  const v1::ProbeReport missing = cluster.Ask(probe).probe().report();
  REQUIRE(missing.problems_size() == 1);
  CHECK(missing.problems(0).find("nowhere") != std::string::npos);
  CHECK(missing.evaluation_examples() == kExamples);

  cluster.spec().mutable_model()->set_forward("def forward(self, x):\n    return x +\n");
  const v1::ExecutorReady failed = cluster.Start();
  CHECK(failed.status().code() == static_cast<int>(StatusCode::kInvalidArgument));
  CHECK(failed.status().message().find("forward, line 2, column 15") == 0);

  REQUIRE(cluster.child().Signal(SIGTERM).ok());
  const auto exit = cluster.child().Wait(kPatience);
  REQUIRE(exit.ok());
  CHECK(exit->ToString() == "exit code 0");
}

TEST_CASE("an executor that does not know what its daemon wants ends by an error",
          "[executor][unit]") {
  Cluster cluster;
  v1::ToExecutor nothing;
  nothing.set_threads(1);

  REQUIRE(cluster.pipe().Send(nothing).ok());

  const auto exit = cluster.child().Wait(kPatience);
  REQUIRE(exit.ok());
  CHECK(exit->ToString() == "exit code 1");
}

}  // namespace
}  // namespace muster::executor
