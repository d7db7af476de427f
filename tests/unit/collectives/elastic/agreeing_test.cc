// How a leader asks the members of the next group whether they agree.
#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "collectives/elastic/elastic_groups.h"
#include "collectives/elastic/messages.h"
#include "common/base/mutex.h"
#include "common/net/channel.h"
#include "common/net/host_id.h"
#include "common/net/socket.h"
#include "common/process/ports.h"
#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

constexpr const char* kFollowersKey = "the followers'";

// Where two members meet who were both asked about one group.
class Meeting {
 public:
  // Waits for the other one, for less long than a leader waits for an answer.
  void Comes(Generation generation) {
    const MutexLock lock(mutex_);
    if (std::exchange(generation_, generation) != generation) asked_ = 0;
    ++asked_;
    changed_.notify_all();
    const TimePoint until = std::chrono::steady_clock::now() + Millis(200);
    while (generation_ == generation && asked_ < 2 && changed_.wait_until(mutex_, until)) {
    }
    over_ = over_ || (generation_ == generation && asked_ == 2);
  }
  // They have met.
  bool over() {
    const MutexLock lock(mutex_);
    return over_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  Generation generation_;
  int asked_ = 0;
  bool over_ = false;
};

// Worker 1 or 2 of three, as far as worker 0 hears: would come to a group of all, comes to none,
// and says that the run is over when both were asked about one.
class Follower {
 public:
  Follower(int worker, Meeting& meeting)
      : worker_(worker), meeting_(meeting), door_(*net::ListenTcp("127.0.0.1:0")) {
    identity_ = {.token = kFollowersKey, .host_id = *net::HostId()};
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) (void)AnswerOne();
    });
  }
  const std::string& address() const { return door_.address; }

 private:
  static WorkerName NameOf(int worker) {
    return {.worker = worker, .incarnation = Incarnation(static_cast<std::uint64_t>(worker) + 7)};
  }

  WorkerReport ReportTo(const WorkerReport& leader) {
    WorkerReport mine;
    mine.name = NameOf(worker_);
    mine.signature = leader.signature;
    mine.address = door_.address;
    mine.settled = true;
    mine.choice = {leader.name, NameOf(1), NameOf(2)};
    if (meeting_.over()) {
      mine.phase = WorkerReport::Phase::kFinished;
      mine.generation = Generation(Rendezvous::kMostWorkers);
    }
    return mine;
  }

  Status AnswerOne() {
    MUSTER_TRY_ASSIGN(net::Accepted accepted, net::Accept({&door_, 1}, -1, Millis(50)));
    if (!accepted.fd.valid()) return Ok();
    net::Channel channel(std::move(accepted.fd), net::LinkKind::kTcp, accepted.peer,
                         net::SpinMode::kOff, nullptr,
                         net::FrameLimits{.meta_bytes = 1U << 20U, .payload_bytes = 0});
    const TimePoint until = std::chrono::steady_clock::now() + Millis(2'000);
    const auto all = [](const net::Hello&) { return Ok(); };
    MUSTER_TRY(net::WelcomeClient(channel, identity_, until, all).status());
    MUSTER_TRY_ASSIGN(const auto frame, channel.ReadFrame(until));
    v1::ElasticQuestion question;
    const auto meta = channel.meta();
    if (!frame.has_value() ||
        !question.ParseFromArray(meta.data(), static_cast<int>(meta.size()))) {
      return DataLoss("no question");
    }
    MUSTER_TRY_ASSIGN(const WorkerReport leader, FromMessage(question.report()));
    v1::ElasticAnswer answer;
    if (question.has_formation()) {
      meeting_.Comes(Generation(question.formation().generation()));
      answer.set_refusal("it only looks on");
    }
    *answer.mutable_report() = ToMessage(ReportTo(leader));
    const std::string bytes = answer.SerializeAsString();
    return channel.Send({.kind = net::kFirstOfProtocols + 1}, std::as_bytes(std::span(bytes)), {},
                        until);
  }

  const int worker_;
  Meeting& meeting_;
  net::Listener door_;
  net::Identity identity_;
  std::jthread thread_;
};

TEST_CASE("the members of the next group are asked at the same time whether they agree",
          "[collectives][elastic]") {
  Meeting meeting;
  const Follower first(1, meeting);
  const Follower second(2, meeting);
  process::PortAllotter allotter;
  auto port = allotter.Claim("127.0.0.1", 1);
  REQUIRE(port.ok());
  port->front().Open();
  ElasticGroups::Options options{
      .rules = {.self = 0, .workers = 3}, .workers = {}, .key = kFollowersKey};
  options.workers = {{"worker:0", fmt::format("127.0.0.1:{}", port->front().port())},
                     {"worker:1", first.address()},
                     {"worker:2", second.address()}};
  const auto leader = ElasticGroups::Create(options);
  REQUIRE(leader.ok());

  const Status formed = (*leader)->Form(Millis(20'000)).status();

  CAPTURE(ToString(formed));
  CHECK(meeting.over());
  CHECK(formed.code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::collectives
