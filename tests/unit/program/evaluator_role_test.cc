#include "program/evaluator_role.h"

#include "muster/v1/program.pb.h"
#include "tests/support/catch.h"

namespace muster::program::internal {
namespace {

TEST_CASE("figures whose names are no UTF-8 arrive all the same", "[program][unit]") {
  const auto ends = process::MessagePipe::MakePair();
  REQUIRE(ends.ok());
  process::MessagePipe ours(ends->first);
  process::MessagePipe daemons(ends->second);
  EvaluatorRuntime evaluator(ours);

  evaluator.Evaluated("folder/\xff", {{"caf\xe9", 0.5}, {"loss", 2}});

  v1::FromProgram message;
  REQUIRE(ToString(daemons.Receive(message, Millis(20'000))) == "OK");
  const v1::ProgramEvaluation& evaluation = message.evaluation();
  CHECK(evaluation.checkpoint() == "folder/\\xff");
  CHECK(evaluation.values().at("caf\\xe9") == 0.5);
  CHECK(evaluation.values().at("loss") == 2);
}

}  // namespace
}  // namespace muster::program::internal
