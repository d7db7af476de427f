#include "common/cluster/slurm_resolver.h"

#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"

namespace muster::cluster {
namespace {

using Strings = std::vector<std::string>;

Environment Step(int rank, const std::string& nodes, const std::string& tasks_per_node, int tasks,
                 std::map<std::string, std::string> more = {}) {
  more["SLURM_PROCID"] = std::to_string(rank);
  more["SLURM_STEP_NODELIST"] = nodes;
  more["SLURM_STEP_TASKS_PER_NODE"] = tasks_per_node;
  more["SLURM_STEP_NUM_TASKS"] = std::to_string(tasks);
  return FixedEnvironment(std::move(more));
}

std::unique_ptr<SlurmResolver> Resolver(const Environment& environment,
                                        SlurmResolver::Options options = {}) {
  return SlurmResolver::Create(environment, std::move(options)).value();
}

Status Refused(const Environment& environment, SlurmResolver::Options options = {}) {
  return SlurmResolver::Create(environment, std::move(options)).status();
}

TEST_CASE("a host list is expanded in its own order", "[cluster][unit][spec][SLU-01]") {
  CHECK(ExpandHostList("n[1-2],m5,o[3-4,6,7-9]").value() ==
        Strings{"n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"});
  CHECK(ExpandHostList("n[0001-0003]").value() == Strings{"n0001", "n0002", "n0003"});
  CHECK(ExpandHostList("n[8-11]").value() == Strings{"n8", "n9", "n10", "n11"});
  CHECK(ExpandHostList("n[08-10]").value() == Strings{"n08", "n09", "n10"});
  CHECK(ExpandHostList("n1").value() == Strings{"n1"});
  CHECK(ExpandHostList("n[2147483646-2147483647]").value() ==
        Strings{"n2147483646", "n2147483647"});
  CHECK(ExpandHostList("r[1-2]n[3,5]-ib").value() ==
        Strings{"r1n3-ib", "r1n5-ib", "r2n3-ib", "r2n5-ib"});
}

TEST_CASE("a bad host list is refused", "[cluster][unit][spec][SLU-01]") {
  for (const char* bad :
       {"", "n[1-2", "n1-2]", "n[2-1]", "n[a]", "n[]", "n[1-],m", "a,,b", "n[[1]]",
        "n[1-999999999]", "n[1-60000],m[1-60000]", "n[0-300][0-300]", "a,"}) {
    INFO(bad);
    CHECK(ExpandHostList(bad).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("tasks per node are expanded", "[cluster][unit][spec][SLU-02]") {
  CHECK(ExpandTasksPerNode("3(x2),2,11(x4)").value() == std::vector<int>{3, 3, 2, 11, 11, 11, 11});
  CHECK(ExpandTasksPerNode("7").value() == std::vector<int>{7});
  CHECK(ExpandTasksPerNode("1,2(x3)").value() == std::vector<int>{1, 2, 2, 2});
  for (const char* bad :
       {"", "x", "3(x)", "3(x2", "3(2)", "3(x0)", "3,,2", "-1", "(x2)", "3 (x2)", "1(x99999999)"}) {
    INFO(bad);
    CHECK(ExpandTasksPerNode(bad).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("by default every task is a worker on port 8888", "[cluster][unit][spec][SLU-03]") {
  const auto resolver =
      Resolver(Step(0, "t02n13,t02n41,t02n43", "1(x3)", 3, {{"CUDA_VISIBLE_DEVICES", "0,1"}}));

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense({{"worker", {"t02n13:8888", "t02n41:8888", "t02n43:8888"}}}));
  CHECK(resolver->NumAccelerators().value() == AcceleratorCounts{{"GPU", 2}});
  CHECK(resolver->VisibleGpus() == "0,1");
}

TEST_CASE("jobs take their tasks in name order", "[cluster][unit][spec][SLU-04]") {
  const auto resolver =
      Resolver(Step(0, "t02n[13,41,43]", "1(x3)", 3), {.jobs = {{"worker", 2}, {"ps", 1}}});

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense({{"ps", {"t02n13:8888"}}, {"worker", {"t02n41:8888", "t02n43:8888"}}}));
  CHECK(resolver->TaskType().value() == "ps");
  CHECK(resolver->TaskId().value() == 0);
  CHECK(resolver->Master().value() == "grpc://t02n13:8888");
}

TEST_CASE("tasks of a node have ports and GPUs of their own", "[cluster][unit][spec][SLU-05]") {
  const auto resolver =
      Resolver(Step(1, "t02n[13,41,43]", "2(x2),1", 5),
               {.jobs = {{"ps", 1}, {"worker", 4}}, .gpus_per_node = 2, .gpus_per_task = 1});

  CHECK(resolver->Cluster().value() ==
        ClusterSpec::Dense(
            {{"ps", {"t02n13:8888"}},
             {"worker", {"t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"}}}));
  CHECK(resolver->TaskType().value() == "worker");
  CHECK(resolver->TaskId().value() == 0);
  CHECK(resolver->Master().value() == "grpc://t02n13:8889");
  CHECK(resolver->VisibleGpus() == "1");

  const auto last =
      Resolver(Step(4, "t02n[13,41,43]", "2(x2),1", 5), {.jobs = {{"ps", 1}, {"worker", 4}},
                                                         .port_base = 100,
                                                         .gpus_per_node = 2,
                                                         .gpus_per_task = 1});
  CHECK(last->Cluster().value().TaskAddress("worker", 3).value() == "t02n43:100");
  CHECK(last->TaskId().value() == 3);
  CHECK(last->VisibleGpus() == "0");
}

TEST_CASE("a task may have several GPUs", "[cluster][unit][spec][SLU-06]") {
  const SlurmResolver::Options options{.gpus_per_node = 4, .gpus_per_task = 2};
  const auto second = Resolver(Step(1, "n[1-2]", "2(x2)", 4), options);
  const auto third = Resolver(Step(2, "n[1-2]", "2(x2)", 4), options);

  CHECK(second->VisibleGpus() == "2,3");
  CHECK(third->VisibleGpus() == "0,1");
  CHECK(second->NumAccelerators().value() == AcceleratorCounts{{"GPU", 2}});
}

TEST_CASE("what the step does not have is refused", "[cluster][unit][spec][SLU-07]") {
  const Environment step = Step(0, "n[1-2]", "2(x2)", 4);

  CHECK(ToString(Refused(step, {.gpus_per_node = 3, .gpus_per_task = 2})) ==
        "FAILED_PRECONDITION: requested more GPUs per node than available: 2 tasks with 2 each, "
        "the node has 3");
  CHECK(ToString(Refused(step, {.jobs = {{"worker", 3}}})) ==
        "FAILED_PRECONDITION: requested 3 tasks but 4 were assigned to the step");
  CHECK(Refused(step, {.jobs = {{"worker", 5}}}).code() == StatusCode::kFailedPrecondition);
  CHECK(Refused(Step(0, "n[1-3]", "2(x2)", 4)).code() == StatusCode::kFailedPrecondition);
  CHECK(Refused(Step(4, "n[1-2]", "2(x2)", 4)).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("a step of one node and one task is told of in the singular", "[cluster][unit]") {
  const Environment one = Step(0, "n1", "1", 1);

  CHECK(Message(Refused(Step(0, "n1", "2(x2)", 4))) ==
        "SLURM_STEP_NODELIST has 1 node (n1), SLURM_STEP_TASKS_PER_NODE has 2 (2(x2))");
  CHECK(Message(Refused(one, {.jobs = {{"worker", 3}}})) ==
        "requested 3 tasks but 1 was assigned to the step");
  CHECK(Message(Refused(Step(1, "n1", "1", 1))) == "SLURM_PROCID is 1, but the step has 1 task");
  CHECK(Message(Refused(one, {.gpus_per_node = 1, .gpus_per_task = 2})) ==
        "requested more GPUs per node than available: 1 task with 2 each, the node has 1");
}

TEST_CASE("a SLURM_ variable that is missing is named", "[cluster][unit][spec][SLU-08]") {
  for (const char* name : {"SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_STEP_NUM_TASKS"}) {
    const Environment whole = Step(0, "n1", "1", 1);
    const Environment without = [&](const std::string& asked) {
      return asked == name ? std::nullopt : whole(asked);
    };
    const Status status = Refused(without);

    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK(Message(status).find(std::string(name) + " is not set") == 0);
  }
}

TEST_CASE("before the cluster is known there is no master", "[cluster][unit][spec][SLU-09]") {
  const auto resolver = Resolver(Step(1, "n[1-2]", "1(x2)", 2));

  CHECK(resolver->Master().value().empty());
  CHECK(resolver->RpcLayer().value() == "grpc");
  CHECK(resolver->Master({.task_type = "worker", .task_id = 0}).value() == "grpc://n1:8888");
}

TEST_CASE("ranks follow the node list, not the alphabet", "[cluster][unit]") {
  const auto resolver = Resolver(Step(2, "n[9-11]", "1(x3)", 3));

  CHECK(resolver->Cluster().value().TaskAddress("worker", 0).value() == "n9:8888");
  CHECK(resolver->Cluster().value().TaskAddress("worker", 2).value() == "n11:8888");
  CHECK(resolver->TaskId().value() == 2);
}

TEST_CASE("ranks are dealt to the nodes as SLURM_DISTRIBUTION says", "[cluster][unit]") {
  using Tasks = std::vector<std::string>;
  const auto workers = [](int rank, const std::map<std::string, std::string>& more) {
    auto resolver = Resolver(Step(rank, "n[1-2]", "3,2", 5, more), {.gpus_per_node = 3});
    const ClusterSpec cluster = resolver->Cluster().value();
    Tasks addresses;
    for (const auto& [index, address] : cluster.jobs().at("worker")) addresses.push_back(address);
    addresses.push_back(resolver->VisibleGpus());
    return addresses;
  };
  CHECK(workers(3, {{"SLURM_DISTRIBUTION", "block:cyclic"}}) ==
        Tasks{"n1:8888", "n1:8889", "n1:8890", "n2:8888", "n2:8889", "0"});
  CHECK(workers(3, {{"SLURM_DISTRIBUTION", "cyclic:block,Pack"}}) ==
        Tasks{"n1:8888", "n2:8888", "n1:8889", "n2:8889", "n1:8890", "1"});
  CHECK(workers(4, {{"SLURM_DISTRIBUTION", "plane=2"}, {"SLURM_DIST_PLANESIZE", "2"}}) ==
        Tasks{"n1:8888", "n1:8889", "n2:8888", "n2:8889", "n1:8890", "2"});
  const Status refused =
      Refused(Step(0, "n[1-2]", "3,2", 5, {{"SLURM_DISTRIBUTION", "arbitrary"}}));
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused).find("SLURM_DISTRIBUTION is arbitrary") != std::string::npos);
}

TEST_CASE("a host that is listed twice has each port once", "[cluster][unit]") {
  auto resolver = Resolver(Step(2, "n1,n2,n1", "1,1,2", 4), {.gpus_per_node = 3});

  const ClusterSpec cluster = resolver->Cluster().value();

  std::vector<std::string> addresses;
  for (const auto& [index, address] : cluster.jobs().at("worker")) addresses.push_back(address);
  CHECK(addresses == std::vector<std::string>{"n1:8888", "n2:8888", "n1:8889", "n1:8890"});
  CHECK(resolver->VisibleGpus() == "1");
}

TEST_CASE("tasks without GPUs are tasks", "[cluster][unit]") {
  const auto none = Resolver(Step(1, "n1", "4", 4, {{"CUDA_VISIBLE_DEVICES", ""}}));
  const auto fewer = Resolver(Step(1, "n1", "4", 4), {.gpus_per_node = 2});  // 2 / 4 is 0 each

  CHECK(none->NumAccelerators().value() == AcceleratorCounts{{"GPU", 0}});
  CHECK(none->VisibleGpus().empty());
  CHECK(none->Cluster().value().NumTasks("worker").value() == 4);
  CHECK(fewer->Cluster().value().NumTasks("worker").value() == 4);
}

TEST_CASE("GPUs are counted by CUDA_VISIBLE_DEVICES, Slurm, or whoever can", "[cluster][unit]") {
  const auto count = [](std::map<std::string, std::string> more) {
    const auto resolver =
        Resolver(Step(0, "n1", "1", 1, std::move(more)), {.count_gpus = [] { return 7; }});
    return resolver->NumAccelerators().value().at("GPU");
  };

  CHECK(count({{"CUDA_VISIBLE_DEVICES", "3,4,5"}, {"SLURM_GPUS_ON_NODE", "8"}}) == 3);
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "-1"}}) == 0);
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}) == 0);
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "0,1,-1,2"}}) == 2);
  CHECK(count({{"SLURM_GPUS_ON_NODE", "8"}}) == 8);
  CHECK(count({}) == 7);
}

TEST_CASE("tasks of a node share the devices that CUDA_VISIBLE_DEVICES lists", "[cluster][unit]") {
  const auto second = [](const std::string& visible) {
    return Resolver(Step(1, "n1", "2", 2, {{"CUDA_VISIBLE_DEVICES", visible}}))->VisibleGpus();
  };

  CHECK(second("4,5,6,7") == "6,7");
  CHECK(second("GPU-5c1f,GPU-77aa") == "GPU-77aa");
}

TEST_CASE("numbers that cannot be are refused", "[cluster][unit]") {
  const Environment step = Step(0, "n1", "2", 2);

  CHECK(Refused(step, {.port_base = 65535}).code() == StatusCode::kInvalidArgument);
  CHECK(Refused(step, {.port_base = 0}).code() == StatusCode::kInvalidArgument);
  CHECK(Refused(step, {.gpus_per_node = -1}).code() == StatusCode::kInvalidArgument);
  CHECK(Refused(step, {.tasks_per_node = -1}).code() == StatusCode::kInvalidArgument);
  CHECK(Refused(step, {.jobs = {{"ps", -1}, {"worker", 3}}}).code() ==
        StatusCode::kInvalidArgument);
  CHECK(Resolver(Step(0, "n1,n2", "9", 6), {.tasks_per_node = 3})->Cluster().ok());
}

}  // namespace
}  // namespace muster::cluster
