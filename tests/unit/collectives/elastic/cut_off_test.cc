// Elastic workers beside others of whom nothing is heard: each question to one takes its time.
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "collectives/elastic/elastic_groups.h"
#include "collectives/elastic/messages.h"
#include "common/net/channel.h"
#include "common/net/host_id.h"
#include "common/net/socket.h"
#include "common/process/ports.h"
#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

constexpr const char* kSharedKey = "the test's";

// An address that answers nobody who connects: as many wait at it as its door takes.
class Wall {
 public:
  Wall() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in bound{.sin_family = AF_INET,
                      .sin_port = 0,
                      .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                      .sin_zero = {}};
    auto* const address = reinterpret_cast<sockaddr*>(&bound);
    socklen_t size = sizeof(bound);
    REQUIRE(::bind(fd_.get(), address, size) == 0);
    REQUIRE(::listen(fd_.get(), 0) == 0);
    REQUIRE(::getsockname(fd_.get(), address, &size) == 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(bound.sin_port));
    while (true) {
      auto one = net::ConnectTcp(address_, std::chrono::steady_clock::now() + Millis(300));
      if (!one.ok()) break;
      waiting_.push_back(*std::move(one));
      REQUIRE(waiting_.size() < 10);
    }
  }
  const std::string& address() const { return address_; }

 private:
  net::Fd fd_;
  std::string address_;
  std::vector<net::Fd> waiting_;
};

// Worker 0, as far as worker 1 sees it: would go on with who asks, and once that one would, too,
// has it agree to a group of both, and waits for it there for as long as any leader does.
class ScriptedLeader {
 public:
  ScriptedLeader() : door_(*net::ListenTcp("127.0.0.1:0")), next_(*net::ListenTcp("127.0.0.1:0")) {
    identity_ = {.token = kSharedKey, .host_id = *net::HostId()};
  }
  const std::string& address() const { return door_.address; }

  // How its group has formed. `member` is where worker 1 answers.
  Status Lead(const std::string& member) {
    WorkerReport other;
    const TimePoint deadline = std::chrono::steady_clock::now() + Millis(20'000);
    while (other.choice.empty()) {
      if (std::chrono::steady_clock::now() > deadline)
        return DeadlineExceeded("worker 1 is silent");
      // It gives up an answer that takes too long, and asks again.
      if (const auto asked = AnswerOne(deadline); asked.ok()) other = *asked;
    }
    const Formation both{.generation = Generation(Rendezvous::kMostWorkers),
                         .members = {To(other), other}};
    MUSTER_TRY(Ask(member, both));
    return FormGroup({.job = "elastic",
                      .generation = both.generation,
                      .rank = 0,
                      .members = {{"worker:0", next_.address}, {"worker:1", other.address}},
                      .key = kSharedKey,
                      .form_within = Millis(2'000)},
                     next_)
        .status();
  }

 private:
  static constexpr net::FrameLimits kFrames{.meta_bytes = 1U << 20U, .payload_bytes = 0};
  static constexpr net::FrameKind kQuestionFrame = net::kFirstOfProtocols;
  static constexpr net::FrameKind kAnswerFrame = net::kFirstOfProtocols + 1;

  WorkerReport To(const WorkerReport& other) const {
    WorkerReport mine;
    mine.name = {.worker = 0, .incarnation = Incarnation(7)};
    mine.choice = {mine.name, other.name};
    mine.signature = other.signature;
    mine.address = next_.address;
    return mine;
  }

  // What worker 1 tells of itself when it asks.
  Result<WorkerReport> AnswerOne(TimePoint until) {
    MUSTER_TRY_ASSIGN(net::Accepted accepted, net::Accept({&door_, 1}, -1, Millis(1'000)));
    if (!accepted.fd.valid()) return Unavailable("nobody asks");
    net::Channel channel(std::move(accepted.fd), net::LinkKind::kTcp, accepted.peer,
                         net::SpinMode::kOff, nullptr, kFrames);
    const auto all = [](const net::Hello&) { return Ok(); };
    MUSTER_TRY(net::WelcomeClient(channel, identity_, until, all).status());
    v1::ElasticQuestion question;
    MUSTER_TRY(Hear(channel, question, until));
    MUSTER_TRY_ASSIGN(WorkerReport other, FromMessage(question.report()));
    v1::ElasticAnswer answer;
    *answer.mutable_report() = ToMessage(To(other));
    MUSTER_TRY(Say(channel, kAnswerFrame, answer, until));
    return other;
  }

  Status Ask(const std::string& member, const Formation& formation) const {
    const TimePoint until = std::chrono::steady_clock::now() + Millis(10'000);
    MUSTER_TRY_ASSIGN(net::Fd socket, net::ConnectTcp(member, until));
    net::Channel channel(std::move(socket), net::LinkKind::kTcp, "worker:1", net::SpinMode::kOff,
                         nullptr, kFrames);
    MUSTER_TRY(net::GreetServer(channel, identity_, "elastic", net::Subject{}, until));
    v1::ElasticQuestion question;
    *question.mutable_report() = ToMessage(formation.members[0]);
    *question.mutable_formation() = ToMessage(formation);
    MUSTER_TRY(Say(channel, kQuestionFrame, question, until));
    v1::ElasticAnswer answer;
    MUSTER_TRY(Hear(channel, answer, until));
    return answer.refusal().empty() ? Ok() : Aborted("{}", answer.refusal());
  }

  template <class M>
  static Status Say(net::Channel& channel, net::FrameKind kind, const M& message, TimePoint until) {
    const std::string bytes = message.SerializeAsString();
    return channel.Send({.kind = kind}, std::as_bytes(std::span(bytes)), {}, until);
  }
  template <class M>
  static Status Hear(net::Channel& channel, M& message, TimePoint until) {
    MUSTER_TRY_ASSIGN(const auto frame, channel.ReadFrame(until));
    const auto meta = channel.meta();
    const bool parsed =
        frame.has_value() && message.ParseFromArray(meta.data(), static_cast<int>(meta.size()));
    return parsed ? Ok() : DataLoss("no message");
  }

  net::Listener door_;
  net::Listener next_;
  net::Identity identity_;
};

TEST_CASE("who has agreed to a group comes to it in time though many workers answer nobody",
          "[collectives][elastic]") {
  // A look around at all of them takes longer than a leader waits.
  constexpr int kSilentWorkers = 160;
  const Wall wall;
  ScriptedLeader leader;
  process::PortAllotter allotter;
  auto port = allotter.Claim("127.0.0.1", 1);
  REQUIRE(port.ok());
  port->front().Open();
  ElasticGroups::Options options{
      .rules = {.self = 1, .workers = 2 + kSilentWorkers}, .workers = {}, .key = kSharedKey};
  options.workers = {{"worker:0", leader.address()},
                     {"worker:1", fmt::format("127.0.0.1:{}", port->front().port())}};
  for (int i = 2; i < options.rules.workers; ++i) {
    options.workers.push_back({fmt::format("worker:{}", i), wall.address()});
  }
  const auto worker = ElasticGroups::Create(options);
  REQUIRE(worker.ok());
  Status formed;
  Status led;
  {
    const std::jthread leads([&] { led = leader.Lead(options.workers[1].address); });
    formed = (*worker)->Form(Millis(20'000)).status();
  }
  CAPTURE(ToString(formed));
  CHECK(ToString(led) == ToString(Ok()));
  CHECK(formed.ok());
}

TEST_CASE("workers that answer nobody are asked at the same time", "[collectives][elastic]") {
  constexpr int kSilentWorkers = 64;
  constexpr Millis kOneAfterAnother{kSilentWorkers * 300};
  const Wall wall;
  process::PortAllotter allotter;
  auto port = allotter.Claim("127.0.0.1", 1);
  REQUIRE(port.ok());
  port->front().Open();
  ElasticGroups::Options options{
      .rules = {.self = 0, .workers = 1 + kSilentWorkers}, .workers = {}, .key = kSharedKey};
  options.workers = {{"worker:0", fmt::format("127.0.0.1:{}", port->front().port())}};
  for (int i = 1; i < options.rules.workers; ++i) {
    options.workers.push_back({fmt::format("worker:{}", i), wall.address()});
  }
  const auto worker = ElasticGroups::Create(options);
  REQUIRE(worker.ok());
  const TimePoint began = std::chrono::steady_clock::now();

  // Time for one look around.
  const Status formed = (*worker)->Form(Millis(1)).status();

  CHECK(std::chrono::steady_clock::now() - began < kOneAfterAnother / 2);
  CHECK(formed.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(formed).find("worker 1 cannot be reached") != std::string::npos);
}

}  // namespace
}  // namespace muster::collectives
