#include "common/cluster/roles.h"

#include "tests/support/catch.h"

namespace muster::cluster {
namespace {

const ClusterSpec kPsCluster = ClusterSpec::Dense(
    {{"chief", {"c:1"}}, {"worker", {"w0:1", "w1:1"}}, {"ps", {"p0:1", "p1:1"}}});
const ClusterSpec kWorkers = ClusterSpec::Dense({{"worker", {"w0:1", "w1:1", "w2:1"}}});

std::string Error(const ClusterSpec& spec, const TaskId& task) {
  const Status status = ValidateRoles(spec, task);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  return Message(status);
}

TEST_CASE("a job of another name is refused", "[cluster][unit][spec][CSP-08][PSS-06]") {
  const ClusterSpec spec = ClusterSpec::Dense({{"worker", {"a:1"}}, {"wroker", {"b:1"}}});
  const ClusterSpec old = ClusterSpec::Dense({{"master", {"a:1"}}, {"worker", {"b:1"}}});

  CHECK(Error(spec, {"worker", 0}) ==
        "Disallowed task type found in cluster spec: \"wroker\"; chief, worker, ps and evaluator "
        "are allowed; did you mean \"worker\"?");
  CHECK(Error(old, {"worker", 0}).find("\"master\" is the old name of \"chief\"") !=
        std::string::npos);
  CHECK(Error(old, {}).find("Disallowed") == 0);
  CHECK(ValidateRoles(kPsCluster, {"ps", 1}).ok());
  CHECK(ValidateRoles(kPsCluster, {}).ok());
}

TEST_CASE("a task of another type is refused", "[cluster][unit][spec][CSP-09]") {
  CHECK(Error(kWorkers, {"foobar", 0}).find("Unrecognized task_type: foobar") == 0);
  CHECK(Error(kWorkers, {"evaluater", 0}).find("did you mean \"evaluator\"?") != std::string::npos);
}

TEST_CASE("a task of a job that is not there is refused, an evaluator is not",
          "[cluster][unit][spec][CSP-10]") {
  CHECK(Error(kWorkers, {"ps", 0}).find("task_type ps not found in cluster_spec") == 0);
  CHECK(Error(kWorkers, {"chief", 0}).find("not found in cluster_spec") != std::string::npos);
  CHECK(ValidateRoles(kWorkers, {"evaluator", 0}).ok());
}

TEST_CASE("there is at most one chief and one evaluator", "[cluster][unit][spec][CSP-11]") {
  const ClusterSpec chiefs = ClusterSpec::Dense({{"chief", {"a:1", "b:1"}}, {"worker", {"c:1"}}});
  const ClusterSpec evaluators =
      ClusterSpec::Dense({{"worker", {"c:1"}}, {"evaluator", {"a:1", "b:1", "d:1"}}});

  CHECK(Error(chiefs, {"worker", 0}) ==
        "2 tasks of job 'chief' are given; there must be at most one 'chief' job");
  CHECK(Error(evaluators, {"worker", 0}) ==
        "3 tasks of job 'evaluator' are given; there must be at most one 'evaluator' job");
}

TEST_CASE("an index beyond the list is refused", "[cluster][unit][spec][CSP-12]") {
  CHECK(Error(kPsCluster, {"worker", 2}).find("task_id 2 exceeds the maximum id of worker") == 0);
  CHECK(Error(kWorkers, {"worker", 7}) == "task_id 7 exceeds the maximum id of worker, which is 2");
  CHECK(Error(kWorkers, {"worker", -1}).find("task_id -1 is not among") == 0);
  CHECK(Error(ClusterSpec::Dense({{"ps", {}}}), {"ps", 0}).find("has no tasks") !=
        std::string::npos);
}

TEST_CASE("a sparse job is checked by its indices, not by their number",
          "[cluster][unit][spec][CSP-12]") {
  const ClusterSpec sparse =
      ClusterSpec::Create({{"ps", {{0, "p:1"}}}, {"worker", {{3, "w:1"}}}}).value();

  CHECK(ValidateRoles(sparse, {"worker", 3}).ok());
  CHECK(Error(sparse, {"worker", 0}).find("task_id 0 is not among the tasks of worker") == 0);
}

TEST_CASE("who is chief", "[cluster][unit][spec][CSP-13]") {
  CHECK(IsChief(kPsCluster, {"chief", 0}).value());
  CHECK_FALSE(IsChief(kPsCluster, {"worker", 0}).value());
  CHECK_FALSE(IsChief(kPsCluster, {"ps", 0}).value());
  CHECK(IsChief(kWorkers, {"worker", 0}).value());
  CHECK_FALSE(IsChief(kWorkers, {"worker", 1}).value());
  CHECK(IsChief(kWorkers, {"evaluator", 0}).value());
  CHECK_FALSE(IsChief(kWorkers, {"worker", 3}).ok());
}

TEST_CASE("chief and workers count together, evaluators apart", "[cluster][unit][spec][CSP-14]") {
  const ClusterSpec with_evaluator =
      ClusterSpec::Dense({{"worker", {"a:1", "b:1", "c:1"}}, {"evaluator", {"e:1"}}});

  CHECK(WorkerCount(kPsCluster, "chief").value() == 3);
  CHECK(WorkerCount(kPsCluster, "worker").value() == 3);
  CHECK(WorkerCount(with_evaluator, "worker").value() == 3);
  CHECK(WorkerCount(with_evaluator, "evaluator").value() == 1);
  CHECK(WorkerCount(kPsCluster, "ps").status().code() == StatusCode::kInvalidArgument);
  CHECK(WorkerCount(kWorkers, "chief").status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("the workers come after the chief", "[cluster][unit][spec][CSP-15]") {
  const ClusterSpec sparse =
      ClusterSpec::Create({{"worker", {{1, "w:1"}, {4, "w:2"}, {6, "w:3"}}}}).value();

  CHECK(IdInCluster(kPsCluster, {"worker", 1}).value() == 2);
  CHECK(IdInCluster(kWorkers, {"worker", 1}).value() == 1);
  CHECK(IdInCluster(kWorkers, {"worker", 2}).value() == 2);
  CHECK(IdInCluster(sparse, {"worker", 4}).value() == 1);
  CHECK(IdInCluster(kPsCluster, {"chief", 0}).value() == 0);
  CHECK(IdInCluster(kPsCluster, {"evaluator", 0}).value() == 0);
  CHECK(IdInCluster(kPsCluster, {"ps", 0}).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("ps leads the coordination, else the chief, else the first worker",
          "[cluster][unit][spec][CSP-16]") {
  CHECK(CoordinationLeader(kPsCluster) == TaskId{"ps", 0});
  CHECK(CoordinationLeader(kPsCluster.Without("ps")) == TaskId{"chief", 0});
  CHECK(CoordinationLeader(kWorkers) == TaskId{"worker", 0});
  CHECK_FALSE(CoordinationLeader(ClusterSpec()).has_value());
}

}  // namespace
}  // namespace muster::cluster
