// The daemon's services over real gRPC on loopback, with a daemon that this test plays.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include "cli/cluster_finder.h"
#include "cli/job_api.h"
#include "common/storage/sha256.h"
#include "coordinator/backup.h"
#include "muster/v1/cluster.grpc.pb.h"
#include "muster/v1/jobs.grpc.pb.h"
#include "services/common/grpc_channel.h"
#include "services/coordinator/coordinator_node.h"
#include "services/coordinator/front.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/coordinator/abc.h"

namespace muster::coordinator {
namespace {

struct Fixture {
  explicit Fixture(Millis stall_limit = Millis(60'000)) {
    const std::string path = dir / "token";
    std::ofstream(path) << "0123456789abcdef0123\n";
    chmod(path.c_str(), 0600);
    token = std::make_unique<services::Token>(*services::Token::Read(path));
    CoordinatorNode::Options options;
    options.server.listen = {.host = "127.0.0.1", .port = 0};
    options.coordinator.state_directory = dir / "state";
    options.trainer = "/bin/false";
    options.stall_limit = stall_limit;
    options.coordinator.version = "0.4.0";
    auto started = CoordinatorNode::Start(options, *token);
    REQUIRE(started.ok());
    node = std::move(*started);
    channel = services::MakeChannel(node->endpoint().ToString());
  }
  void Prepare(grpc::ClientContext& context) const {
    services::Authorize(context, *token);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }

  muster::testing::TempFolder dir;
  std::unique_ptr<services::Token> token;
  std::unique_ptr<CoordinatorNode> node;
  std::shared_ptr<grpc::Channel> channel;
};

v1::DaemonMessage Register() {
  v1::DaemonMessage message;
  v1::Register& info = *message.mutable_register_();
  info.mutable_task()->set_type("worker");
  info.set_boot_id("boot-1");
  info.set_pid(42);
  return message;
}

v1::JobSpec SmallJob() {
  v1::JobSpec spec;
  spec.set_name("job");
  (*spec.mutable_model()->mutable_parameters())["w"].add_shape(2);
  spec.mutable_model()->set_forward("def forward(self, x):\n    return x * self.w\n");
  (*spec.mutable_data()->mutable_idx()->mutable_columns())["x"].add_files("/data/x");
  spec.mutable_loss()->set_function("def loss(output, x):\n    return output.mean()\n");
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_learning_rate(1);
  spec.set_batch_size(1);
  spec.set_steps(1);
  return spec;
}

TEST_CASE("Every service refuses a call without the token", "[services][unit]") {
  Fixture f;
  const auto jobs = v1::JobService::NewStub(f.channel);
  const auto cluster = v1::ClusterService::NewStub(f.channel);
  grpc::ClientContext contexts[4];

  v1::ClusterStatus status;
  CHECK(jobs->GetStatus(&contexts[0], {}, &status).error_code() ==
        grpc::StatusCode::UNAUTHENTICATED);
  auto stream = cluster->Attach(&contexts[1]);
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  auto fetch = cluster->FetchFile(&contexts[2], {});
  CHECK(fetch->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
  v1::UploadFileReply uploaded;
  auto upload = jobs->UploadFile(&contexts[3], &uploaded);
  upload->WritesDone();
  CHECK(upload->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
}

TEST_CASE("A daemon is welcomed, acknowledged, listed, and missed when it is gone",
          "[services][unit]") {
  Fixture f;
  const auto jobs = v1::JobService::NewStub(f.channel);
  const auto cluster = v1::ClusterService::NewStub(f.channel);
  const auto state = [&] {
    grpc::ClientContext context;
    f.Prepare(context);
    v1::ClusterStatus status;
    REQUIRE(jobs->GetStatus(&context, {}, &status).ok());
    REQUIRE(status.tasks_size() == 1);
    return status.tasks(0);
  };
  auto context = std::make_unique<grpc::ClientContext>();
  services::Authorize(*context, *f.token);
  auto stream = cluster->Attach(context.get());
  REQUIRE(stream->Write(Register()));
  v1::CoordinatorMessage answer;
  REQUIRE(stream->Read(&answer));
  CHECK(answer.welcome().epoch() == 1);

  v1::DaemonMessage beat;
  beat.mutable_heartbeat()->set_sequence(7);
  REQUIRE(stream->Write(beat));
  REQUIRE(stream->Read(&answer));
  CHECK(answer.ack().sequence() == 7);
  CHECK(state().state() == "up");
  CHECK(state().pid() == 42);

  context->TryCancel();
  (void)stream->Finish();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (state().state() == "up" && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  CHECK(state().state() == "lost");
}

TEST_CASE("A stream that does not begin with Register is refused", "[services][unit]") {
  Fixture f;
  const auto cluster = v1::ClusterService::NewStub(f.channel);
  grpc::ClientContext context;
  f.Prepare(context);
  auto stream = cluster->Attach(&context);
  v1::DaemonMessage beat;
  beat.mutable_heartbeat();
  REQUIRE(stream->Write(beat));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_CASE("An upload that stands still is ended, and leaves nothing", "[services][unit]") {
  Fixture f(Millis(300));
  const auto jobs = v1::JobService::NewStub(f.channel);
  grpc::ClientContext context;
  f.Prepare(context);
  v1::UploadFileReply reply;
  auto writer = jobs->UploadFile(&context, &reply);
  v1::UploadFileRequest request;
  request.set_sha256(kAbc);
  request.set_data("ab");
  REQUIRE(writer->Write(request));

  CHECK(writer->Finish().error_code() == grpc::StatusCode::CANCELLED);

  const std::string files = f.dir / "state/files";
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!std::filesystem::is_empty(files) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  CHECK(std::filesystem::is_empty(files));
}

// Takes a call of an upload, and nothing of it.
class Deaf : public v1::JobService::Service {
  grpc::Status UploadFile(grpc::ServerContext* context, grpc::ServerReader<v1::UploadFileRequest>*,
                          v1::UploadFileReply*) override {
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
};

TEST_CASE("An upload of which nothing is taken is ended by its sender, which says how far it came",
          "[services][unit]") {
  Deaf deaf;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&deaf);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const cli::Cluster cluster{.address = "127.0.0.1:" + std::to_string(port),
                             .token = "0123456789abcdef0123",
                             .tls = nullptr};
  const auto api = cli::NewGrpcJobApi(cluster, false, nullptr, "0.4.0", Millis(300));

  const auto sent =
      api->Upload(kAbc, 600 << 20, [] { return Result<std::string>(std::string(1 << 16, 'x')); });

  const std::string said = Message(sent.status());
  CAPTURE(said);
  CHECK(sent.status().code() == StatusCode::kUnavailable);
  CHECK(said.starts_with("nothing moved for 0.3 s, after "));
  CHECK(said.ends_with(" of 600.0 MiB"));
}

// An uploaded file is on its way here.
struct Fetching {
  Fetching(const Fixture& f, const std::string& sha256)
      : stub(v1::ClusterService::NewStub(f.channel)) {
    f.Prepare(context);
    request.set_sha256(sha256);
    reader = stub->FetchFile(&context, request);
  }

  const std::unique_ptr<v1::ClusterService::Stub> stub;
  grpc::ClientContext context;
  v1::FetchFileRequest request;
  std::unique_ptr<grpc::ClientReader<v1::FileChunk>> reader;
};

TEST_CASE("A file that cannot be opened now is not said to be missing", "[services][unit]") {
  Fixture f;
  const std::string sha256(64, 'a');
  const std::filesystem::path file = f.dir / "state/files/" + sha256;
  std::filesystem::create_directories(file.parent_path());
  std::filesystem::create_symlink(file, file);  // which root cannot open, either

  const grpc::Status failed = Fetching(f, sha256).reader->Finish();
  CHECK(failed.error_code() != grpc::StatusCode::NOT_FOUND);
  CHECK(failed.error_message().find("read " + file.string()) != std::string::npos);
  const grpc::Status missing = Fetching(f, std::string(64, 'b')).reader->Finish();
  CHECK(missing.error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("A fetch whose reader stands still is ended, and lets go of its file",
          "[services][unit]") {
  Fixture f(Millis(300));
  // More than is on its way before anybody reads.
  const std::string text(64 << 20, 'x');
  storage::Sha256 hash;
  hash.Add(text);
  const std::string sha256 = hash.Hex();
  const cli::Cluster address{
      .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
  std::size_t at = 0;
  const auto sent = cli::NewGrpcJobApi(address)->Upload(sha256, text.size(), [&] {
    const std::string piece = text.substr(std::min(at, text.size()), 1 << 20);
    at += piece.size();
    return Result<std::string>(piece);
  });
  REQUIRE(Message(sent.status()) == "");
  const auto open = [&] {
    const std::filesystem::path file = f.dir / "state/files/" + sha256;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone) == file) return true;
    }
    return false;
  };
  const auto becomes = [&](bool wanted) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (open() != wanted && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return open() == wanted;
  };

  const Fetching fetching(f, sha256);

  CHECK(becomes(true));
  CHECK(becomes(false));
  v1::FileChunk chunk;
  while (fetching.reader->Read(&chunk)) {
  }
  CHECK(fetching.reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

// kAbc's name for what is sent in these messages.
grpc::Status UploadAbc(Fixture& f, const std::vector<std::string>& pieces) {
  const auto jobs = v1::JobService::NewStub(f.channel);
  grpc::ClientContext context;
  f.Prepare(context);
  v1::UploadFileReply reply;
  auto writer = jobs->UploadFile(&context, &reply);
  v1::UploadFileRequest request;
  request.set_sha256(kAbc);
  for (const std::string& piece : pieces) {
    request.set_data(piece);
    writer->Write(request);
    request.clear_sha256();
  }
  writer->WritesDone();
  return writer->Finish();
}

TEST_CASE("An uploaded file is fetched as it was sent", "[services][unit]") {
  Fixture f;
  CHECK(UploadAbc(f, {"abd"}).error_code() == grpc::StatusCode::DATA_LOSS);
  CHECK(UploadAbc(f, {"abc"}).ok());

  const Fetching fetching(f, kAbc);
  v1::FileChunk chunk;
  REQUIRE(fetching.reader->Read(&chunk));
  CHECK(chunk.data() == "abc");
  CHECK(chunk.total_bytes() == 3);
  CHECK_FALSE(fetching.reader->Read(&chunk));
  CHECK(fetching.reader->Finish().ok());
}

TEST_CASE("A fetch that the disk cuts short does not end well", "[services][unit]") {
  Fixture f;
  // Reading a folder fails as a broken disk does.
  std::filesystem::create_directories(f.dir / "state/files/" + kAbc);

  const Fetching fetching(f, kAbc);

  v1::FileChunk chunk;
  CHECK_FALSE(fetching.reader->Read(&chunk));
  const grpc::Status ended = fetching.reader->Finish();
  CHECK(ended.error_code() == grpc::StatusCode::UNKNOWN);
  CHECK(ended.error_message().find("the disk of the coordinator failed") != std::string::npos);
}

TEST_CASE("An upload of several messages is named in the audit log, also one that was refused",
          "[services][audit][unit]") {
  Fixture f;
  CHECK(UploadAbc(f, {"ab", "d"}).error_code() == grpc::StatusCode::DATA_LOSS);
  CHECK(UploadAbc(f, {"ab", "c"}).ok());

  // Writes what waits.
  f.node->Shutdown();
  std::vector<std::string> lines;
  std::ifstream file(f.dir / "state/audit.log");
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  REQUIRE(lines.size() == 2);
  for (const std::string& line : lines) {
    CAPTURE(line);
    CHECK(line.find(R"("did":"upload")") != std::string::npos);
    CHECK(line.find(fmt::format(R"("what":"{}")", kAbc)) != std::string::npos);
  }
  CHECK(lines[0].find("refused") != std::string::npos);
  CHECK(lines[1].find("refused") == std::string::npos);
}

TEST_CASE("Who follows a job by its name does not go on with the next one of that name",
          "[services][unit]") {
  Fixture f;
  const auto jobs = v1::JobService::NewStub(f.channel);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = SmallJob();
  const auto submit = [&] {
    grpc::ClientContext context;
    f.Prepare(context);
    v1::SubmitJobReply submitted;
    REQUIRE(jobs->SubmitJob(&context, request, &submitted).ok());
    return submitted.job().id();
  };
  const std::string first = submit();
  // A parameter server has something to tell of it. No worker is there, so that it waits.
  grpc::ClientContext attached;
  f.Prepare(attached);
  const auto cluster = v1::ClusterService::NewStub(f.channel);
  auto daemon = cluster->Attach(&attached);
  v1::DaemonMessage message = Register();
  message.mutable_register_()->mutable_task()->set_type("ps");
  REQUIRE(daemon->Write(message));
  message.mutable_log()->set_job_id(first);
  message.mutable_log()->add_lines()->set_text("of the first");
  REQUIRE(daemon->Write(message));

  grpc::ClientContext following;
  f.Prepare(following);
  v1::ReadLogsRequest follow;
  follow.set_job("job");
  follow.set_follow(true);
  auto lines = jobs->ReadLogs(&following, follow);
  v1::LogRecord record;
  REQUIRE(lines->Read(&record));
  CHECK(record.line().text() == "of the first");
  {
    grpc::ClientContext context;
    f.Prepare(context);
    v1::StopJobRequest stop;
    stop.set_job("job");
    v1::Job stopped;
    REQUIRE(jobs->StopJob(&context, stop, &stopped).ok());
    CHECK(stopped.state() == v1::JOB_STATE_CANCELLED);
  }
  request.mutable_spec()->set_batch_size(2);
  REQUIRE(submit() != first);

  CHECK_FALSE(lines->Read(&record));
  const grpc::Status ended = lines->Finish();
  INFO(ended.error_message());
  CHECK(ended.ok());
  attached.TryCancel();
  (void)daemon->Finish();
}

TEST_CASE("Calls that wait are answered when the coordinator shuts down", "[services][unit]") {
  Fixture f;
  const auto jobs = v1::JobService::NewStub(f.channel);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = SmallJob();
  v1::SubmitJobReply submitted;
  {
    grpc::ClientContext context;
    f.Prepare(context);
    const grpc::Status status = jobs->SubmitJob(&context, request, &submitted);
    INFO(status.error_message());
    REQUIRE(status.ok());
  }
  CHECK(submitted.job().state() == v1::JOB_STATE_PENDING);

  grpc::Status watched;
  std::jthread watcher([&] {
    grpc::ClientContext context;
    f.Prepare(context);
    v1::WatchJobRequest watch;
    watch.set_job("job");
    watch.set_version(UINT64_MAX);
    watch.set_timeout_ms(60'000);
    v1::Job job;
    watched = jobs->WatchJob(&context, watch, &job);
  });
  f.node->Shutdown();
  watcher.join();
  // Refused by the coordinator, or, if it had not arrived yet, by gRPC.
  const bool refused = watched.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       watched.error_code() == grpc::StatusCode::CANCELLED;
  CHECK(refused);
}

TEST_CASE("A command line of another version is told so, and of another major one refused",
          "[services][unit]") {
  Fixture f;
  std::string warned;
  const auto status = [&](const std::string& ours) {
    warned.clear();
    const cli::Cluster cluster{
        .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
    const auto api =
        cli::NewGrpcJobApi(cluster, false, [&](const std::string& text) { warned += text; }, ours);
    (void)api->GetStatus();
    return api->GetStatus().status();
  };
  CHECK(status("0.4.9").ok());
  CHECK(warned.empty());
  CHECK(status("0.3.0").ok());
  CHECK(
      warned ==
      "this program is version 0.3.0, the coordinator 0.4.0: that works, what is new in either is "
      "missing; upgrade the older one");
  CHECK(status("0.1.0").ok());
  CHECK(warned.find("more than one minor version apart") != std::string::npos);

  const Status refused = status("2.0.0");
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused).find("this program is version 2.0.0, the coordinator 0.4.0") !=
        std::string::npos);
  CHECK(warned.empty());
}

TEST_CASE("A coordinator that lacks a worker is not taken for one that is away",
          "[services][unit]") {
  Fixture f;
  const cli::Cluster cluster{
      .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
  v1::SubmitJobRequest dry;
  *dry.mutable_spec() = SmallJob();
  dry.set_dry_run(true);
  const Status asked = cli::NewGrpcJobApi(cluster)->Submit(dry).status();
  CHECK(asked.code() == StatusCode::kUnavailable);
  CHECK(Message(asked).starts_with("no worker is registered, and a dry run is answered by one"));
}

TEST_CASE("A daemon of another minor version is taken and named, of another major one refused",
          "[services][unit]") {
  Fixture f;
  const auto cluster = v1::ClusterService::NewStub(f.channel);
  const auto jobs = v1::JobService::NewStub(f.channel);
  // Until the welcome or the refusal; then what the coordinator says of it.
  const auto come = [&](const std::string& version, v1::ClusterStatus& status) {
    grpc::ClientContext context;
    f.Prepare(context);
    const auto stream = cluster->Attach(&context);
    v1::DaemonMessage message = Register();
    message.mutable_register_()->set_version(version);
    REQUIRE(stream->Write(message));
    v1::CoordinatorMessage answer;
    const bool welcomed = stream->Read(&answer);
    grpc::ClientContext asked;
    f.Prepare(asked);
    REQUIRE(jobs->GetStatus(&asked, {}, &status).ok());
    if (welcomed) {
      CHECK(answer.has_welcome());
      context.TryCancel();
    }
    const grpc::Status ended = stream->Finish();
    return welcomed ? grpc::Status::OK : ended;
  };

  v1::ClusterStatus status;
  const grpc::Status refused = come("1.0.0", status);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(refused.error_message() ==
        "worker:0 is version 1.0.0, the coordinator 0.4.0: of another major version nothing is "
        "sure to be understood; install the cluster's version");
  CHECK(status.tasks().empty());

  for (const std::string version : {"0.5.0", "0.4.0", ""}) {
    CHECK(come(version, status).ok());
    REQUIRE(status.tasks_size() == 1);
    CHECK(status.tasks(0).state() == "up");
    CHECK(status.tasks(0).version() == version);
  }
}

TEST_CASE("A backup is streamed whole, and leaves nothing beside the state", "[services][unit]") {
  Fixture f;
  const cli::Cluster cluster{
      .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
  const auto api = cli::NewGrpcJobApi(cluster);
  const std::string file = f.dir / "copy";
  std::ofstream out(file, std::ios::binary);
  const Status sent = api->Backup([&](const std::string& piece) {
    out << piece;
    return Ok();
  });
  CHECK(Message(sent) == "");
  out.close();
  const auto restored = RestoreBackup(file, f.dir / "restored");
  CHECK(Message(restored.status()) == "");
  for (const auto& at : std::filesystem::directory_iterator(f.dir / "state")) {
    CHECK_FALSE(at.path().filename().string().starts_with("backup-"));
  }
  // Who gives up in the middle is no trouble for the next one.
  CHECK(Message(api->Backup([](const std::string&) { return Aborted("enough"); })) == "enough");
  CHECK(api->GetStatus().ok());
}

TEST_CASE("What the coordinator's own disk refuses is no question of a token or of a name",
          "[services][unit]") {
  CHECK(OfDisk(PermissionDenied("make /x: Read-only file system")).code() ==
        StatusCode::kFailedPrecondition);
  CHECK(OfDisk(ResourceExhausted("no space")).code() == StatusCode::kResourceExhausted);
  Fixture f;
  const cli::Cluster cluster{
      .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
  const auto api = cli::NewGrpcJobApi(cluster);
  const std::string state = f.dir / "state";
  std::filesystem::rename(state, state + "-moved");
  const Status sent = api->Backup([](const std::string&) { return Ok(); });
  std::filesystem::rename(state + "-moved", state);
  CHECK(sent.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(sent).find(state) != std::string::npos);
}

TEST_CASE("A coordinator that stops while a backup is made ends it", "[services][unit]") {
  Fixture f;
  const cli::Cluster cluster{
      .address = f.node->endpoint().ToString(), .token = "0123456789abcdef0123", .tls = nullptr};
  const auto api = cli::NewGrpcJobApi(cluster);
  const auto being_made = [&] {
    for (const auto& at : std::filesystem::directory_iterator(f.dir / "state")) {
      if (at.path().filename().string().starts_with(kUnfinishedBackup)) return true;
    }
    return false;
  };
  Status sent;
  bool seen = false;
  for (int i = 0; i < 100 && !seen; ++i) {
    std::atomic<bool> over = false;
    std::thread one([&] {
      sent = api->Backup([](const std::string&) { return Ok(); });
      over = true;
    });
    while (!seen && !over) seen = being_made();
    if (seen) f.node->Shutdown();
    one.join();
  }

  REQUIRE(seen);
  CHECK((sent.ok() || sent.code() == StatusCode::kUnavailable));
}

}  // namespace
}  // namespace muster::coordinator
