#include "services/common/attach_stream.h"

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/telemetry/log.h"
#include "muster/v1/cluster.grpc.pb.h"
#include "services/common/grpc_server.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

Token MakeToken(const std::string& text) {
  const testing::TempFolder dir;
  const std::string path = dir / "token";
  std::ofstream(path) << text;
  ::chmod(path.c_str(), 0600);
  return *Token::Read(path);
}

// Welcomes, then answers every heartbeat; ends when the daemon ends its half.
class Service final : public v1::ClusterService::Service {
 public:
  explicit Service(Token token) : token_(std::move(token)) {}
  grpc::Status Attach(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::DaemonMessage>* stream) override {
    if (const auto caller = CheckCaller(*context, token_, tls::Role::kNode); !caller.ok()) {
      return ToGrpc(caller.status());
    }
    v1::DaemonMessage message;
    while (stream->Read(&message)) {
      v1::CoordinatorMessage answer;
      if (message.has_register_()) {
        answer.mutable_welcome()->set_epoch(3);
        answer.mutable_welcome()->set_session(8);
        answer.mutable_welcome()->set_heartbeat_ms(10);
        answer.mutable_welcome()->set_lease_ms(5'000);
      } else if (message.has_heartbeat()) {
        answer.mutable_ack()->set_sequence(message.heartbeat().sequence());
        if (message.heartbeat().sequence() == 3) answer.mutable_command()->set_id(42);
      } else {
        continue;
      }
      stream->Write(answer);
    }
    return grpc::Status::OK;
  }

 private:
  const Token token_;
};

struct Recorder : AttachHandler {
  std::mutex mutex;
  std::condition_variable changed;
  int attached = 0;
  int detached = 0;
  std::vector<std::uint64_t> commands;
  std::vector<Status> refused;

  template <class Change>
  void Note(Change change) {
    const std::scoped_lock lock(mutex);
    change();
    changed.notify_all();
  }
  template <class Condition>
  bool WaitUntil(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), condition);
  }
  void OnAttached(const v1::Welcome&) override {
    Note([this] { ++attached; });
  }
  void OnDetached(const Status&) override {
    Note([this] { ++detached; });
  }
  void OnCommand(StreamId, const v1::Command& command) override {
    Note([&] { commands.push_back(command.id()); });
  }
  void FillHeartbeat(v1::Heartbeat&) override {}
  void OnRefused(const Status& why) override {
    Note([&] { refused.push_back(why); });
  }
};

TEST_CASE("a daemon attaches over gRPC and comes back after a restart of the coordinator",
          "[services][unit]") {
  const Token token = MakeToken("0123456789abcdef");
  Service service(token);
  auto server =
      GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}, .services = {&service}});
  REQUIRE(server.ok());
  const Endpoint endpoint = (*server)->endpoint();
  Recorder recorder;
  ThreadScheduler scheduler;
  AttachClient client({.coordinator = endpoint.ToString()}, scheduler, recorder,
                      GrpcAttachStreams({.coordinator = endpoint.ToString(), .token = token}));

  scheduler.Post([&client] { client.Start(); });
  REQUIRE(recorder.WaitUntil([&] { return !recorder.commands.empty(); }));
  CHECK(recorder.commands[0] == 42);
  (*server)->Shutdown(Millis(0));
  server->reset();
  REQUIRE(recorder.WaitUntil([&] { return recorder.detached == 1; }));
  auto again = GrpcServer::Start({.listen = endpoint, .services = {&service}});
  REQUIRE(again.ok());
  REQUIRE(recorder.WaitUntil([&] { return recorder.attached == 2; }));

  bool closed = false;
  scheduler.Post(
      [&] { client.Close(Millis(10'000), [&] { recorder.Note([&] { closed = true; }); }); });
  CHECK(recorder.WaitUntil([&] { return closed; }));
  scheduler.Stop();
}

TEST_CASE("a daemon with another token is refused for good", "[services][unit]") {
  Service service(MakeToken("0123456789abcdef"));
  auto server =
      GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}, .services = {&service}});
  REQUIRE(server.ok());
  const std::string address = (*server)->endpoint().ToString();
  Recorder recorder;
  ThreadScheduler scheduler;
  AttachClient client(
      {.coordinator = address}, scheduler, recorder,
      GrpcAttachStreams({.coordinator = address, .token = MakeToken("ffffffffffffffff")}));

  scheduler.Post([&client] { client.Start(); });

  REQUIRE(recorder.WaitUntil([&] { return !recorder.refused.empty(); }));
  CHECK(recorder.refused[0].code() == StatusCode::kUnauthenticated);
  CHECK(recorder.attached == 0);
  scheduler.Stop();
}

// What is logged while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    REQUIRE(::pipe2(ends_, O_CLOEXEC) == 0);
    log::Configure({.format = log::Format::kText, .descriptor = ends_[1]});
  }
  ~LoggedLines() {
    log::Configure({});
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  LoggedLines(const LoggedLines&) = delete;
  LoggedLines& operator=(const LoggedLines&) = delete;

  // The first line with these words; what there was within 20 s if there is none.
  std::string LineWith(const std::string& words) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (text_.find(words) == std::string::npos || !text_.ends_with('\n')) {
      const auto left =
          std::chrono::duration_cast<Millis>(until - std::chrono::steady_clock::now());
      pollfd ready{.fd = ends_[0], .events = POLLIN, .revents = 0};
      if (left <= Millis(0) || ::poll(&ready, 1, static_cast<int>(left.count())) != 1) break;
      char piece[4'096];
      const ssize_t size = ::read(ends_[0], piece, sizeof piece);
      if (size <= 0) break;
      text_.append(piece, static_cast<std::size_t>(size));
    }
    return text_;
  }

 private:
  int ends_[2] = {-1, -1};
  std::string text_;
};

std::shared_ptr<tls::Context> ContextOf(const tls::Files& files) {
  if (!files.given()) return nullptr;
  auto context = tls::Context::FromFiles(files);
  REQUIRE(context.status() == Ok());
  return *std::move(context);
}

// What a daemon with `client` says of a coordinator with `server`; not given: in the clear.
std::string Complaint(const tls::Files& server, const tls::Files& client) {
  const Token token = MakeToken("0123456789abcdef");
  Service service(token);
  auto started = GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0},
                                    .services = {&service},
                                    .tls = ContextOf(server)});
  REQUIRE(started.ok());
  const ControlPlane control{
      .coordinator = (*started)->endpoint().ToString(), .token = token, .tls = ContextOf(client)};
  Recorder recorder;
  ThreadScheduler scheduler;
  LoggedLines lines;
  AttachClient daemon({.coordinator = control.coordinator, .explain = ExplainByTls(control)},
                      scheduler, recorder, GrpcAttachStreams(control));
  scheduler.Post([&daemon] { daemon.Start(); });
  std::string said = lines.LineWith("waiting for the coordinator at " + control.coordinator);
  scheduler.Stop();
  return said;
}

TEST_CASE("a daemon that TLS keeps from its coordinator says which of the two minds what",
          "[services][unit][tls]") {
  testing::Certificates ours;
  testing::Certificates theirs;
  const tls::Holder chief{.role = tls::Role::kNode, .names = {"chief:0"}};
  const tls::Holder ps{.role = tls::Role::kNode, .names = {"ps:0"}};
  const tls::Files server = ours.Issue("chief", chief);
  std::string said;
  std::string reason;

  SECTION("the coordinator's authority is none of the daemon's") {
    said = Complaint(server, theirs.Issue("ps", ps));
    reason = "an authority that is not in this process's tls-ca";
  }
  SECTION("the daemon's authority is none of the coordinator's") {
    theirs.Write("ca.pem", theirs.authority().certificate + ours.authority().certificate);
    said = Complaint(server, theirs.Issue("ps", ps));
    reason = "its tls-ca does not have the authority that issued it, or it has expired";
  }
  SECTION("the daemon has no certificate") {
    said = Complaint(server, {});
    reason = "it speaks TLS, and this daemon has no certificate: give --tls-ca";
  }
  SECTION("the coordinator's certificate is for other hosts than the one it is asked at") {
    said = Complaint(ours.Issue("elsewhere", chief, {"node-1", "10.0.0.1"}), ours.Issue("ps", ps));
    reason =
        "127.0.0.1 shows a certificate of CN = node chief:0 for other hosts (node-1, 10.0.0.1)";
  }
  SECTION("the coordinator has none") {
    said = Complaint({}, ours.Issue("ps", ps));
    reason = "it speaks plain text where TLS is needed";
  }

  CAPTURE(said);
  CHECK(said.find(reason) != std::string::npos);
}

TEST_CASE("a daemon that was told another daemon's address for the coordinator's says so",
          "[services][unit]") {
  auto other = GrpcServer::Start({.listen = {.host = "127.0.0.1", .port = 0}});
  REQUIRE(other.ok());
  const std::string address = (*other)->endpoint().ToString();
  Recorder recorder;
  ThreadScheduler scheduler;
  LoggedLines lines;
  AttachClient daemon(
      {.coordinator = address}, scheduler, recorder,
      GrpcAttachStreams({.coordinator = address, .token = MakeToken("0123456789abcdef")}));

  scheduler.Post([&daemon] { daemon.Start(); });
  const std::string said = lines.LineWith("waiting for the coordinator at " + address);
  scheduler.Stop();

  CAPTURE(said);
  CHECK(said.find("it is another daemon than the coordinator") != std::string::npos);
}

TEST_CASE("streams that were given up say nothing once their opener is gone", "[services][unit]") {
  // A call that is given up is gRPC's for a while yet: it would drop the last reference to the
  // channel, and tell of its end, on a thread of its own.
  const Token token = MakeToken("a-token-of-enough-characters");
  for (int round = 0; round < 200; ++round) {
    OpenAttachStream open = GrpcAttachStreams({.coordinator = "127.0.0.1:1", .token = token});
    std::atomic<int> told = 0;
    auto stream =
        open({.on_message = [](const auto&) {}, .on_closed = [&told](const auto&) { ++told; }});
    stream->Write(v1::DaemonMessage());
    stream.reset();
    open = nullptr;
    REQUIRE(told == 1);
  }
}

}  // namespace
}  // namespace muster::services
