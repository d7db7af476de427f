// What goes wrong between a program and its parameter servers: hostile frames, clients that end in
// the middle of one, servers that are killed or stopped.
#include <array>
#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "common/base/crc32c.h"
#include "common/net/channel.h"
#include "common/net/socket.h"
#include "muster/v1/variables.pb.h"
#include "ps/wire.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/lossy_relay.h"
#include "tests/unit/ps/client/program_cluster.h"
#include "tests/unit/ps/client/server_process.h"

namespace muster::ps {
namespace {

using testing::Gather;
using testing::kProgram;
using testing::kToken;
using testing::LossyRelay;
using testing::ProgramCluster;
using testing::Raw;
using testing::ReadAll;
using testing::ServerProcess;

// A connection of the program that says what it likes.
class Wild {
 public:
  explicit Wild(const ProgramCluster& cluster) {
    auto fd = net::ConnectTcp(cluster.address(0).data().tcp_address(), testing::Soon());
    REQUIRE(fd.ok());
    channel_ = std::make_unique<net::Channel>(*std::move(fd), net::LinkKind::kTcp, "server",
                                              net::SpinMode::kOff, nullptr);
    const auto options = cluster.Options();
    REQUIRE(net::GreetServer(
                *channel_, {.token = options.key, .host_id = options.host_id},
                RoleOf(kProgramRole, kProgram),
                SubjectOf(ProgramSubject{.epoch = Epoch(1), .incarnation = Incarnation(1)}),
                testing::Soon())
                .ok());
  }

  net::Channel& channel() { return *channel_; }

  Status Ask(net::FrameHeader header, std::span<const std::byte> meta,
             std::span<const std::byte> payload = {}) {
    const iovec part = PartOf(payload);
    MUSTER_TRY(channel_->Send(header, meta, std::span(&part, 1), testing::Soon()));
    MUSTER_TRY_ASSIGN(const auto reply, channel_->ReadFrame(testing::Soon()));
    if (!reply.has_value()) return Unavailable("closed");
    const Status said = net::StatusOf(*reply, channel_->meta());
    MUSTER_TRY(channel_->SkipPayload(testing::Soon()));
    return said;
  }
  Status Ask(ProgramVerb verb, std::span<const std::byte> meta,
             std::span<const std::byte> payload = {}) {
    return Ask(
        MakeHeader(verb, ++request_, {.closure = ClosureId(1), .attempt = Attempt(1), .flush = 1}),
        meta, payload);
  }
  // Begins a write of so many bytes, a multiple of 16, and sends half of them.
  void WriteHalf(std::uint64_t bytes) {
    const WriteEntry entry{.shard = 0, .op = 1, .bytes = bytes};
    std::array<std::byte, net::kHeaderBytes> raw{};
    net::FrameHeader header =
        MakeHeader(ProgramVerb::kWrite, 1, {.closure = ClosureId(1), .flush = 1});
    header.meta_bytes = sizeof(entry);
    header.meta_crc = Crc32c(std::as_bytes(std::span(&entry, 1)));
    header.payload_bytes = bytes;
    net::EncodeHeader(header, raw);
    const std::vector<std::byte> half(bytes / 2);
    std::array<iovec, 3> parts = {PartOf(std::span<const std::byte>(raw)),
                                  PartOf(std::as_bytes(std::span(&entry, 1))),
                                  PartOf(std::span<const std::byte>(half))};
    REQUIRE(net::WriteAll(channel_->link(), channel_->clock(), parts, testing::Soon()).ok());
  }

 private:
  std::unique_ptr<net::Channel> channel_;
  std::uint64_t request_ = 0;
};

VariableHandle MakeFloats(ProgramClient& client, const std::vector<float>& value) {
  return client
      .Create({.name = "w", .shape = {static_cast<std::int64_t>(value.size())}, .servers = {0}},
              Raw(value))
      .value();
}

template <class T>
std::span<const std::byte> OneOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

TEST_CASE("tables that lie are refused, and the connection goes on", "[ps_server][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  const VariableHandle w = MakeFloats(*client, {1, 2, 3});
  Wild wild(cluster);
  const std::vector<float> three = {7, 7, 7};
  const auto refused = [&](auto entry, ProgramVerb verb, std::span<const std::byte> payload) {
    CHECK(wild.Ask(verb, OneOf(entry), payload).code() == StatusCode::kInvalidArgument);
  };
  const WriteEntry good{.shard = 0, .op = 1, .bytes = 12};
  std::vector<std::byte> padded(16);
  std::memcpy(padded.data(), three.data(), 12);

  WriteEntry bad = good;
  bad.op = 77;
  refused(bad, ProgramVerb::kWrite, padded);
  bad = good;
  bad.access = 2;
  refused(bad, ProgramVerb::kWrite, padded);
  bad = good;
  bad.ids = ~std::uint64_t{0};
  bad.access = 1;
  refused(bad, ProgramVerb::kWrite, padded);
  bad = good;
  bad.bytes = ~std::uint64_t{0};
  refused(bad, ProgramVerb::kWrite, padded);
  bad = good;
  bad.bytes = 8;
  refused(bad, ProgramVerb::kWrite, std::span(padded).first(8));
  refused(good, ProgramVerb::kWrite, std::span(padded).first(8));
  refused(ReadEntry{.bytes = 1ULL << 33}, ProgramVerb::kRead, {});
  refused(ReadEntry{.slot = 3, .bytes = 12}, ProgramVerb::kRead, {});
  refused(std::array<std::byte, 47>{}, ProgramVerb::kRead, {});
  CHECK(wild.Ask(ProgramVerb::kRead, OneOf(ReadEntry{.shard = 9, .bytes = 12})).code() ==
        StatusCode::kNotFound);
  CHECK(wild.Ask(ProgramVerb::kCreate, padded, padded).code() == StatusCode::kInvalidArgument);

  CHECK(ReadAll<float>(*client, w) == std::vector<float>{1, 2, 3});
  CHECK(wild.Ask(ProgramVerb::kWrite, OneOf(good), padded).ok());
  CHECK(ReadAll<float>(*client, w) == three);
}

TEST_CASE("writes to one shard that stand apart are refused and nothing of them is made",
          "[ps_server][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  std::vector<VariableHandle> variables;
  for (const char* name : {"a", "b"}) {
    variables.push_back(
        client->Create({.name = name, .shape = {2}, .servers = {0}}, Raw(std::vector<float>{1, 1}))
            .value());
  }
  Wild wild(cluster);
  const auto entry = [&](std::size_t variable) {
    return WriteEntry{.shard = variables[variable]->shards[0].wire,
                      .op = static_cast<std::uint8_t>(ElementOp::kAdd),
                      .bytes = 8};
  };
  const std::vector<float> ones(6, 1);
  const auto write = [&](const std::vector<WriteEntry>& entries) {
    return wild.Ask(ProgramVerb::kWrite, Raw(entries), Raw(ones));
  };

  const Status apart = write({entry(0), entry(1), entry(0)});

  CHECK(apart.code() == StatusCode::kInvalidArgument);
  CHECK(Message(apart).find("entry 2: shard ") != std::string::npos);
  CHECK(ReadAll<float>(*client, variables[0]) == std::vector<float>{1, 1});
  // In whatever order the shards come.
  CHECK(write({entry(1), entry(0), entry(0)}).ok());
  CHECK(ReadAll<float>(*client, variables[0]) == std::vector<float>{3, 3});
  CHECK(ReadAll<float>(*client, variables[1]) == std::vector<float>{2, 2});
}

TEST_CASE("a program's connection serves no model job, and the other way round",
          "[ps_server][unit]") {
  ProgramCluster cluster(1);
  Wild wild(cluster);
  CHECK(wild.Ask(MakeHeader(Verb::kPush, 1, {.job = JobNumber(7), .view = ViewId(1)}), {}).code() ==
        StatusCode::kUnimplemented);
}

TEST_CASE("random bytes as meta end no server", "[ps_server][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  const VariableHandle w = MakeFloats(*client, {1, 2, 3});
  Wild wild(cluster);
  std::mt19937_64 random(1);

  for (int i = 0; i < 2'000; ++i) {
    std::vector<std::byte> meta(48 * (random() % 3) + (random() % 4 == 0 ? random() % 48 : 0));
    // Small numbers get further.
    for (std::byte& byte : meta)
      byte = static_cast<std::byte>(random() % 3 == 0 ? random() % 4 : 0);
    const auto verb = static_cast<ProgramVerb>(40 + random() % 8);
    const Status status = wild.Ask(verb, meta, {});
    REQUIRE(status.code() != StatusCode::kUnavailable);
    REQUIRE(status.code() != StatusCode::kDataLoss);
  }
  CHECK(client->Find("x").status().code() == StatusCode::kNotFound);
}

TEST_CASE("a client that ends in the middle of a write set has written nothing",
          "[ps_server][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  const VariableHandle w = MakeFloats(*client, {1, 2, 3, 4});
  {
    Wild wild(cluster);
    wild.WriteHalf(16);
  }
  REQUIRE(testing::Eventually([&] { return cluster.server(0).links().connections_now == 1; }));

  CHECK(ReadAll<float>(*client, w) == std::vector<float>{1, 2, 3, 4});
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Update(w, ElementOp::kAssign, {Raw(std::vector<float>{5, 6, 7, 8})}).ok());
  REQUIRE(client->Flush(own).ok());
  CHECK(ReadAll<float>(*client, w) == std::vector<float>{5, 6, 7, 8});
}

TEST_CASE("rows whose ids find the stage memory full are read when there is room",
          "[ps_server][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  std::atomic<bool> full{false}, over{false};
  PsServer::Options options;
  options.stage_budget_bytes = 2 << 20;
  options.quiet_limit = Millis(60'000);
  options.stage_timeout = Millis(50);
  options.on_warning = [&](const std::string& line) {
    if (line.find("more by --stage-budget") != std::string::npos) full = true;
  };
  ProgramCluster cluster(1, options);
  const auto client = cluster.Client(link);
  const VariableHandle w = MakeFloats(*client, std::vector<float>(250'000));
  auto holder = std::make_unique<Wild>(cluster);
  holder->WriteHalf(1'000'000);

  const std::vector<std::int64_t> ids(20'000, 7);
  std::vector<float> into(ids.size(), 1);
  auto read = std::async(std::launch::async, [&] {
    const ReadRequest rows{
        .variable = w, .rows = true, .ids = ids, .into = std::as_writable_bytes(std::span(into))};
    // Those that came before the half write find room.
    Status status;
    do status = client->Read(std::span(&rows, 1));
    while (status.ok() && !full && !over);
    return status;
  });
  const bool told = testing::Eventually([&] { return full.load(); });
  over = true;
  holder.reset();

  const Status status = read.get();
  CHECK(told);
  INFO(ToString(status));
  CHECK(status.ok());
  CHECK(into == std::vector<float>(ids.size()));
}

TEST_CASE("a read of more than its shard has is refused before there is room for it",
          "[ps_server][unit]") {
  PsServer::Options options;
  options.stage_budget_bytes = 2 << 20;
  options.quiet_limit = Millis(60'000);
  ProgramCluster cluster(1, options);
  const auto client = cluster.Client();
  const VariableHandle w = MakeFloats(*client, std::vector<float>(250'000));
  // While this has some, there is none for so much, and nobody behind it gets any.
  Wild holder(cluster);
  holder.WriteHalf(1'000'000);
  Wild wild(cluster);

  const Status whole = wild.Ask(ProgramVerb::kRead, OneOf(ReadEntry{.bytes = 1ULL << 33}));
  const std::int64_t id = 0;
  const Status rows = wild.Ask(
      ProgramVerb::kRead, OneOf(ReadEntry{.access = 1, .ids = 1, .bytes = 1ULL << 33}), OneOf(id));

  for (const Status& refused : {whole, rows}) {
    INFO(ToString(refused));
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(Message(refused).find("8589934592 bytes for ") != std::string::npos);
  }
  CHECK(ReadAll<float>(*client, w) == std::vector<float>(250'000));
}

TEST_CASE("rows of several variables share the room for their ids", "[ps_server][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  PsServer::Options options;
  options.stage_budget_bytes = 2 << 20;
  ProgramCluster cluster(1, options);
  const auto client = cluster.Client(link);
  std::vector<VariableHandle> variables;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<std::vector<float>> into;
  // Small ones, and larger and smaller ones behind larger ones.
  for (const std::size_t count : {10, 20'000, 40'000, 30'000, 5}) {
    const std::size_t at = variables.size();
    std::vector<float> values(50'000);
    std::iota(values.begin(), values.end(), static_cast<float>(100'000 * at));
    const VariableSpec spec{.name = fmt::format("v{}", at), .shape = {50'000}, .servers = {0}};
    variables.push_back(client->Create(spec, Raw(values)).value());
    ids.emplace_back(count);
    std::iota(ids.back().begin(), ids.back().end(), static_cast<std::int64_t>(at));
    into.emplace_back(count);
  }
  std::vector<ReadRequest> requests;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    requests.push_back({.variable = variables[i],
                        .rows = true,
                        .ids = ids[i],
                        .into = std::as_writable_bytes(std::span(into[i]))});
  }

  REQUIRE(client->Read(requests).ok());

  for (std::size_t i = 0; i < into.size(); ++i) {
    CHECK(into[i].front() == static_cast<float>(100'000 * i + i));
    CHECK(into[i].back() == static_cast<float>(100'000 * i + i + into[i].size() - 1));
  }
}

TEST_CASE("a killed parameter server is named to all who use it, at once", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  const ServerProcess server;
  const auto client = server.Client(link);
  const VariableHandle w = MakeFloats(*client, std::vector<float>(100'000));
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      std::vector<float> into(100'000);
      const ReadRequest read{.variable = w, .into = std::as_writable_bytes(std::span(into))};
      Status status;
      while (status.ok()) status = client->Read(std::span(&read, 1));
      if (status.code() == StatusCode::kUnavailable &&
          Message(status).find("ps:0 (") != std::string::npos) {
        ++lost;
      }
    });
  }

  server.Signal(SIGKILL);
  for (std::thread& thread : threads) thread.join();
  CHECK(lost == 3);
  CHECK(std::chrono::steady_clock::now() - start < Millis(10'000));
}

TEST_CASE("a server that is lost is named though another one has no room", "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto client = cluster.Client();
  const std::vector<float> two = {1, 2};
  const VariableHandle w =
      client->Create({.name = "w", .shape = {2}, .servers = {0, 1}}, Raw(two)).value();
  // The first server takes the closure for one too far ahead, and does so until the deadline.
  WriteSet set(ClosureId(70'000), Attempt(1));
  REQUIRE(set.Update(w, ElementOp::kAdd, {Raw(two)}).ok());
  cluster.server(1).Stop();

  const Status flushed = client->Flush(set);

  INFO(ToString(flushed));
  CHECK(flushed.code() == StatusCode::kUnavailable);
  CHECK(Message(flushed).find("ps:1 (") != std::string::npos);
}

TEST_CASE("a variable that a server has made without being heard is not in the way of the next try",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  LossyRelay relay(cluster.address(1).data().tcp_address());
  std::vector<ProgramClient::Server> servers = cluster.Servers();
  servers[1].target.tcp_address = relay.address();
  const auto driver = ProgramClient::Open(servers, cluster.Options(LinkMode::kTcp)).value();
  const auto held = [&](std::size_t server) { return cluster.server(server).programs()[0].bytes; };
  const std::vector<float> first = {1, 2, 3, 4};
  // The second time on a new connection.
  relay.LoseAnswersTo(ProgramVerb::kCreate, 2);
  const Status unheard =
      driver->Create({.name = "w", .shape = {4}, .servers = {0, 1}}, Raw(first)).status();
  REQUIRE(unheard.code() == StatusCode::kUnavailable);
  CHECK(held(0) == 0);
  CHECK(held(1) == 2 * sizeof(float));

  // Another shape, too.
  const std::vector<float> second = {5, 6, 7, 8, 9, 10};
  const auto made = driver->Create({.name = "w", .shape = {6}, .servers = {1, 0}}, Raw(second));
  INFO(ToString(made.status()));
  REQUIRE(made.ok());
  CHECK(ReadAll<float>(*driver, *made) == second);
  CHECK(held(1) == 3 * sizeof(float));
}

TEST_CASE("what a server has made without being heard is freed when it answers",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  LossyRelay relay(cluster.address(0).data().tcp_address());
  std::vector<ProgramClient::Server> servers = cluster.Servers();
  servers[0].target.tcp_address = relay.address();
  const auto driver = ProgramClient::Open(servers, cluster.Options(LinkMode::kTcp)).value();
  const std::vector<float> value = {1, 2, 3};
  relay.LoseAnswersTo(ProgramVerb::kCreate, 4);
  REQUIRE_FALSE(driver->Create({.name = "w", .shape = {3}, .servers = {0}}, Raw(value)).ok());
  REQUIRE(cluster.server(0).programs()[0].bytes == value.size() * sizeof(float));

  CHECK(driver->DeleteUnmade().code() == StatusCode::kUnavailable);
  CHECK(driver->DeleteUnmade().ok());
  CHECK(cluster.server(0).programs()[0].bytes == 0);
  CHECK(driver->Find("w").status().code() == StatusCode::kNotFound);
  CHECK(driver->DeleteUnmade().ok());
}

TEST_CASE("an error that comes with a payload ends its connection and not the process",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  LossyRelay relay(cluster.address(0).data().tcp_address());
  std::vector<ProgramClient::Server> servers = cluster.Servers();
  servers[0].target.tcp_address = relay.address();
  const auto client = ProgramClient::Open(servers, cluster.Options(LinkMode::kTcp)).value();
  relay.LoadErrors();

  for (int i = 0; i < 2; ++i) CHECK(client->Find("w").status().code() == StatusCode::kNotFound);

  const VariableHandle w = MakeFloats(*client, {1, 2, 3});
  CHECK(ReadAll<float>(*client, w) == std::vector<float>{1, 2, 3});
}

TEST_CASE("a stopped parameter server is not waited for by a program", "[ps_client][unit]") {
  const ServerProcess server;
  const auto client = server.Client(LinkMode::kAuto);
  const VariableHandle w = MakeFloats(*client, {1, 2, 3});

  server.Stop();
  std::vector<float> into(3);
  const ReadRequest read{.variable = w, .into = std::as_writable_bytes(std::span(into))};
  const auto start = std::chrono::steady_clock::now();
  const Status status = client->Read(std::span(&read, 1));

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status).find("its process is stopped") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < Millis(20'000));
}

}  // namespace muster::ps
