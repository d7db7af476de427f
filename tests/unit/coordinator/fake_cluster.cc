#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {

void FakeDaemon::Send(const v1::CoordinatorMessage& message) {
  released = released || message.has_release();
  if (message.has_drain()) drain_reason = message.drain().reason();
  if (!message.has_command()) return;
  commands.push_back(message.command());
  if (silent) return;
  if (needs_files.contains(message.command().body_case())) {
    return waiting_.push_back(message.command());
  }
  // Another process may have taken its place before it has obeyed.
  cluster_.time.Post([weak = weak_from_this(), command = message.command()] {
    if (const auto self = weak.lock()) self->Obey(command);
  });
}

void FakeDaemon::Beat() {
  v1::DaemonMessage message;
  message.mutable_heartbeat()->set_sequence(++beats_);
  for (const v1::Command& command : waiting_) {
    if (files_come) message.mutable_heartbeat()->add_fetching(command.id());
  }
  for (const v1::CollectiveWait& wait : waits) *message.mutable_heartbeat()->add_waits() = wait;
  Say(message);
}

void FakeDaemon::FilesCome() {
  needs_files.clear();
  for (const v1::Command& command : std::exchange(waiting_, {})) Obey(command);
}

void FakeDaemon::Say(const v1::DaemonMessage& message) {
  cluster_.core->OnMessage(session, message);
}

void Memory::Report(v1::AdoptReport& report) const {
  v1::ClosureMarks& all = *report.add_shards();
  all.set_watermark(start);
  for (const auto& [closure, mark] : marks) {
    if (!mark.applied) continue;
    if (all.above_size() == 0 && closure == all.watermark() + 1) {
      all.set_watermark(closure);
      continue;
    }
    v1::ClosureRun& run = *all.add_above();
    run.set_first(closure);
    run.set_last(closure);
  }
}

Memory& FakeDaemon::MemoryOf(const std::string& job_id) {
  return cluster_.memories[{task_, boot_id_, job_id}];
}

void FakeDaemon::Push(const Given& closure, const std::set<int>& servers) {
  if (closure.closure().kind() != v1::CLOSURE_KIND_TRAIN) return;
  for (const int index : servers) {
    Memory* memory = cluster_.MemoryOf({"ps", index}, closure.job);
    if (memory == nullptr || memory->view != closure.view) continue;
    memory->Push(closure.closure().id(), closure.attempt());
  }
}

void FakeDaemon::Finish(const Given& closure, const Status& status) {
  if (status.ok()) {
    std::set<int> servers;
    for (const v1::PsAddress& ps : plan.ps()) servers.insert(static_cast<int>(ps.index()));
    Push(closure, servers);
    if (closure.closure().kind() == v1::CLOSURE_KIND_TRAIN) {
      MemoryOf(closure.job).Push(closure.closure().id(), closure.attempt());
    }
  }
  for (const auto& [job, driver] : cluster_.models) driver->OnResult(task_, closure, status);
  cluster_.Settle();
}

void FakeDaemon::Work() {
  while (!given.empty()) {
    const Given closure = given.front();
    given.pop_front();
    Finish(closure);
  }
}

void FakeDaemon::ExecutorExits(const std::string& how, bool from_outside) {
  given.clear();
  cluster_.memories.erase({task_, boot_id_, plan.job_id()});
  Executor(v1::ExecutorEvent::KIND_EXITED, how, from_outside);
  cluster_.Settle();
}

void FakeDaemon::Executor(v1::ExecutorEvent::Kind kind, const std::string& how, bool from_outside) {
  v1::DaemonMessage message = ExecutorMessage(kind, how);
  message.mutable_executor()->set_from_outside(from_outside);
  Say(message);
}

void FakeDaemon::Print(const std::string& job_id, const std::string& text) {
  v1::DaemonMessage message;
  message.mutable_log()->set_job_id(job_id);
  message.mutable_log()->add_lines()->set_text(text);
  Say(message);
}

v1::DaemonMessage FakeDaemon::ExecutorMessage(v1::ExecutorEvent::Kind kind,
                                              const std::string& how) const {
  v1::DaemonMessage message;
  v1::ExecutorEvent& event = *message.mutable_executor();
  event.set_job_id(plan.job_id());
  event.set_view(plan.view());
  event.set_kind(kind);
  event.set_pid(7'000 + static_cast<std::uint32_t>(start.program().incarnation()));
  event.set_incarnation(start.program().incarnation());
  event.mutable_endpoint()->set_tcp_address(
      fmt::format("127.0.0.1:{}", 20'000 + start.program().incarnation() % 10'000));
  event.set_group_address(
      fmt::format("127.0.0.1:{}", 30'000 + start.program().incarnation() % 10'000));
  event.set_how(how);
  if (kind == v1::ExecutorEvent::KIND_EXITED) {
    event.add_last_lines(start.spec().has_program() ? "Segmentation fault" : "terminate called");
  }
  return message;
}

// Makes what the view has here, or goes on with what there is of it.
void FakeDaemon::ObeyAboutView(const v1::Command& command, v1::CommandResult& result) {
  if (command.has_adopt_variables()) {
    const v1::AdoptVariables& adopt = command.adopt_variables();
    Memory& memory = MemoryOf(adopt.job_id());
    if (memory.view != adopt.view()) {
      result.mutable_status()->set_code(static_cast<int>(StatusCode::kNotFound));
      return;
    }
    memory.least_attempt = adopt.least_attempt();
    return memory.Report(*result.mutable_adopted());
  }
  const v1::JobPlan& made = command.has_create_variables() ? command.create_variables().plan()
                                                           : command.start_executor().plan();
  plan = made;
  Memory& memory = MemoryOf(made.job_id());
  const bool goes_on = command.start_executor().adopt() && memory.view == made.view();
  if (goes_on) {
    memory.least_attempt = Attempt(Epoch(made.epoch()), 0).value();
    return memory.Report(*result.mutable_adopted());
  }
  if (command.start_executor().adopt() && made.ps().empty()) {
    result.mutable_status()->set_code(static_cast<int>(StatusCode::kNotFound));
    return;
  }
  memory = Memory();
  memory.view = made.view();
  memory.start = made.start_step();
}

// `number`: of the executor before. One that is there goes on with what it has.
void FakeDaemon::ObeyStart(std::uint64_t number, bool goes_on, const v1::Command& command,
                           v1::DaemonMessage& message) {
  v1::CommandResult& result = *message.mutable_result();
  const bool same = number == start.program().incarnation();
  if (!same) given.clear();
  // What drivers of earlier coordinators gave it is refused.
  std::erase_if(given, [&](const Given& one) {
    return goes_on && one.attempt() < Attempt(Epoch(plan.epoch()), 0).value();
  });
  if (!same || start.adopt()) ObeyAboutView(command, result);
  if (goes_on) {
    result.mutable_adopted()->set_executor(number);
    Say(message);
    return Executor(v1::ExecutorEvent::KIND_READY);
  }
  if (result.status().code() == 0) {
    Executor(v1::ExecutorEvent::KIND_STARTED);
    if (slow_executors) return;
    Executor(v1::ExecutorEvent::KIND_READY);
  }
  Say(message);
}

void FakeDaemon::Obey(const v1::Command& command) {
  v1::DaemonMessage message;
  v1::CommandResult& result = *message.mutable_result();
  result.set_command_id(command.id());
  const std::uint64_t number = start.program().incarnation();
  bool goes_on = false;
  if (command.has_start_executor()) {
    start = command.start_executor();
    plan = start.plan();
    goes_on = start.adopt() && number != 0 && MemoryOf(plan.job_id()).view == plan.view();
    if (goes_on) start.mutable_program()->set_incarnation(number);
  }
  if (const auto refused = refuse.find(command.body_case()); refused != refuse.end()) {
    result.mutable_status()->set_code(static_cast<int>(refused->second.code()));
    result.mutable_status()->set_message(Message(refused->second));
    return Say(message);
  }
  switch (command.body_case()) {
    case v1::Command::kCheckJob:
      *result.mutable_check() = check;
      break;
    case v1::Command::kProbeData:
      result.mutable_probe()->set_training_examples(examples);
      *result.mutable_probe()->mutable_data() = data;
      if (command.probe_data().has_closure()) {
        result.mutable_probe()->set_records(
            fmt::format("record {} of /data/x.idx", command.probe_data().closure().id()));
      }
      break;
    case v1::Command::kSaveVariables:
      if (task_.type == "ps" &&
          !MemoryOf(command.save_variables().job_id()).StandsAt(command.save_variables().step())) {
        ++torn_saves;
      }
      result.mutable_saved()->mutable_file()->set_name("ps-" + std::to_string(task_.index));
      break;
    case v1::Command::kJoinGroup:
      joined = command.join_group();
      if (silent_groups) return;
      for (const v1::GroupMember& member : joined.members()) {
        const TaskId other{member.task().type(), static_cast<int>(member.task().index())};
        if (!cut_from.contains(other)) continue;
        result.mutable_status()->set_code(static_cast<int>(StatusCode::kUnavailable));
        result.mutable_status()->set_message("it waits for " + other.ToString());
        return Say(message);
      }
      result.mutable_group()->set_has_variables(has_variables);
      break;
    case v1::Command::kEvaluateCheckpoint:
      if (slow_evaluations) return;
      result.mutable_evaluation()->set_step(command.evaluate_checkpoint().plan().start_step());
      result.mutable_evaluation()->set_examples(10);
      result.mutable_evaluation()->set_loss(0.5);
      break;
    case v1::Command::kGetValues: {
      const std::string all = values.SerializeAsString();
      result.mutable_values()->set_total(all.size());
      result.mutable_values()->set_data(all.substr(command.get_values().offset(), 7));
      break;
    }
    case v1::Command::kCreateVariables:
    case v1::Command::kAdoptVariables:
      ObeyAboutView(command, result);
      break;
    case v1::Command::kStartExecutor:
      return ObeyStart(number, goes_on, command, message);
    case v1::Command::kPrepareLaunch:
      prepared = command.prepare_launch();
      for (std::uint32_t i = 0; i < prepared.addresses(); ++i) {
        result.mutable_launch()->add_addresses(fmt::format("127.0.0.1:{}", ++cluster_.last_port));
      }
      break;
    case v1::Command::kStartLaunch:
      launched = command.start_launch();
      Say(message);
      for (const v1::LaunchProcess& process : launched.processes()) {
        LaunchedProcess(process.task().index(), v1::LaunchEvent::KIND_STARTED);
      }
      return;
    default:
      break;
  }
  Say(message);
}

void FakeDaemon::LaunchedProcess(std::uint32_t rank, v1::LaunchEvent::Kind kind, std::uint32_t code,
                                 std::uint32_t signal, bool asked, std::int64_t time_us) {
  v1::DaemonMessage message;
  v1::LaunchEvent& event = *message.mutable_launched();
  event.set_job_id(launched.job_id());
  event.set_launch(launched.launch());
  *event.mutable_task() = ToProto({"worker", static_cast<int>(rank)});
  event.set_pid(9'000 + rank);
  event.set_kind(kind);
  if (kind == v1::LaunchEvent::KIND_EXITED) {
    event.set_how(signal != 0 ? fmt::format("signal {}", signal)
                              : fmt::format("exit code {}", code));
    event.set_exit_code(code);
    event.set_signal(signal);
    event.set_asked(asked);
    event.set_ended_us(time_us);
    event.set_last_error("it broke");
    event.add_last_lines("it broke");
  }
  Say(message);
  cluster_.Settle();
}

}  // namespace muster::coordinator::testing
