#include "services/ps/ps_node.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "common/net/handshake.h"
#include "muster/v1/cluster.pb.h"
#include "ps/client/program_client.h"
#include "ps/client/ps_client.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

constexpr std::uint32_t kW = 0;

struct Fixture {
  Fixture() {
    PsNode::Options options;
    options.server.unix_directory = directory / "sockets";
    options.server.token = "token";
    options.server.host_id = "here";
    std::filesystem::create_directory(options.server.unix_directory);
    node = PsNode::Start(options).value();
  }

  v1::JobPlan Plan(std::uint64_t epoch, std::uint64_t view) const {
    v1::JobPlan plan;
    plan.set_job_id("job-1");
    plan.set_job_number(1);
    plan.set_epoch(epoch);
    plan.set_view(view);
    plan.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
    plan.mutable_optimizer()->set_learning_rate(1);
    v1::VariableLayout* const w = plan.add_variables();
    w->set_id(kW);
    w->set_name("w");
    w->set_dtype(v1::DTYPE_FLOAT32);
    w->add_shape(4);
    w->mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ONES);
    v1::ShardPlacement* const shard = w->add_shards();
    shard->set_rows(4);
    v1::PsAddress* const address = plan.add_ps();
    *address->mutable_data() = node->endpoint();
    return plan;
  }
  v1::CommandResult Create(const v1::JobPlan& plan, const std::string& restore_from = "") {
    v1::Command command;
    command.set_id(7);
    *command.mutable_create_variables()->mutable_plan() = plan;
    command.mutable_create_variables()->set_restore_from(restore_from);
    return node->Execute(command);
  }
  std::unique_ptr<ps::PsClient> Connect(const v1::JobPlan& plan) const {
    ps::PsClient::Options options;
    options.key = net::JobKey("token", plan.job_id(), Epoch());
    options.host_id = "here";
    return ps::PsClient::Connect(plan, options).value();
  }
  Status PushOnes(ps::PsClient& client, std::uint64_t closure) const {
    for (float& value : client.Gradient(kW)) value = 1;
    return client.Push(ClosureId(closure), Attempt(1), std::vector<std::uint32_t>{kW}, {});
  }
  std::vector<float> Pull(ps::PsClient& client) const {
    REQUIRE(client.PullDense(std::vector<std::uint32_t>{kW}).ok());
    return {client.Value(kW).begin(), client.Value(kW).end()};
  }

  const testing::TempFolder directory;
  std::unique_ptr<PsNode> node;
};

StatusCode CodeOf(const v1::CommandResult& result) {
  return static_cast<StatusCode>(result.status().code());
}

TEST_CASE_METHOD(Fixture, "variables are made once for a view, and a repeat changes nothing",
                 "[services][unit]") {
  const v1::JobPlan plan = Plan(1, 1);
  CHECK(CodeOf(Create(plan)) == StatusCode::kOk);
  const auto client = Connect(plan);
  REQUIRE(PushOnes(*client, 1).ok());

  const v1::CommandResult again = Create(plan);

  CHECK(CodeOf(again) == StatusCode::kOk);
  CHECK(again.command_id() == 7);
  CHECK(Pull(*client) == std::vector<float>{0, 0, 0, 0});
}

TEST_CASE("a server is told of at the host that it was given, in brackets if that is IPv6",
          "[services][unit]") {
  const std::string host = GENERATE(as<std::string>{}, "::1", "[::1]");
  PsNode::Options options;
  options.server.token = "token";
  options.server.advertised_host = host;

  const auto node = PsNode::Start(options).value();

  CHECK(node->endpoint().tcp_address().starts_with("[::1]:"));
}

TEST_CASE_METHOD(Fixture, "older epochs and views are refused", "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(3, 5))) == StatusCode::kOk);

  CHECK(CodeOf(Create(Plan(2, 6))) == StatusCode::kAborted);
  CHECK(CodeOf(Create(Plan(3, 4))) == StatusCode::kAborted);
  CHECK(CodeOf(Create(Plan(4, 6))) == StatusCode::kOk);
}

TEST_CASE_METHOD(Fixture, "a new view begins again, and the old one's clients are told to stop",
                 "[services][unit]") {
  const v1::JobPlan first = Plan(1, 1);
  REQUIRE(CodeOf(Create(first)) == StatusCode::kOk);
  const auto old_client = Connect(first);
  REQUIRE(PushOnes(*old_client, 1).ok());

  const v1::JobPlan second = Plan(1, 2);
  REQUIRE(CodeOf(Create(second)) == StatusCode::kOk);

  CHECK(PushOnes(*old_client, 2).code() == StatusCode::kAborted);
  CHECK(Pull(*Connect(second)) == std::vector<float>{1, 1, 1, 1});
}

TEST_CASE_METHOD(Fixture, "a view goes on under a later coordinator, and what is late is refused",
                 "[services][unit]") {
  const v1::JobPlan plan = Plan(1, 5);
  REQUIRE(Create(plan).status().code() == 0);
  const auto client = Connect(plan);
  const auto push = [&](std::uint64_t closure, std::uint64_t attempt) {
    for (float& value : client->Gradient(kW)) value = 1;
    return client->Push(ClosureId(closure), Attempt(attempt), std::vector<std::uint32_t>{kW}, {});
  };
  REQUIRE(push(1, 1ull << 32 | 1).ok());
  REQUIRE(push(3, 1ull << 32 | 3).ok());

  v1::Command command;
  v1::AdoptVariables& adopt = *command.mutable_adopt_variables();
  adopt.set_job_id("job-1");
  adopt.set_epoch(2);
  adopt.set_view(5);
  adopt.set_least_attempt(2ull << 32);
  const v1::CommandResult adopted = node->Execute(command);

  REQUIRE(adopted.status().code() == 0);
  REQUIRE(adopted.adopted().shards_size() == 1);
  CHECK(adopted.adopted().shards(0).watermark() == 1);
  REQUIRE(adopted.adopted().shards(0).above_size() == 1);
  CHECK(adopted.adopted().shards(0).above(0).first() == 3);
  // An executor of before pushes what it had begun; then it is given the closure again.
  CHECK(push(2, 1ull << 32 | 2).code() == StatusCode::kAborted);
  CHECK(Pull(*client) == std::vector<float>(4, -1.0f));
  CHECK(push(2, 2ull << 32 | 1).ok());
  CHECK(Pull(*client) == std::vector<float>(4, -2.0f));
  // A coordinator of before gives no commands.
  adopt.set_epoch(1);
  CHECK(node->Execute(command).status().code() == static_cast<int>(StatusCode::kAborted));
  adopt.set_epoch(3);
  adopt.set_view(4);
  CHECK(node->Execute(command).status().code() == static_cast<int>(StatusCode::kNotFound));
  adopt.set_job_id("job-2");
  CHECK(node->Execute(command).status().code() == static_cast<int>(StatusCode::kNotFound));
}

TEST_CASE_METHOD(Fixture, "shards are saved at a cut only, and reported", "[services][unit]") {
  const v1::JobPlan plan = Plan(1, 1);
  REQUIRE(CodeOf(Create(plan)) == StatusCode::kOk);
  const auto client = Connect(plan);
  REQUIRE(PushOnes(*client, 1).ok());
  v1::Command save;
  save.mutable_save_variables()->set_job_id("job-1");
  save.mutable_save_variables()->set_view(1);
  save.mutable_save_variables()->set_epoch(1);
  save.mutable_save_variables()->set_directory(directory / "step-1");
  std::filesystem::create_directory(directory / "step-1");

  save.mutable_save_variables()->set_step(2);
  CHECK(CodeOf(node->Execute(save)) == StatusCode::kFailedPrecondition);
  save.mutable_save_variables()->set_step(1);
  const v1::CommandResult saved = node->Execute(save);
  REQUIRE(CodeOf(saved) == StatusCode::kOk);
  CHECK(saved.saved().slices(0).name() == "w");
  CHECK(std::filesystem::exists(directory / "step-1/" + saved.saved().file().name()));

  v1::Command report;
  report.mutable_get_ps_report()->set_job_id("job-1");
  const v1::CommandResult reported = node->Execute(report);
  CHECK(reported.ps().pushes() == 1);
  CHECK(reported.ps().parameter_bytes() == 16);
  CHECK(reported.ps().shards_size() == 1);
  // What is asked for on the strand that heartbeats come from looks at no shard.
  v1::PsReport totals = reported.ps();
  totals.clear_shards();
  REQUIRE(node->Totals().size() == 1);
  CHECK(node->Totals().at("job-1").SerializeAsString() == totals.SerializeAsString());
}

TEST_CASE_METHOD(Fixture, "a dropped job is forgotten", "[services][unit]") {
  const v1::JobPlan plan = Plan(1, 1);
  REQUIRE(CodeOf(Create(plan)) == StatusCode::kOk);
  const auto client = Connect(plan);
  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("job-1");
  drop.mutable_drop_job()->set_epoch(1);
  drop.mutable_drop_job()->set_view(1);
  v1::Command report;
  report.mutable_get_ps_report()->set_job_id("job-1");

  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kOk);

  CHECK(CodeOf(node->Execute(report)) == StatusCode::kNotFound);
  CHECK(client->PullDense(std::vector<std::uint32_t>{kW}).code() == StatusCode::kAborted);
}

TEST_CASE_METHOD(Fixture, "a job that is dropped before its variables are made is not made",
                 "[services][unit]") {
  const bool earlier_view = GENERATE(false, true);
  if (earlier_view) REQUIRE(CodeOf(Create(Plan(1, 1))) == StatusCode::kOk);
  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("job-1");
  drop.mutable_drop_job()->set_epoch(1);
  drop.mutable_drop_job()->set_view(3);
  REQUIRE(CodeOf(node->Execute(drop)) == StatusCode::kOk);

  // Commands to make them that the drop has overtaken.
  CHECK(CodeOf(Create(Plan(1, 2))) == StatusCode::kAborted);
  const v1::CommandResult refused = Create(Plan(1, 3));
  CHECK(CodeOf(refused) == StatusCode::kFailedPrecondition);
  CHECK(refused.status().message() == "ps:0: job-1 was dropped");
  v1::Register registration;
  node->FillRegistration(registration);
  CHECK(registration.jobs().empty());
  CHECK(CodeOf(Create(Plan(1, 4))) == StatusCode::kOk);
}

TEST_CASE_METHOD(Fixture, "of the jobs that were dropped the last thousands are remembered",
                 "[services][unit]") {
  const auto drop = [&](const std::string& job_id, std::uint64_t view) {
    v1::Command command;
    command.mutable_drop_job()->set_job_id(job_id);
    command.mutable_drop_job()->set_epoch(1);
    command.mutable_drop_job()->set_view(view);
    return CodeOf(node->Execute(command));
  };
  const auto make = [&](const std::string& job_id, std::uint64_t view) {
    v1::JobPlan plan = Plan(1, view);
    plan.set_job_id(job_id);
    return CodeOf(Create(plan));
  };
  REQUIRE(drop("first", 1) == StatusCode::kOk);
  REQUIRE(drop("back", 1) == StatusCode::kOk);
  REQUIRE(make("back", 2) == StatusCode::kOk);

  for (std::size_t i = 0; i < PsNode::kMostDropped; ++i) {
    REQUIRE(drop(fmt::format("later-{}", i), 1) == StatusCode::kOk);
  }

  CHECK(make("later-0", 1) == StatusCode::kFailedPrecondition);
  CHECK(make("first", 1) == StatusCode::kOk);
  CHECK(make("back", 1) == StatusCode::kAborted);
}

TEST_CASE_METHOD(Fixture, "a job is not dropped for a view that is over", "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(1, 2))) == StatusCode::kOk);
  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("job-1");
  drop.mutable_drop_job()->set_view(1);
  drop.mutable_drop_job()->set_epoch(1);
  v1::Command report;
  report.mutable_get_ps_report()->set_job_id("job-1");

  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kAborted);
  CHECK(CodeOf(node->Execute(report)) == StatusCode::kOk);
  drop.mutable_drop_job()->set_view(2);
  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kOk);
  CHECK(CodeOf(node->Execute(report)) == StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a late command of an older epoch or view neither drops nor saves",
                 "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(2, 5))) == StatusCode::kOk);
  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("job-1");
  drop.mutable_drop_job()->set_epoch(2);
  drop.mutable_drop_job()->set_view(4);
  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kAborted);
  drop.mutable_drop_job()->set_epoch(1);
  drop.mutable_drop_job()->set_view(5);
  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kAborted);
  v1::Command save;
  save.mutable_save_variables()->set_job_id("job-1");
  save.mutable_save_variables()->set_view(5);
  save.mutable_save_variables()->set_epoch(1);
  save.mutable_save_variables()->set_directory(directory / "step-0");
  CHECK(CodeOf(node->Execute(save)) == StatusCode::kAborted);
  CHECK_FALSE(std::filesystem::exists(directory / "step-0"));

  save.mutable_save_variables()->set_epoch(2);
  CHECK(CodeOf(node->Execute(save)) == StatusCode::kOk);
}

TEST_CASE_METHOD(Fixture, "a server that wakes up late does not write over a committed checkpoint",
                 "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(1, 1))) == StatusCode::kOk);
  const std::string step = directory / "step-0";
  std::filesystem::create_directory(step);
  std::ofstream(step + "/MANIFEST.json") << "committed";
  v1::Command save;
  save.mutable_save_variables()->set_job_id("job-1");
  save.mutable_save_variables()->set_view(1);
  save.mutable_save_variables()->set_epoch(1);
  save.mutable_save_variables()->set_directory(step);

  const v1::CommandResult refused = node->Execute(save);

  CHECK(CodeOf(refused) == StatusCode::kAborted);
  CHECK(refused.status().message().find(step + " has been committed") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(step + "/ps-0-of-1.safetensors"));
}

TEST_CASE_METHOD(Fixture, "a registration names the jobs whose shards are here",
                 "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(2, 5))) == StatusCode::kOk);
  v1::Register registration;
  node->FillRegistration(registration);
  REQUIRE(registration.jobs_size() == 1);
  CHECK(registration.jobs(0).job_id() == "job-1");
  CHECK(registration.jobs(0).epoch() == 2);
  CHECK(registration.jobs(0).view() == 5);

  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("job-1");
  drop.mutable_drop_job()->set_epoch(2);
  drop.mutable_drop_job()->set_view(5);
  REQUIRE(CodeOf(node->Execute(drop)) == StatusCode::kOk);
  v1::Register after;
  node->FillRegistration(after);
  CHECK(after.jobs().empty());
}

TEST_CASE_METHOD(Fixture, "a worker's command is refused", "[services][unit]") {
  v1::Command command;
  command.mutable_start_executor();

  CHECK(CodeOf(node->Execute(command)) == StatusCode::kInvalidArgument);
}

TEST_CASE_METHOD(Fixture, "a plan that was made for the process before this one is refused",
                 "[services][unit]") {
  node->set_boot_id("new");
  v1::JobPlan plan = Plan(1, 1);
  plan.mutable_ps(0)->set_boot_id("old");

  const v1::CommandResult refused = Create(plan);

  CHECK(CodeOf(refused) == StatusCode::kAborted);
  CHECK(refused.status().message().find("planned for its predecessor old") != std::string::npos);
  plan.mutable_ps(0)->set_boot_id("new");
  CHECK(CodeOf(Create(plan)) == StatusCode::kOk);
}
// A program's driver that has made one variable of 16 bytes.
std::unique_ptr<ps::ProgramClient> Program(const PsNode& node, std::uint64_t epoch) {
  v1::PsAddress address;
  *address.mutable_data() = node.endpoint();
  auto client = ps::ProgramClient::Open({{ps::TargetOf(address)}},
                                        {.job_id = "words",
                                         .key = net::JobKey("token", "words", Epoch(epoch)),
                                         .epoch = Epoch(epoch),
                                         .incarnation = Incarnation(1),
                                         .host_id = "here"});
  REQUIRE(client.ok());
  const std::vector<float> value(4);
  REQUIRE((*client)
              ->Create({.name = "w", .shape = {4}, .servers = {0}}, std::as_bytes(std::span(value)))
              .ok());
  return *std::move(client);
}

TEST_CASE_METHOD(Fixture, "memory is told by job, and a program's is free when it is dropped",
                 "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(1, 1))) == StatusCode::kOk);
  const auto program = Program(*node, 1);
  v1::Heartbeat heartbeat;
  node->FillHeartbeat(heartbeat);
  REQUIRE(heartbeat.job_bytes_size() == 2);
  CHECK(heartbeat.job_bytes(0).job_id() == "words");
  CHECK(heartbeat.job_bytes(0).bytes() == 16);
  CHECK(heartbeat.job_bytes(1).job_id() == "job-1");
  CHECK(heartbeat.job_bytes(1).bytes() == 16);
  v1::Register registration;
  node->FillRegistration(registration);
  CHECK(registration.jobs_size() == 2);

  v1::Command drop;
  drop.mutable_drop_job()->set_job_id("words");
  drop.mutable_drop_job()->set_epoch(1);
  CHECK(CodeOf(node->Execute(drop)) == StatusCode::kOk);
  CHECK(program->Find("w").status().code() == StatusCode::kAborted);
  heartbeat.Clear();
  node->FillHeartbeat(heartbeat);
  CHECK(heartbeat.job_bytes_size() == 1);
}

TEST_CASE_METHOD(Fixture, "a program's values and the slots of its optimizer are told apart",
                 "[services][unit]") {
  const auto program = Program(*node, 1);
  const std::vector<ps::VariableHandle> variables = {program->Find("w").value()};
  v1::OptimizerSpec adam;
  adam.set_kind(v1::OPTIMIZER_KIND_ADAM);
  REQUIRE(program->Attach(variables, adam).ok());
  v1::Command command;
  command.mutable_get_ps_report()->set_job_id("words");

  const std::vector<ps::ProgramUse> held = node->Programs();
  const v1::PsReport report = node->Execute(command).ps();

  REQUIRE(held.size() == 1);
  CHECK(held[0].job_id == "words");
  CHECK(held[0].bytes == 48);
  CHECK(held[0].slot_bytes == 32);
  CHECK(held[0].staged_bytes == 0);
  CHECK(report.parameter_bytes() == 16);
  CHECK(report.slot_bytes() == 32);
}

TEST_CASE_METHOD(Fixture, "a program ends with its epoch, a model job's shards wait for a new view",
                 "[services][unit]") {
  REQUIRE(CodeOf(Create(Plan(1, 1))) == StatusCode::kOk);
  const auto program = Program(*node, 1);

  CHECK(node->BeginEpoch(Epoch(2)).ok());
  CHECK(program->Find("w").status().code() == StatusCode::kAborted);
  v1::Heartbeat heartbeat;
  node->FillHeartbeat(heartbeat);
  REQUIRE(heartbeat.job_bytes_size() == 1);
  CHECK(heartbeat.job_bytes(0).job_id() == "job-1");
  CHECK(node->BeginEpoch(Epoch(1)).code() == StatusCode::kAborted);
}

}  // namespace
}  // namespace muster::services
