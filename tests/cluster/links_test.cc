// Between executors and parameter servers: which bytes go where, and strangers on the data port.
#include <array>
#include <csignal>
#include <fstream>
#include <iterator>
#include <vector>

#include <sys/uio.h>

#include "common/net/channel.h"
#include "common/net/frame.h"
#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "ps/wire.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Pulled and pushed in a step: w1, b1, w2, b2 of the demo's model, 4 bytes each.
constexpr std::uint64_t kStepBytes = 2 * 4 * (784 * 256 + 256 + 256 * 10 + 10);

constexpr std::uint64_t kSteps = 210;

v1::JobProgress RunFashion(const Cluster& cluster, const TempFolder& folder) {
  std::string text = FashionJob(kSteps);
  text.resize(text.find("evaluation:"));
  const RunResult run =
      cluster.Muster({"submit", "-f", folder.Write("fashion.yaml", text), "--wait"});
  CAPTURE(run.err);
  REQUIRE(run.code == 0);
  return cluster.Describe("fashion").progress();
}

TEST_CASE("with --link tcp tensors go over TCP, and are counted there", "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 2, .workers = 1, .environment = {{"MUSTER_LINK", "tcp"}}});
  const v1::JobProgress progress = RunFashion(cluster, folder);
  CHECK(progress.local_bytes() == 0);
  CHECK(progress.tcp_bytes() >= kSteps * kStepBytes);
  CHECK(progress.tcp_bytes() < (kSteps + 2) * kStepBytes);
}

TEST_CASE("on one host tensors go through shared memory alone", "[cluster]") {
  const TempFolder folder;
  Cluster cluster({.ps = 2, .workers = 1});
  const v1::JobProgress progress = RunFashion(cluster, folder);
  CHECK(progress.tcp_bytes() == 0);
  CHECK(progress.local_bytes() >= kSteps * kStepBytes);
  CHECK(progress.local_bytes() < (kSteps + 2) * kStepBytes);
}

TimePoint Soon() { return std::chrono::steady_clock::now() + seconds(10); }

// Somebody who connects to a data port.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    auto fd = net::ConnectTcp(address, Soon());
    if (!fd.ok()) throw std::runtime_error(ToString(fd.status()));
    channel_ = std::make_unique<net::Channel>(*std::move(fd), net::LinkKind::kTcp, "the ps",
                                              net::SpinMode::kOff, nullptr);
  }
  net::Channel& channel() { return *channel_; }
  void Send(std::span<const std::byte> bytes) {
    iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    REQUIRE(net::WriteAll(channel_->link(), channel_->clock(), std::span(&part, 1), Soon()).ok());
  }
  // What the server says before it closes.
  Status LastWords() {
    Status said;
    while (true) {
      const auto frame = channel_->ReadFrame(Soon(), milliseconds(10'000));
      if (!frame.ok()) return said.ok() ? frame.status() : said;
      if (!frame->has_value()) return said;
      said = net::StatusOf(**frame, channel_->meta());
    }
  }

 private:
  std::unique_ptr<net::Channel> channel_;
};

std::array<std::byte, net::kHeaderBytes> Header(const net::FrameHeader& header) {
  std::array<std::byte, net::kHeaderBytes> raw{};
  net::EncodeHeader(header, raw);
  return raw;
}

// "data plane on 127.0.0.1:4711 and ..." in the daemon's log.
std::string DataAddress(const std::string& log) {
  const std::string text = ReadAll(log), before = "data plane on ";
  const std::size_t at = text.find(before) + before.size();
  return text.substr(at, text.find(' ', at) - at);
}

TEST_CASE("strangers on a data port disturb nobody", "[cluster]") {
  const TempFolder folder;
  // Long enough for all strangers to come and go while it runs.
  const SumJob sums(folder, 1500, 10, 150, 100);
  Cluster cluster({.ps = 2, .workers = 2});
  const int ps = cluster.PidOf("ps:0");
  const std::string address = DataAddress(cluster.state() + "/logs/ps-0.log");
  CAPTURE(address);
  std::string token = ReadAll(cluster.state() + "/token");
  token.pop_back();
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 20, seconds(60)));

  // Silent until the end: it costs a place in the handshake, nothing else.
  Stranger silent(address);
  Stranger garbage(address);
  garbage.Send(std::vector<std::byte>(1'000'000, std::byte{'x'}));
  CHECK(garbage.LastWords().code() == StatusCode::kDataLoss);
  Stranger half(address);
  const auto hello = Header({.kind = net::kHello});
  half.Send(std::span(hello).first(30));
  (void)net::Finish(half.channel().link(), half.channel().clock(), Soon());
  (void)half.LastWords();
  Stranger oversize(address);
  oversize.Send(Header({.kind = net::kHello, .meta_bytes = 1U << 31}));
  CHECK(oversize.LastWords().code() == StatusCode::kResourceExhausted);
  Stranger guesser(address);
  const Status refused =
      net::GreetServer(guesser.channel(), {.token = "a guess", .host_id = "here"},
                       ps::RoleOf(ps::kModelRole, id), {}, Soon());
  CHECK(refused.code() == StatusCode::kUnauthenticated);
  // A client of another job, by its own key: it has nothing to do with this one's variables.
  Stranger other(address);
  const Status foreign = net::GreetServer(
      other.channel(), {.token = net::JobKey(token, "other-9", Epoch()), .host_id = "here"},
      ps::RoleOf(ps::kModelRole, "other-9"),
      ps::SubjectOf({.job = JobNumber(1), .view = ViewId(1)}), Soon());
  CHECK(foreign.code() == StatusCode::kPermissionDenied);
  CHECK(Message(foreign).find("job number 1 is not that of other-9") != std::string::npos);
  // Who has the job's key may still be broken.
  Stranger proven(address);
  const Status greeted = net::GreetServer(
      proven.channel(), {.token = net::JobKey(token, id, Epoch()), .host_id = *net::HostId()},
      ps::RoleOf(ps::kModelRole, id), {}, Soon());
  INFO(ToString(greeted));
  REQUIRE(greeted.ok());
  proven.Send(Header({.kind = 18, .request = 1, .payload_bytes = 1ULL << 40}));
  CHECK(proven.LastWords().code() == StatusCode::kResourceExhausted);

  REQUIRE(cluster.Describe(id).ended_ms() == 0);
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(180)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(cluster.PidOf("ps:0") == ps);
  CHECK(FindEvent(job, "PS_LOST") == nullptr);
  CHECK(job.view() == 1);
  CHECK(job.closures_rerun() == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  const std::string log = ReadAll(cluster.state() + "/logs/ps-0.log");
  CHECK(log.find("not a Muster frame") != std::string::npos);
  CHECK(log.find("30 of 80 bytes came") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
