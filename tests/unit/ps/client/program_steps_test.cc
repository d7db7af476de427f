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

}  // namespace
}  // namespace muster::ps
