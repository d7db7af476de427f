#include "common/cluster/tf_config.h"

#include "tests/support/catch.h"

namespace muster::cluster {
namespace {

std::string Error(std::string_view text) {
  const Status status = FromTfConfig(text).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  return Message(status);
}

TEST_CASE("TF_CONFIG tells a daemon its cluster, its task, its address and its coordinator",
          "[cluster][unit][spec][TFC-01]") {
  const TaskConfig config =
      FromTfConfig(R"({"cluster": {"chief": ["c:1"], "ps": ["p0:1", "p1:2"], "worker": ["w:1"]},
                       "task": {"type": "ps", "index": 1}, "environment": "cloud"})")
          .value();

  CHECK(config.task == TaskId{"ps", 1});
  CHECK(config.address == "p1:2");
  CHECK(config.coordinator == "c:1");
  CHECK(config.cluster.NumTasks("ps").value() == 2);
}

TEST_CASE("without a chief there is no coordinator in TF_CONFIG", "[cluster][unit]") {
  const TaskConfig config =
      FromTfConfig(R"({"cluster": {"worker": ["w0:1", "w1:1"]}, "task": {"type": "worker",
                       "index": "1"}})")
          .value();

  CHECK(config.coordinator.empty());
  CHECK(config.address == "w1:1");
}

TEST_CASE("an evaluator takes no part in training and need not be listed", "[cluster][unit]") {
  const TaskConfig alone =
      FromTfConfig(
          R"({"cluster": {"worker": ["w0:1"]}, "task": {"type": "evaluator", "index": 0}})")
          .value();
  const TaskConfig listed = FromTfConfig(R"({"cluster": {"worker": ["w0:1"], "evaluator": ["e:1"]},
                                            "task": {"type": "evaluator", "index": 0}})")
                                .value();

  CHECK(alone.address.empty());
  CHECK(listed.address == "e:1");
  CHECK_FALSE(listed.TrainingCluster().HasJob("evaluator"));
  CHECK(listed.TrainingCluster().HasJob("worker"));
}

TEST_CASE("sparse forms are read, Kubeflow's among them", "[cluster][unit][spec][TFC-07]") {
  const TaskConfig sparse = FromTfConfig(R"({"cluster": {"ps": ["p:1"], "worker": {"3": "w3:1"}},
                       "task": {"type": "worker", "index": 3}})")
                                .value();
  const TaskConfig kubeflow =
      FromTfConfig(R"({"sparseCluster": {"ps": ["p0:1", "p1:1"], "worker": {"2": "w2:1"}},
                       "task": {"type": "worker", "index": 2}})")
          .value();
  const TaskConfig lone_ps = FromTfConfig(R"({"sparseCluster": {"ps": ["p4:1"], "worker": {}},
                                             "task": {"type": "ps", "index": 4}})")
                                 .value();

  CHECK(sparse.address == "w3:1");
  CHECK(kubeflow.address == "w2:1");
  CHECK(kubeflow.cluster.NumTasks("ps").value() == 2);
  CHECK(lone_ps.address == "p4:1");
}

TEST_CASE("a TF_CONFIG that is not JSON is refused with the place", "[cluster][unit]") {
  CHECK(Error("{\"cluster\": {").find("TF_CONFIG: not JSON: parse error at line 1, column 14") ==
        0);
  CHECK(Error("").find("TF_CONFIG: not JSON: ") == 0);
  CHECK(Error("[1, 2]").find("TF_CONFIG: a list is given;") == 0);
  CHECK(Error(std::string(100'000, '[')).find("TF_CONFIG: not JSON: ") == 0);
  CHECK(Error("\xff\xfe").find("TF_CONFIG: not JSON: ") == 0);
}

TEST_CASE("a bad address is refused with its task", "[cluster][unit]") {
  CHECK(Error(R"({"cluster": {"worker": ["a:1", "b:65536"]}, "task": {"type": "worker",
                  "index": 0}})") ==
        "TF_CONFIG: address of worker:1: \"b:65536\": port 65536 is out of range; 1 to 65535 is "
        "allowed");
  CHECK(Error(R"({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}})") ==
        "TF_CONFIG: address of worker:0: \"a\" is not host:port");
  CHECK(Error(R"({"cluster": {"worker": ["a:1"], "ps": ["a:1"]}, "task": {"type": "worker",
                  "index": 0}})") == "TF_CONFIG: ps:0 and worker:0 have the same address a:1");
}

TEST_CASE("two chiefs are refused, in one list or as one key twice", "[cluster][unit]") {
  CHECK(Error(R"({"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}})")
            .find("TF_CONFIG: 2 tasks of job 'chief' are given") == 0);
  CHECK(Error(R"({"cluster": {"chief": ["a:1"], "chief": ["b:1"]}, "task": {"type": "chief",
                  "index": 0}})") == "TF_CONFIG: \"chief\" is given twice in one object");
}

TEST_CASE("a task that the cluster does not have is refused", "[cluster][unit]") {
  CHECK(
      Error(R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}})") ==
      "TF_CONFIG: task_id 2 exceeds the maximum id of worker, which is 1");
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})")
            .find("TF_CONFIG: task_type ps not found") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}})")
            .find("TF_CONFIG: task.index: a number (-1) is not an index") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1.5}})")
            .find("TF_CONFIG: task.index: a number (1.5) is not an index") == 0);
}

TEST_CASE("parts that are missing or of another form are named", "[cluster][unit]") {
  CHECK(Error("{}").find("TF_CONFIG: no cluster;") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}})").find("TF_CONFIG: no task.type;") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})")
            .find("TF_CONFIG: no task.index;") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": "worker"})")
            .find("TF_CONFIG: task is text (\"worker\");") == 0);
  CHECK(Error(R"({"cluster": {"worker": ["a:1"]}, "task": {"type": [], "index": 0}})")
            .find("TF_CONFIG: task.type is a list;") == 0);
  CHECK(Error(R"({"cluster": {"worker": 3}})").find("TF_CONFIG: cluster.worker: a number (3)") ==
        0);
  CHECK(Error(R"({"cluster": {}, "sparseCluster": {}})").find("TF_CONFIG: both cluster and") == 0);
  CHECK(Error(R"({"rpc_layer": 1})").find("TF_CONFIG: rpc_layer is a number (1);") == 0);
}

}  // namespace
}  // namespace muster::cluster
