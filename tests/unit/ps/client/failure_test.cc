// What goes wrong on the data port: strangers, wrong tokens, broken frames, superseded views.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/net/arena.h"
#include "common/net/channel.h"
#include "common/net/handshake.h"
#include "common/net/rings.h"
#include "ps/server/job_table.h"
#include "ps/wire.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using net::Channel;
using net::FrameHeader;
using testing::AddVariable;
using testing::Eventually;
using testing::HeldShards;
using testing::kJob;
using testing::kToken;
using testing::kW;
using testing::ModelKey;
using testing::OneVariable;
using testing::SmallCluster;
using testing::Soon;

const std::string kModelHello = RoleOf(kModelRole, testing::kJobId);

std::unique_ptr<Channel> Dial(SmallCluster& cluster) {
  auto fd = net::ConnectTcp(cluster.server(0).endpoint().tcp_address(), Soon());
  REQUIRE(fd.ok());
  return std::make_unique<Channel>(*std::move(fd), net::LinkKind::kTcp, "server",
                                   net::SpinMode::kOff, nullptr);
}

std::unique_ptr<Channel> DialAndGreet(SmallCluster& cluster, std::uint64_t view = 1) {
  auto channel = Dial(cluster);
  const net::Identity self{.token = ModelKey(), .host_id = cluster.host_id()};
  REQUIRE(net::GreetServer(*channel, self, kModelHello,
                           SubjectOf({.job = kJob, .view = ViewId(view)}), Soon())
              .ok());
  return channel;
}

void WriteRaw(Channel& channel, std::span<const std::byte> bytes) {
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  REQUIRE(net::WriteAll(channel.link(), channel.clock(), std::span(&part, 1), Soon()).ok());
}

// Waits for the server's last words and for the end of the stream.
Status LastWords(Channel& channel) {
  Status said;
  for (;;) {
    const auto frame = channel.ReadFrame(Soon(), Millis(5'000));
    if (!frame.ok()) return said.ok() ? frame.status() : said;
    if (!frame->has_value()) return said;
    said = net::StatusOf(**frame, channel.meta());
  }
}

void CheckAlive(SmallCluster& cluster) {
  auto client = cluster.Connect(LinkMode::kTcp);
  INFO(ToString(client.status()));
  REQUIRE(client.ok());
  CHECK((*client)->PullDense(kW).ok());
}

bool Warned(const SmallCluster& cluster, const std::string& what) {
  for (const std::string& line : cluster.warnings()) {
    if (line.find(what) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("garbage on the data port is answered, logged and closed, the server lives on",
          "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = Dial(cluster);
  std::vector<std::byte> garbage(200, std::byte{'x'});

  WriteRaw(*channel, garbage);
  // The first frame is the server's nonce.
  const Status said = LastWords(*channel);

  CHECK(said.code() == StatusCode::kDataLoss);
  CHECK(Message(said).find("not a Muster frame: it begins with 78 78 78 78") != std::string::npos);
  CHECK(Warned(cluster, "not a Muster frame"));
  CHECK(cluster.server(0).links().handshakes_refused == 1);
  CheckAlive(cluster);
}

TEST_CASE("half a frame ends its own connection only", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = DialAndGreet(cluster);
  std::array<std::byte, net::kHeaderBytes> raw{};
  net::EncodeHeader(MakeHeader(Verb::kPullDense, 1, {}), raw);

  WriteRaw(*channel, std::span(raw).first(30));
  (void)net::Finish(channel->link(), channel->clock(), Soon());

  CHECK(Warned(cluster, "closed the connection inside a frame: 30 of 80 bytes came"));
  CheckAlive(cluster);
}

TEST_CASE("a length over its limit is refused before it sizes anything", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = DialAndGreet(cluster);
  std::array<std::byte, net::kHeaderBytes> raw{};
  FrameHeader header = MakeHeader(Verb::kPush, 1, {});
  const bool meta = GENERATE(true, false);
  if (meta) {
    header.meta_bytes = 0xffffffff;
  } else {
    header.payload_bytes = ~std::uint64_t{0};
  }
  net::EncodeHeader(header, raw);

  WriteRaw(*channel, raw);
  const Status said = LastWords(*channel);

  CHECK(said.code() == StatusCode::kResourceExhausted);
  CHECK(Message(said).find("limit") != std::string::npos);
  CHECK(cluster.server(0).links().bad_frames == 1);
  CheckAlive(cluster);
}

TEST_CASE("a kind that no parameter server knows is refused before anything is done",
          "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = DialAndGreet(cluster);
  const net::FrameKind kind =
      GENERATE(as<net::FrameKind>{}, net::kNonce, net::kFirstOfProtocols + 4, 32, 99);

  REQUIRE(channel->Send({.kind = kind, .request = 1}, {}, {}, Soon()).ok());
  const Status said = LastWords(*channel);

  CHECK(said.code() == StatusCode::kUnimplemented);
  CHECK(Message(said).find(fmt::format("a frame of kind {} is no request", kind)) !=
        std::string::npos);
  CHECK(cluster.server(0).links().bad_frames == 1);
  CheckAlive(cluster);
}

TEST_CASE("a payload that its entries do not make is refused", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = DialAndGreet(cluster);
  const WireEntry entry{.shard = 0, .floats = 1000};
  const std::vector<float> too_few(10);
  const iovec payload{.iov_base = const_cast<float*>(too_few.data()), .iov_len = 40};
  const FrameHeader header =
      MakeHeader(Verb::kPush, 1,
                 {.job = kJob, .view = ViewId(1), .closure = ClosureId(1), .attempt = Attempt(1)});

  REQUIRE(channel->Send(header, std::as_bytes(std::span(&entry, 1)), std::span(&payload, 1), Soon())
              .ok());
  const auto reply = channel->ReadFrame(Soon(), Millis(5'000));

  REQUIRE(reply.ok());
  const Status said = net::StatusOf(**reply, channel->meta());
  CHECK(said.code() == StatusCode::kInvalidArgument);
  CHECK(Message(said) == "request 1: payload of 40 bytes, its entries make 4000");
  CheckAlive(cluster);
}

TEST_CASE("entries whose bytes no sum can hold are refused", "[ps_server][unit]") {
  // Together 2^64 bytes: as many as none, where nobody looks.
  constexpr std::int64_t kRow = (1 << 18) - 2;
  constexpr std::uint64_t kIds = 1ULL << 28;
  v1::JobPlan plan = OneVariable();
  AddVariable(plan, "e", {1, kRow}, 1, /*embedding=*/true);
  SmallCluster cluster(std::move(plan), 1);
  auto channel = DialAndGreet(cluster);
  const WireEntry entry{.shard = 1,
                        .access = static_cast<std::uint32_t>(WireAccess::kRows),
                        .ids = kIds,
                        .floats = kIds * kRow};
  const std::vector<WireEntry> entries(kMaxEntries, entry);
  const FrameHeader header =
      MakeHeader(Verb::kPush, 1,
                 {.job = kJob, .view = ViewId(1), .closure = ClosureId(1), .attempt = Attempt(1)});

  REQUIRE(channel->Send(header, std::as_bytes(std::span(entries)), {}, Soon()).ok());
  const auto reply = channel->ReadFrame(Soon(), Millis(5'000));

  REQUIRE(reply.ok());
  const Status said = net::StatusOf(**reply, channel->meta());
  CHECK(said.code() == StatusCode::kResourceExhausted);
  CHECK(Message(said).find(" values in one request, limit 35184372088832") != std::string::npos);
  CheckAlive(cluster);
}

TEST_CASE("a client without its job's key is refused, and told what it does not know",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(OneVariable(), 1);
  PsClient::Options options = cluster.ClientOptions(link);
  // The cluster's token itself, the key of another job, that of the job's time as a program.
  options.key = GENERATE(as<std::string>{}, kToken, ModelKey("job-8"),
                         net::JobKey(kToken, testing::kJobId, Epoch(1)));

  const auto client = PsClient::Connect(cluster.plan(), options);

  CHECK(client.status().code() == StatusCode::kUnauthenticated);
  CHECK(Message(client.status()).find("ps:0") != std::string::npos);
  CheckAlive(cluster);
  // The refusal is logged after it is said; a stopped server has logged all.
  cluster.server(0).Stop();
  CHECK(Warned(cluster, "does not know the key of model job-7"));
}

TEST_CASE("a client of one job has nothing of another's, whatever number it says",
          "[ps_client][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const auto channel = Dial(cluster);
  const net::Identity self{.token = ModelKey("job-8"), .host_id = cluster.host_id()};
  const std::string role = RoleOf(kModelRole, "job-8");
  const auto greet = [&](Channel& with, JobNumber number) {
    const auto subject = SubjectOf({.job = number, .view = ViewId(1)});
    return net::GreetServer(with, self, role, subject, Soon());
  };

  const Status refused = greet(*Dial(cluster), kJob);
  REQUIRE(greet(*channel, JobNumber(8)).ok());
  const WireEntry entry{.shard = 0, .floats = 1000};
  const FrameHeader pull = MakeHeader(Verb::kPullDense, 9, {.job = kJob, .view = ViewId(1)});
  REQUIRE(channel->Send(pull, std::as_bytes(std::span(&entry, 1)), {}, Soon()).ok());
  const auto reply = channel->ReadFrame(Soon(), Millis(5'000));
  REQUIRE(reply.ok());
  const Status answered = net::StatusOf(**reply, channel->meta());

  for (const Status& said : {refused, answered}) {
    CHECK(said.code() == StatusCode::kPermissionDenied);
    CHECK(Message(said).find("job number 7 is not that of job-8, whose key this client has") !=
          std::string::npos);
  }
  CheckAlive(cluster);
}

TEST_CASE("who has the token and is of no job has no request to a parameter server",
          "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const net::Identity self{.token = kToken, .host_id = cluster.host_id()};

  const Status said = net::GreetServer(*Dial(cluster), self, "worker",
                                       SubjectOf({.job = kJob, .view = ViewId(1)}), Soon());

  CHECK(said.code() == StatusCode::kInvalidArgument);
  CHECK(Message(said).find("a client \"worker\": wanted model or program") != std::string::npos);
}

TEST_CASE("a peer that does not greet is let go after the handshake's limit", "[ps_server][unit]") {
  // Long enough for a busy machine to let CheckAlive() greet within it.
  PsServer::Options options;
  options.handshake_timeout = Millis(1'000);
  SmallCluster cluster(OneVariable(), 1, options);
  auto channel = Dial(cluster);

  const Status said = LastWords(*channel);

  CHECK(said.code() == StatusCode::kDeadlineExceeded);
  CHECK(cluster.server(0).links().handshakes_refused == 1);
  CheckAlive(cluster);
}

TEST_CASE("of too many peers that do not greet the oldest is let go, who greets comes in",
          "[ps_server][unit]") {
  PsServer::Options options;
  options.max_handshakes = 2;
  SmallCluster cluster(OneVariable(), 1, options);
  auto first = Dial(cluster);
  auto second = Dial(cluster);
  // Both are in their handshake once they have their nonces.
  REQUIRE(first->ReadFrame(Soon(), Millis(5'000)).ok());
  REQUIRE(second->ReadFrame(Soon(), Millis(5'000)).ok());

  auto third = Dial(cluster);
  const auto gone = first->ReadFrame(Soon(), Millis(5'000));

  CHECK((!gone.ok() || !gone->has_value()));
  CHECK(Eventually([&] {
    return Warned(cluster,
                  "2 data connections have not greeted (limit 2): the oldest from 127.0.0.1");
  }));
  const auto nonce = third->ReadFrame(Soon(), Millis(5'000));
  REQUIRE(nonce.ok());
  CHECK(nonce->has_value());
  CheckAlive(cluster);
}

TEST_CASE("what strangers can cause at will is said ten times, not a thousand",
          "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const std::vector<std::byte> garbage(200, std::byte{'x'});
  for (int i = 0; i < 20; ++i) {
    auto channel = Dial(cluster);
    WriteRaw(*channel, garbage);
    (void)LastWords(*channel);
  }

  CHECK(cluster.warnings().size() == 10);
  CHECK(cluster.server(0).links().handshakes_refused == 20);
}

TEST_CASE("a folder that others may change is not used for sockets", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);  // its folder is ours
  const std::string open = cluster.directory() + "/open";
  REQUIRE(::mkdir(open.c_str(), 0700) == 0);
  REQUIRE(::chmod(open.c_str(), 0777) == 0);
  const std::string link = cluster.directory() + "/link";
  REQUIRE(::symlink(cluster.directory().c_str(), link.c_str()) == 0);

  CHECK(PsServer::Start({.unix_directory = open, .token = kToken}).status().code() ==
        StatusCode::kPermissionDenied);
  CHECK(PsServer::Start({.unix_directory = link, .token = kToken}).status().code() ==
        StatusCode::kFailedPrecondition);
}

TEST_CASE("a push that was given up reads nothing of what is written after it",
          "[ps_client][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const auto shards = std::make_shared<HeldShards>(cluster.plan(), 0);
  cluster.server(0).Publish(kJob, shards);
  PsClient::Options options = cluster.ClientOptions(LinkMode::kLocal);
  options.timeout = Millis(300);
  auto client = PsClient::Connect(cluster.plan(), options);
  REQUIRE(client.ok());
  const std::span<float> gradient = (*client)->Gradient(0);
  std::ranges::fill(gradient, -1.0F);

  // The server stands still in the middle of it, as a stopped one does.
  const Status late = (*client)->Push(ClosureId(1), Attempt(1), kW, {});
  CHECK(late.code() == StatusCode::kDeadlineExceeded);
  INFO(Message(late));
  CHECK(Message(late).find("push of closure 1, request 1 for 1 shard: ps:0 (") == 0);
  CHECK(Message(late).find("): no answer in 0.3") != std::string::npos);
  shards->began.get_future().wait();
  CHECK(gradient[999] == -1.0F);
  std::ranges::fill(gradient, -100.0F);
  shards->release.set_value();

  REQUIRE(Eventually([&] { return (*client)->PullDense(kW).ok() && (*client)->Value(0)[0] != 0; }));
  CHECK((*client)->Value(0)[0] == 1.0F);
  CHECK((*client)->Value(0)[999] == 1.0F);
  CHECK((*client)->bytes().tcp == 0);
}

TEST_CASE("an error ends a pull's answer, and the connection goes on", "[ps_client][unit]") {
  // Two shards on one server, each a frame of its own.
  v1::JobPlan plan;
  constexpr std::int64_t kRows = 9 << 20;
  AddVariable(plan, "a", {kRows}, 1);
  AddVariable(plan, "b", {kRows}, 1);
  SmallCluster cluster(std::move(plan), 1);
  const auto shards = std::make_shared<HeldShards>(cluster.plan(), 0);
  cluster.server(0).Publish(kJob, shards);
  auto client = cluster.Connect(LinkMode::kTcp);
  REQUIRE(client.ok());
  const std::vector<std::uint32_t> both = {0, 1};
  shards->failing = true;

  CHECK(Message((*client)->PullDense(both)).find("cannot be read now") != std::string::npos);
  shards->failing = false;

  const Status status = (*client)->PullDense(both);
  INFO(ToString(status));
  CHECK(status.ok());
  CHECK(cluster.server(0).links().connections_accepted == 1);
}

TEST_CASE("an older view is refused with kAborted, a newer one with kUnavailable",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(OneVariable(), 1);
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());
  const v1::JobPlan old_plan = cluster.plan();

  cluster.Publish(2);
  CHECK((*client)->PullDense(kW).code() == StatusCode::kAborted);
  const Status pushed = (*client)->Push(ClosureId(1), Attempt(1), kW, {});
  CHECK(pushed.code() == StatusCode::kAborted);
  CHECK(Message(pushed).find("job 7 is at view 2; view 1 is over") != std::string::npos);
  const auto late = PsClient::Connect(old_plan, cluster.ClientOptions(link));
  CHECK(late.status().code() == StatusCode::kAborted);

  cluster.plan().set_view(3);
  auto early = cluster.Connect(link);
  REQUIRE(early.ok());
  CHECK((*early)->PullDense(kW).code() == StatusCode::kUnavailable);
  cluster.Publish(3);
  CHECK((*early)->PullDense(kW).ok());
  cluster.server(0).Drop(kJob);
  CHECK((*early)->PullDense(kW).code() == StatusCode::kAborted);
}

TEST_CASE("of the jobs that are over the last thousands are remembered", "[ps_server][unit]") {
  JobTable jobs;
  v1::JobPlan plan = OneVariable(1);
  plan.set_job_id(testing::kJobId);
  plan.set_view(1);
  const auto end = [&](std::uint64_t number) {
    jobs.Publish(JobNumber(number), std::make_shared<testing::FakeShards>(plan, 0));
    jobs.Drop(JobNumber(number));
  };
  const auto found = [&](std::uint64_t number) {
    return jobs.Find(testing::kJobId, JobNumber(number), ViewId(1)).status().code();
  };

  for (std::uint64_t number = 1; number <= JobTable::kMostDropped + 1; ++number) end(number);

  CHECK(found(1) == StatusCode::kUnavailable);
  CHECK(found(2) == StatusCode::kAborted);
  CHECK(found(JobTable::kMostDropped + 1) == StatusCode::kAborted);
}

TEST_CASE("a push that breaks off half-way is not applied", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  auto channel = DialAndGreet(cluster);
  const WireEntry entry{.shard = 0, .floats = 1000};
  const FrameHeader header =
      MakeHeader(Verb::kPush, 1,
                 {.job = kJob, .view = ViewId(1), .closure = ClosureId(1), .attempt = Attempt(1)});
  // A whole frame, made on a socket pair, of which the server gets the first 2,000 bytes.
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0);
  Channel writer(net::Fd(pair[0]), net::LinkKind::kUnix, "pair", net::SpinMode::kOff, nullptr);
  const net::Fd reader(pair[1]);
  const std::vector<float> ones(1000, 1);
  const iovec payload{.iov_base = const_cast<float*>(ones.data()), .iov_len = 4000};
  REQUIRE(writer.Send(header, std::as_bytes(std::span(&entry, 1)), std::span(&payload, 1), Soon())
              .ok());
  std::vector<std::byte> bytes(2000);
  REQUIRE(::recv(reader.get(), bytes.data(), bytes.size(), MSG_WAITALL) == 2000);

  WriteRaw(*channel, bytes);
  (void)net::Finish(channel->link(), channel->clock(), Soon());
  auto client = cluster.Connect(LinkMode::kTcp);
  REQUIRE(client.ok());
  REQUIRE((*client)->PullDense(kW).ok());

  CHECK((*client)->Value(0)[0] == 0);
  CHECK((*client)->Push(ClosureId(1), Attempt(1), kW, {}).ok());
  CHECK(cluster.server(0).counters(kJob).duplicates == 0);
}

namespace {

// Begins a push of 1000 floats on a connection of its own and sends half of them.
std::unique_ptr<Channel> PushHalf(SmallCluster& cluster) {
  auto channel = DialAndGreet(cluster);
  const WireEntry entry{.shard = 0, .floats = 1000 * 1000};
  const auto meta = std::as_bytes(std::span(&entry, 1));
  FrameHeader header =
      MakeHeader(Verb::kPush, 1,
                 {.job = kJob, .view = ViewId(1), .closure = ClosureId(1), .attempt = Attempt(1)});
  header.meta_bytes = static_cast<std::uint32_t>(meta.size());
  header.meta_crc = Crc32c(meta);
  header.payload_bytes = 4'000'000;
  std::array<std::byte, net::kHeaderBytes> raw{};
  net::EncodeHeader(header, raw);
  WriteRaw(*channel, raw);
  WriteRaw(*channel, meta);
  WriteRaw(*channel, std::vector<std::byte>(2'000'000));
  return channel;
}

}  // namespace

TEST_CASE("who finds the stage memory full is told so, soon, and comes again",
          "[ps_server][unit]") {
  PsServer::Options options;
  options.stage_budget_bytes = 2 << 20;
  options.quiet_limit = Millis(60'000);
  options.stage_timeout = Millis(50);
  SmallCluster cluster(OneVariable(1000 * 1000), 1, options);
  auto holder = PushHalf(cluster);
  auto client = cluster.Connect(LinkMode::kTcp);
  REQUIRE(client.ok());

  Status full;
  REQUIRE(Eventually([&] {
    full = (*client)->Push(ClosureId(2), Attempt(1), kW, {});
    return !full.ok();
  }));

  CHECK(full.code() == StatusCode::kUnavailable);
  INFO(ToString(full));
  CHECK(Message(full).find("no room for a transfer of 4000000 bytes: ") != std::string::npos);
  CHECK(Message(full).find(" of the stage budget's 1048576 are in use") != std::string::npos);
  CHECK(Warned(cluster, "more by --stage-budget"));
  holder.reset();
  CHECK(Eventually([&] { return (*client)->Push(ClosureId(2), Attempt(1), kW, {}).ok(); }));
  // The connection was good all the time.
  CHECK(cluster.server(0).links().connections_accepted == 2);
}

TEST_CASE("a peer that stops in the middle of a frame gives back what it holds",
          "[ps_server][unit]") {
  PsServer::Options options;
  options.stage_budget_bytes = 2 << 20;
  options.quiet_limit = Millis(100);
  SmallCluster cluster(OneVariable(1000 * 1000), 1, options);
  auto stopped = PushHalf(cluster);

  const Status said = LastWords(*stopped);

  CHECK(said.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(said).find("2000000 of 4000000 bytes of its payload came") != std::string::npos);
  auto client = cluster.Connect(LinkMode::kTcp);
  REQUIRE(client.ok());
  CHECK((*client)->Push(ClosureId(2), Attempt(1), kW, {}).ok());
}

namespace {

// A local link whose client has handed over an arena of 2 MiB, and no rings.
std::unique_ptr<Channel> DialWithArena(SmallCluster& cluster) {
  auto fd = net::ConnectUnix(cluster.server(0).endpoint().unix_path(), Soon());
  REQUIRE(fd.ok());
  auto channel = std::make_unique<Channel>(*std::move(fd), net::LinkKind::kUnix, "server",
                                           net::SpinMode::kOff, nullptr);
  const net::Identity self{.token = ModelKey(), .host_id = cluster.host_id()};
  REQUIRE(net::GreetServer(*channel, self, kModelHello, SubjectOf({.job = kJob, .view = ViewId(1)}),
                           Soon())
              .ok());
  auto arena = net::Arena::Create(1, true);
  REQUIRE(arena.ok());
  REQUIRE(channel->Send({.kind = net::kArena}, {}, {}, Soon(), arena->fd()).ok());
  REQUIRE((**channel->ReadFrame(Soon(), Millis(5'000))).status == 0);
  return channel;
}

}  // namespace

TEST_CASE("rings that come wrongly end their own connection only", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const std::string what = GENERATE("no descriptor", "may shrink", "over tcp", "too late");
  const auto channel = what == "over tcp" ? DialAndGreet(cluster) : DialWithArena(cluster);
  net::Fd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(loose.get(), 1 << 20) == 0);
  if (what == "too late") {
    const WireEntry entry{.shard = 0, .floats = 1000};
    const FrameHeader pull = MakeHeader(Verb::kPullDense, 9, {.job = kJob, .view = ViewId(1)});
    REQUIRE(channel->Send(pull, std::as_bytes(std::span(&entry, 1)), {}, Soon()).ok());
    REQUIRE((**channel->ReadFrame(Soon(), Millis(5'000))).status == 0);
  }
  auto made = net::Rings::Create();
  REQUIRE(made.ok());
  const int descriptor = what == "may shrink" ? loose.get() : what == "too late" ? made->fd() : -1;
  REQUIRE(channel->Send({.kind = net::kRings}, {}, {}, Soon(), descriptor).ok());
  const Status said = LastWords(*channel);
  CHECK(!said.ok());
  CHECK(said.code() != StatusCode::kDeadlineExceeded);
  CheckAlive(cluster);
}

TEST_CASE("arena offsets are checked against the sealed size", "[ps_server][unit]") {
  SmallCluster cluster(OneVariable(), 1);
  const auto local = DialWithArena(cluster);
  Channel& channel = *local;
  const std::uint64_t offset = GENERATE(~std::uint64_t{0} - 100, std::uint64_t{1} << 21,
                                        (std::uint64_t{1} << 21) - 3996, std::uint64_t{2});
  const WireEntry entry{.shard = 0, .floats = 1000, .values_offset = offset};
  const FrameHeader header = MakeHeader(Verb::kPullDense, 9, {.job = kJob, .view = ViewId(1)});

  REQUIRE(channel.Send(header, std::as_bytes(std::span(&entry, 1)), {}, Soon()).ok());
  const auto reply = channel.ReadFrame(Soon(), Millis(5'000));

  REQUIRE(reply.ok());
  CHECK(net::StatusOf(**reply, channel.meta()).code() == StatusCode::kOutOfRange);
}

}  // namespace muster::ps
