// Synchronous steps of a program, through real sockets.
#include "muster/v1/job_spec.pb.h"
#include "ps/client/program_client.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/program_cluster.h"

namespace muster::ps {
namespace {

using testing::ProgramCluster;
using testing::Raw;
using testing::ReadAll;

using Floats = std::vector<float>;

WriteSet OfStep(std::uint64_t closure, std::uint64_t step, std::uint64_t attempt = 1) {
  return {ClosureId(closure), Attempt(attempt), step};
}

TEST_CASE("closures of a step read what the steps before have made of all servers",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  ProgramCluster cluster(2);
  const auto driver = cluster.Client(link);
  const auto executor = cluster.Client(link);
  const auto w = driver->Create(
      {.name = "w", .dtype = DType::kFloat32, .shape = {4}, .servers = {0, 1}}, Raw(Floats(4)));
  REQUIRE(w.ok());
  v1::OptimizerSpec sgd;
  sgd.set_kind(v1::OPTIMIZER_KIND_SGD);
  const std::vector<VariableHandle> variables{*w};
  REQUIRE(driver->Attach(variables, sgd).ok());
  const Floats ones(4, 1);
  const auto push = [&](std::uint64_t closure, std::uint64_t step) {
    WriteSet set = OfStep(closure, step);
    REQUIRE(set.Gradient(*w, {.bytes = Raw(ones)}, 0.5).ok());
    REQUIRE(executor->Flush(set).ok());
  };
  push(1, 1);
  push(2, 1);
  // A closure of the step that runs again, whatever it has pushed, reads as at first.
  WriteSet again = OfStep(2, 1, 2);
  CHECK(ReadAll<float>(*executor, *w, &again) == Floats(4));
  CHECK(ReadAll<float>(*driver, *w) == Floats(4));

  WriteSet next = OfStep(3, 2);
  CHECK(ReadAll<float>(*executor, *w, &next) == Floats(4, -1));
  push(3, 2);
  CHECK(ReadAll<float>(*driver, *w) == Floats(4, -1));

  REQUIRE(driver->EndSteps(3).ok());
  CHECK(ReadAll<float>(*driver, *w) == Floats(4, -1.5));
}

TEST_CASE("what a closure of a step writes it sees over the beginning of the step",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  const auto count = client->Create(
      {.name = "n", .dtype = DType::kFloat32, .shape = {}, .servers = {0}}, Raw(Floats{5}));
  REQUIRE(count.ok());
  const Floats one{1};
  WriteSet first = OfStep(1, 1);
  REQUIRE(first.Update(*count, ElementOp::kAdd, {.bytes = Raw(one)}).ok());
  CHECK(ReadAll<float>(*client, *count, &first) == Floats{6});
  REQUIRE(client->Flush(first).ok());
  WriteSet second = OfStep(2, 1);
  CHECK(ReadAll<float>(*client, *count, &second) == Floats{5});
  REQUIRE(second.Update(*count, ElementOp::kAdd, {.bytes = Raw(one)}).ok());
  REQUIRE(client->Flush(second).ok());
  REQUIRE(client->EndSteps(2).ok());
  CHECK(ReadAll<float>(*client, *count) == Floats{7});
}

TEST_CASE("what parts of a closure have sent counts before what the closure writes behind it",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto client = cluster.Client();
  const auto made = client->Create(
      {.name = "n", .dtype = DType::kFloat32, .shape = {}, .servers = {0}}, Raw(Floats{0}));
  REQUIRE(made.ok());
  const VariableHandle& n = *made;
  const auto write = [&](WriteSet& set, ElementOp op, float number) {
    REQUIRE(set.Update(n, op, {.bytes = Raw(Floats{number})}).ok());
  };
  // The same each time, but for who sends first, and for where it ends.
  const auto run = [&](std::uint64_t attempt, bool second_first, bool dies) {
    WriteSet set = OfStep(1, 1, attempt);
    WriteSet first(set, 1);
    WriteSet second(set, 2);
    write(set, ElementOp::kAssign, 1);
    REQUIRE(client->Flush(set).ok());
    write(set, ElementOp::kAdd, 1);
    for (int round = 0; round < 2; ++round) {
      write(first, ElementOp::kAdd, 10);
      write(second, ElementOp::kAdd, 100);
      REQUIRE(client->Flush(second_first ? second : first).ok());
      if (dies) return;
      REQUIRE(client->Flush(second_first ? first : second).ok());
      set.Take(first);
      set.Take(second);
      write(set, ElementOp::kMul, 2);
    }
    REQUIRE(client->Flush(set).ok());
  };

  run(1, false, true);
  run(2, true, false);
  run(3, false, false);
  REQUIRE(client->EndSteps(2).ok());
  CHECK(ReadAll<float>(*client, n) == Floats{((2 + 110) * 2 + 110) * 2});
}

}  // namespace
}  // namespace muster::ps
