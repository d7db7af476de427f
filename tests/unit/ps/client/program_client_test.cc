// A program's variables through real sockets: driver and executors with servers in this process.
#include "ps/client/program_client.h"

#include <atomic>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/program_cluster.h"

namespace muster::ps {
namespace {

using testing::Gather;
using testing::kProgram;
using testing::ProgramCluster;
using testing::Raw;
using testing::ReadAll;
using testing::Reads;
using testing::ReadsSince;

using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;
using Longs = std::vector<std::int64_t>;

VariableHandle Make(ProgramClient& client, const std::string& name,
                    const std::vector<std::int64_t>& shape, const Floats& value,
                    const std::vector<std::uint32_t>& servers) {
  const auto made = client.Create(
      {.name = name, .dtype = DType::kFloat32, .shape = shape, .servers = servers}, Raw(value));
  REQUIRE(made.ok());
  return *made;
}

VariableHandle Counter(ProgramClient& client, const std::string& name,
                       const std::vector<std::uint32_t>& servers = {0}) {
  const Longs zeros(servers.size());
  const auto made = client.Create({.name = name,
                                   .dtype = DType::kInt64,
                                   .shape = {static_cast<std::int64_t>(servers.size())},
                                   .servers = servers},
                                  Raw(zeros));
  REQUIRE(made.ok());
  return *made;
}

Floats Iota(std::size_t n) {
  Floats values(n);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

v1::OptimizerSpec Sgd() {
  v1::OptimizerSpec spec;
  spec.set_kind(v1::OPTIMIZER_KIND_SGD);
  return spec;
}

}  // namespace

TEST_CASE("an executor finds by name what the driver has made, on every link",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const auto executor = cluster.Client(link);
  const VariableHandle made = Make(*driver, "w", {5, 2}, Iota(10), {0, 1});

  const auto found = executor->Find("w");
  REQUIRE(found.ok());
  CHECK((*found)->id == made->id);
  CHECK((*found)->shape == std::vector<std::int64_t>{5, 2});
  CHECK(ReadAll<float>(*executor, *found) == Iota(10));
  CHECK(executor->Find("v").status().code() == StatusCode::kNotFound);
  const LinkBytes bytes = executor->bytes();
  CHECK((link == LinkMode::kTcp ? bytes.tcp : bytes.local) == 40);
  CHECK((link == LinkMode::kTcp ? bytes.local : bytes.tcp) == 0);
}

TEST_CASE("variables come and go while others are used", "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {2}, {1, 2}, {0});

  const VariableHandle later = Make(*driver, "later", {2}, {3, 4}, {0});
  REQUIRE(driver->Delete(w).ok());
  CHECK(ReadAll<float>(*driver, later) == Floats{3, 4});
  Floats into(2);
  const ReadRequest gone{.variable = w, .into = std::as_writable_bytes(std::span(into))};
  CHECK(driver->Read(std::span(&gone, 1)).code() == StatusCode::kNotFound);
  const VariableHandle again = Make(*driver, "w", {2}, {5, 6}, {0});
  CHECK(again->id != w->id);
  CHECK(cluster.server(0).programs().at(0).bytes == 16);
}

TEST_CASE("a variable that cannot be made leaves nothing behind", "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {2}, {1, 2}, {1});
  const VariableSpec other{.name = "x", .shape = {2}, .servers = {0, 1}};
  const auto refused = [&](const VariableSpec& spec, StatusCode code) {
    v1::Initializer zeros;
    CHECK(driver->Create(spec, zeros, 0).status().code() == code);
  };

  VariableSpec spec = other;
  spec.name = "w";
  refused(spec, StatusCode::kAlreadyExists);
  spec = other;
  spec.name = "\xff";
  refused(spec, StatusCode::kInvalidArgument);
  CHECK(Message(driver->Find(spec.name).status()) == R"(variable \xff: its name is not UTF-8)");
  spec = other;
  spec.servers = {0, 2};
  refused(spec, StatusCode::kInvalidArgument);
  spec = other;
  spec.servers = {0, 1, 0};
  refused(spec, StatusCode::kInvalidArgument);
  spec = other;
  spec.shape = {1LL << 36, 16};
  refused(spec, StatusCode::kResourceExhausted);
  CHECK(driver->Create(other, Raw(Floats{1})).status().code() == StatusCode::kInvalidArgument);
  CHECK(cluster.server(0).programs().at(0).bytes == 0);
  CHECK(cluster.server(1).programs().at(0).bytes == 8);
}

TEST_CASE("rows are divided evenly over shards, whole values and scatters are as of one variable",
          "[ps_client][unit][spec][SHV-09][SHV-10]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const VariableHandle w = Make(*driver, "w", {5, 2}, Iota(10), {0, 1});
  REQUIRE(w->shards.size() == 2);
  CHECK(w->shards[0].rows == 3);
  CHECK(w->shards[1].rows == 2);
  CHECK(ReadAll<float>(*driver, w) == Iota(10));

  WriteSet writes;
  const Floats twos(10, 2);
  REQUIRE(writes.Update(w, ElementOp::kAssign, {Raw(twos)}).ok());
  REQUIRE(writes.Update(w, ElementOp::kAdd, {Raw(Iota(10))}).ok());
  REQUIRE(writes.Update(w, ElementOp::kSub, {Raw(twos)}).ok());
  REQUIRE(driver->Flush(writes).ok());
  CHECK(ReadAll<float>(*driver, w) == Iota(10));
}

TEST_CASE("a scatter on shards is that on one variable, for every operation",
          "[ps_client][unit][spec][SHV-11][SHV-12]") {
  const auto op = GENERATE(ElementOp::kAssign, ElementOp::kAdd, ElementOp::kSub, ElementOp::kMul,
                           ElementOp::kDiv, ElementOp::kMin, ElementOp::kMax);
  ProgramCluster cluster(3);
  const auto driver = cluster.Client();
  const auto check = [&](const std::string& name, std::size_t rows, const Ids& ids) {
    Floats value = Iota(rows);
    const auto n = static_cast<std::int64_t>(rows);
    const VariableHandle split = Make(*driver, name, {n}, value, {0, 1, 2});
    const VariableHandle whole = Make(*driver, name + "/whole", {n}, value, {0});
    Floats operands(ids.size());
    std::iota(operands.begin(), operands.end(), 7.0F);
    WriteSet writes;
    REQUIRE(writes.Scatter(split, op, ids, {Raw(operands)}).ok());
    REQUIRE(writes.Scatter(whole, op, ids, {Raw(operands)}).ok());
    REQUIRE(driver->Flush(writes).ok());

    CHECK(ReadAll<float>(*driver, split) == ReadAll<float>(*driver, whole));
    CHECK(ReadAll<float>(*driver, split) != value);
  };
  check("a", 30, {0, 10, 12, 21, 22});
  check("b", 32, {0, 10, 11, 12, 30, 31});
  check("c", 30, {29, 0, 29, 15});
}

TEST_CASE("rows are gathered by id, in the order asked for, from their shards alone",
          "[ps_client][unit][spec][SHV-14][SHV-18]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(3);
  const auto driver = cluster.Client(link);
  const Floats table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const VariableHandle w = Make(*driver, "w", {5, 2}, table, {0, 1, 2});

  std::vector<ReadCounts> before = driver->reads();
  CHECK(Gather<float>(*driver, w, {0, 3, 4}) == Floats{1, 2, 7, 8, 9, 10});
  CHECK(ReadsSince(before, *driver) == Reads{{1, 1}, {1, 1}, {1, 1}});
  before = driver->reads();
  CHECK(Gather<float>(*driver, w, {4, 0, 4}) == Floats{9, 10, 1, 2, 9, 10});
  CHECK(ReadsSince(before, *driver) == Reads{{1, 1}, {0, 0}, {1, 1}});
  before = driver->reads();
  CHECK(Gather<float>(*driver, w, {}).empty());
  CHECK(ReadsSince(before, *driver) == Reads{{0, 0}, {0, 0}, {0, 0}});
  const LinkBytes bytes = driver->bytes();
  // The value once, and six rows with their ids.
  CHECK(bytes.tcp + bytes.local >= 6 * 16);
  CHECK(bytes.tcp + bytes.local <= 40 + 6 * 16);
  Floats into(2);
  const Ids far = {5};
  const ReadRequest beyond{
      .variable = w, .rows = true, .ids = far, .into = std::as_writable_bytes(std::span(into))};
  const Status refused = driver->Read(std::span(&beyond, 1));
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK(Message(refused).find("variable w: id 5") != std::string::npos);
}

TEST_CASE("values split three ways come back as one and as two", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(3);
  const auto driver = cluster.Client(link);
  const Floats value = Iota(7 * 3);
  v1::OptimizerSpec momentum;
  momentum.set_kind(v1::OPTIMIZER_KIND_MOMENTUM);
  Floats saved = value;
  Floats slot(saved.size());
  std::uint64_t updates = 0;
  const std::vector<std::vector<std::uint32_t>> splits = {{0}, {0, 1, 2}, {2, 0}};

  for (std::size_t i = 0; i < splits.size(); ++i) {
    const VariableHandle w =
        Make(*driver, fmt::format("w{}", i), {7, 3}, Floats(value.size()), splits[i]);
    const VariableHandle handles[] = {w};
    REQUIRE(driver->Attach(handles, momentum, updates).ok());
    WriteSet restore;
    REQUIRE(restore.Update(w, ElementOp::kAssign, {Raw(saved)}).ok());
    REQUIRE(restore.Update(w, ElementOp::kAssign, {Raw(slot)}, 1).ok());
    REQUIRE(driver->Flush(restore).ok());
    CHECK(ReadAll<float>(*driver, w) == saved);

    WriteSet step;
    REQUIRE(step.Gradient(w, {Raw(value)}, 0.5).ok());
    REQUIRE(driver->Flush(step).ok());
    saved = ReadAll<float>(*driver, w);
    slot = ReadAll<float>(*driver, w, nullptr, 1);
    updates = driver->Updates(w).value();
    CHECK(updates == i + 1);
  }
  // Velocities of three steps with the same gradient: 1, 1.9, 2.71.
  CHECK(slot[20] == Approx(20 * 2.71));
  CHECK(saved[20] == Approx(20 - 0.5 * 20 * (1 + 1.9 + 2.71)));
}

TEST_CASE("a write set is applied once, however often and by whichever attempt it is sent",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const VariableHandle count = Counter(*driver, "count", {0, 1});
  const Longs one = {1, 1};
  const auto run = [&](std::uint64_t attempt) {
    WriteSet writes(ClosureId(7), Attempt(attempt));
    for (int flush = 0; flush < 3; ++flush) {
      REQUIRE(writes.Update(count, ElementOp::kAdd, {Raw(one)}).ok());
      MUSTER_TRY(driver->Flush(writes));
    }
    return Ok();
  };

  CHECK(run(1).ok());
  CHECK(run(1).ok());
  CHECK(run(2).ok());
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{3, 3});
  CHECK(run(1).code() == StatusCode::kAborted);
  driver->SetSettled(ClosureId(7));
  CHECK(run(3).code() == StatusCode::kAborted);
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{3, 3});
}

TEST_CASE("a closure sees what it has written and others do not, until it is sent",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {4, 1}, {1, 2, 3, 4}, {0, 1});
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Update(w, ElementOp::kAdd, {Raw(Floats{10, 10, 10, 10})}).ok());
  const Ids ids = {3, 0, 3};
  REQUIRE(own.Scatter(w, ElementOp::kMul, ids, {Raw(Floats{2, 3, 2})}).ok());

  CHECK(ReadAll<float>(*driver, w, &own) == Floats{33, 12, 13, 56});
  CHECK(Gather<float>(*driver, w, {3, 1, 3}, &own) == Floats{56, 12, 56});
  CHECK(ReadAll<float>(*driver, w) == Floats{1, 2, 3, 4});
  REQUIRE(driver->Flush(own).ok());
  CHECK(ReadAll<float>(*driver, w) == Floats{33, 12, 13, 56});
}

TEST_CASE("a gradient of its own is applied before a closure reads", "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {2}, {1, 2}, {0});
  const VariableHandle handles[] = {w};
  REQUIRE(driver->Attach(handles, Sgd()).ok());
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Gradient(w, {Raw(Floats{1, 1})}, 0.5).ok());

  CHECK(ReadAll<float>(*driver, w, &own) == Floats{0.5, 1.5});
  CHECK(own.empty());
}

TEST_CASE("rows of a gradient that name an id twice are added up", "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {4, 2}, Floats(8), {0, 1});
  const VariableHandle handles[] = {w};
  v1::OptimizerSpec adagrad;
  adagrad.set_kind(v1::OPTIMIZER_KIND_ADAGRAD);
  REQUIRE(driver->Attach(handles, adagrad).ok());
  WriteSet own(ClosureId(1), Attempt(1));
  const Ids ids = {3, 0, 3};
  REQUIRE(own.GradientRows(w, ids, {Raw(Floats{1, 2, 5, 5, 2, 4})}, 1).ok());
  REQUIRE(driver->Flush(own).ok());

  // One step of Adagrad from zero goes by the learning rate, whatever the gradient.
  const Floats value = ReadAll<float>(*driver, w);
  CHECK(value[6] == Approx(-1));
  CHECK(value[0] == Approx(-1));
  CHECK(ReadAll<float>(*driver, w, nullptr, 1) == Floats{25, 25, 0, 0, 0, 0, 9, 36});
}

TEST_CASE("a write that does not fit its variable is refused by name, and the set stays as it was",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {3, 2}, Iota(6), {0});
  WriteSet own(ClosureId(1), Attempt(1));
  const auto refused = [&](const Status& status, std::string_view words) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Message(status).find(words) != std::string::npos);
  };
  const Floats six(6);
  const Ids far = {1, 3};

  refused(own.Update(w, ElementOp::kAdd, {Raw(Floats(5))}),
          "variable w (float32): 20 bytes for 3 rows of 8 bytes");
  refused(own.Update(w, ElementOp::kAdd, {.bytes = Raw(six), .dtype = DType::kInt32}),
          "variable w is float32; values of int32 were given");
  refused(own.Scatter(w, ElementOp::kAdd, far, {Raw(Floats(4))}),
          "variable w: row 3 is not in [0, 3)");
  CHECK(own.empty());
  CHECK(own.Update(w, ElementOp::kAdd, {.bytes = Raw(six), .dtype = DType::kFloat32}).ok());
}

TEST_CASE("a gradient that is not finite anywhere is refused before any server has a part of it",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle w = Make(*driver, "w", {4, 2}, Iota(8), {0, 1});
  REQUIRE(driver->Attach(std::span(&w, 1), Sgd()).ok());
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
               -std::numeric_limits<float>::infinity());
  const Ids twice = {0, 3, 3};
  Floats gradient(8, 1);
  gradient[7] = bad;
  WriteSet own(ClosureId(1), Attempt(1));
  const auto refused = [&](const Status& status, std::string_view words) {
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Message(status).find(words) != std::string::npos);
  };

  refused(own.Gradient(w, {Raw(gradient)}, 0.5), "variable w: its gradient is not finite");
  refused(own.GradientRows(w, twice, {Raw(Floats{1, 1, 3e38F, 1, 3e38F, 1})}, 0.5),
          "variable w: its gradient is not finite");
  refused(own.Gradient(w, {Raw(Floats(8, 1))}, -1), "variable w: a learning rate of -1");

  CHECK(own.empty());
  REQUIRE(driver->Flush(own).ok());
  CHECK(ReadAll<float>(*driver, w) == Iota(8));
  std::ranges::fill(gradient, -std::numeric_limits<float>::max());
  REQUIRE(own.Gradient(w, {Raw(gradient)}, 0).ok());
  REQUIRE(driver->Flush(own).ok());
}

TEST_CASE("a gradient of a variable without an optimizer is refused before any server has a part",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const auto executor = cluster.Client();
  const VariableHandle with = Make(*driver, "with", {2}, {0, 0}, {0});
  const VariableHandle without = Make(*driver, "without", {2}, {0, 0}, {1});
  REQUIRE(driver->Attach(std::span(&with, 1), Sgd()).ok());
  ProgramClient& client = GENERATE(true, false) ? *driver : *executor;
  const VariableHandle a = client.Find("with").value();
  const VariableHandle b = client.Find("without").value();
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Gradient(a, {Raw(Floats{1, 1})}, 1).ok());
  REQUIRE(own.Gradient(b, {Raw(Floats{2, 2})}, 1).ok());

  const Status refused = client.Flush(own);

  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused) ==
        "variable without: a gradient, and no optimizer is attached to it; nothing of what is "
        "written with it was sent");
  CHECK(ReadAll<float>(*driver, a) == Floats{0, 0});
  // Whoever attaches it, and it is taken with all others.
  REQUIRE(driver->Attach(std::span(&without, 1), Sgd()).ok());
  REQUIRE(client.Flush(own).ok());
  CHECK(ReadAll<float>(*driver, a) == Floats{-1, -1});
  CHECK(ReadAll<float>(*driver, b) == Floats{-2, -2});
}

TEST_CASE("a gradient of a variable that was made anew is refused as one of a deleted one",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const auto executor = cluster.Client();
  REQUIRE(driver->Delete(Make(*driver, "w", {2}, {0, 0}, {0, 1})).ok());
  const VariableHandle before = Make(*driver, "v", {2}, {0, 0}, {0, 1});
  const VariableHandle found = executor->Find("v").value();
  REQUIRE(driver->Delete(before).ok());
  const VariableHandle again = Make(*driver, "v", {2}, {0, 0}, {0, 1});
  REQUIRE(driver->Attach(std::span(&again, 1), Sgd()).ok());
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Gradient(found, {Raw(Floats{1, 1})}, 1).ok());

  CHECK(executor->Flush(own).code() == StatusCode::kNotFound);
  CHECK(ReadAll<float>(*driver, again) == Floats{0, 0});
}

TEST_CASE("closures that run far ahead of the watermark wait for it", "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  const auto executor = cluster.Client();
  const VariableHandle count = Counter(*driver, "count");
  const Longs one = {1};
  std::atomic<bool> done{false};
  Status status;
  std::thread far([&] {
    WriteSet writes(ClosureId(70'000), Attempt(1));
    status = writes.Update(count, ElementOp::kAdd, {Raw(one)});
    if (status.ok()) status = executor->Flush(writes);
    done = true;
  });
  WriteSet near(ClosureId(2), Attempt(1));
  REQUIRE(near.Update(count, ElementOp::kAdd, {Raw(one)}).ok());
  REQUIRE(driver->Flush(near).ok());
  CHECK_FALSE(done);

  driver->SetSettled(ClosureId(10'000));
  far.join();
  CHECK(status.ok());
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{2});
}

TEST_CASE("threads of two clients write at once and nothing is lost", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const auto executor = cluster.Client(link);
  const VariableHandle count = Counter(*driver, "count", {0, 1});
  const Longs one = {1, 1};
  std::atomic<std::uint64_t> next{1};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ProgramClient& client = t % 2 == 0 ? *driver : *executor;
      for (int i = 0; i < 200; ++i) {
        WriteSet writes = i % 2 == 0 ? WriteSet(ClosureId(next++), Attempt(1)) : WriteSet();
        if (!writes.Update(count, ElementOp::kAdd, {Raw(one)}).ok()) ++failed;
        if (!client.Flush(writes).ok()) ++failed;
        (void)ReadAll<std::int64_t>(client, count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK(failed == 0);
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{800, 800});
}

TEST_CASE("a later driver takes the place of an earlier one, whose clients are told to stop",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto first = cluster.Client();
  const VariableHandle w = Make(*first, "w", {2}, {1, 2}, {0});

  const auto second = cluster.Open(cluster.Options(LinkMode::kAuto, 2));
  REQUIRE(second.ok());
  WriteSet late;
  REQUIRE(late.Update(w, ElementOp::kAssign, {Raw(Floats{9, 9})}).ok());
  CHECK(first->Flush(late).code() == StatusCode::kAborted);
  CHECK((*second)->Find("w").status().code() == StatusCode::kNotFound);
  CHECK(cluster.Open(cluster.Options()).status().code() == StatusCode::kAborted);
  CHECK(cluster.server(0).programs().at(0).bytes == 0);
}

TEST_CASE("a dropped job's memory is free at once, and nobody brings it back",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  (void)Make(*driver, "w", {2}, {1, 2}, {0});

  cluster.server(0).DropProgram(kProgram);
  CHECK(cluster.server(0).programs().empty());
  CHECK(driver->Find("w").status().code() == StatusCode::kAborted);
  CHECK(cluster.Open(cluster.Options()).status().code() == StatusCode::kAborted);
}

TEST_CASE("programs of an epoch that is over are freed and refused", "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client();
  (void)Make(*driver, "w", {2}, {1, 2}, {0});

  cluster.server(0).BeginEpoch(Epoch(2));
  CHECK(cluster.server(0).programs().empty());
  CHECK(driver->Find("w").status().code() == StatusCode::kAborted);
  CHECK(cluster.Open(cluster.Options()).status().code() == StatusCode::kAborted);
  CHECK(cluster.Open(cluster.Options(LinkMode::kAuto, 1, 2)).ok());
}

TEST_CASE("another job's key opens nothing", "[ps_client][unit]") {
  ProgramCluster cluster(1);
  ProgramClient::Options options = cluster.Options();
  options.key = net::JobKey(testing::kToken, "job-8", Epoch(1));
  CHECK(cluster.Open(options).status().code() == StatusCode::kUnauthenticated);
  options.key = net::JobKey(testing::kToken, kProgram, Epoch(2));
  CHECK(cluster.Open(options).status().code() == StatusCode::kUnauthenticated);
}

TEST_CASE("a restarted server is told from the one that had the values", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const VariableHandle w = Make(*driver, "w", {2}, {1, 2}, {0, 1});
  std::vector<ProgramClient::Server> servers = cluster.Servers();
  for (std::size_t i = 0; i < 2; ++i) servers[i].space = driver->spaces()[i];

  cluster.Restart(1);
  servers[1].target = TargetOf(cluster.address(1));
  Floats into(2);
  const ReadRequest read{.variable = w, .into = std::as_writable_bytes(std::span(into))};
  for (int i = 0; i < 2; ++i) {
    const Status lost = driver->Read(std::span(&read, 1));
    CHECK(lost.code() == StatusCode::kUnavailable);
    if (link == LinkMode::kLocal) continue;  // its socket has another name
    CHECK(Message(lost).find("ps:1 (") != std::string::npos);
    CHECK(Message(lost).find("was restarted; its values are lost") != std::string::npos);
  }
  // Nor does an executor that comes later take the empty memory for the driver's.
  const auto executor = ProgramClient::Open(servers, cluster.Options(link));
  CHECK(executor.status().code() == StatusCode::kUnavailable);
}

TEST_CASE("many variables are read in one call, larger than a frame too", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  PsServer::Options small;
  small.stage_budget_bytes = 4 << 20;
  ProgramCluster cluster(2, small);
  const auto driver = cluster.Client(link);
  constexpr std::size_t kEach = 6 << 20;  // floats
  std::vector<VariableHandle> variables;
  std::vector<Floats> into;
  std::vector<ReadRequest> requests;
  v1::Initializer normal;
  normal.set_kind(v1::INITIALIZER_KIND_NORMAL);
  for (int i = 0; i < 4; ++i) {
    const auto made = driver->Create({.name = fmt::format("v{}", i),
                                      .shape = {kEach},
                                      .servers = {static_cast<std::uint32_t>(i) % 2}},
                                     normal, 7);
    REQUIRE(made.ok());
    variables.push_back(*made);
    into.emplace_back(kEach);
  }
  for (int i = 0; i < 4; ++i) {
    requests.push_back(
        {.variable = variables[static_cast<std::size_t>(i)],
         .into = std::as_writable_bytes(std::span(into[static_cast<std::size_t>(i)]))});
  }

  REQUIRE(driver->Read(requests).ok());
  for (int i = 0; i < 4; ++i) {
    CHECK(into[static_cast<std::size_t>(i)] ==
          ReadAll<float>(*driver, variables[static_cast<std::size_t>(i)]));
    CHECK(into[static_cast<std::size_t>(i)][kEach - 1] != 0);
  }
}

}  // namespace muster::ps
