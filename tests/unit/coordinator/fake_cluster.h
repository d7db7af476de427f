// A coordinator on virtual time, with daemons that do what a test says. Nothing is real but the
// coordinator's own code and, where a test asks for it, its database.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/trouble.h"
#include "coordinator/coordinator.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/coordinator/fake_daemon.h"
#include "tests/unit/coordinator/fake_driver.h"
#include "tests/unit/coordinator/fake_parts.h"
#include "tests/unit/coordinator/inline_offload.h"
#include "tests/unit/coordinator/sample_spec.h"

namespace muster::coordinator::testing {

class Cluster {
 public:
  using OpenJournal = std::function<Result<std::unique_ptr<Journal>>()>;

  // `open`: the journal of each coordinator in turn; else a database in `directory`.
  explicit Cluster(Coordinator::Options with = {}, OpenJournal open = nullptr)
      : options(std::move(with)), open_journal(std::move(open)) {
    drivers.on_model = [this](const v1::ProgramStart& start) {
      models[start.job_id()] = std::make_shared<FakeDriver>(*this, start);
      time.Post([weak = std::weak_ptr(models[start.job_id()])] {
        if (const auto model = weak.lock()) model->Begin();
      });
    };
    drivers.on_sent = [this](const std::string& job_id, const v1::ToProgram& message) {
      if (models.contains(job_id)) models[job_id]->Obey(message);
    };
    Start();
  }
  ~Cluster() {
    core.reset();
    writer.reset();
  }

  void Start() {
    auto opened = open_journal ? open_journal() : OpenSqliteJournal(directory / "state");
    MUSTER_INVARIANT(opened.ok());
    journal = std::make_unique<FlakyJournal>(std::move(*opened), journal_full);
    writer.emplace(*journal, journal_disk, time);
    logs.emplace(LogStore::Options{.directory = directory / "logs"}, log_thread);
    auto made =
        Coordinator::Create(options, {.scheduler = time,
                                      .journal = *writer,
                                      .logs = *logs,
                                      .checkpoints = checkpoints,
                                      .drivers = drivers,
                                      .has_file = [](const auto&, auto then) { then(true); },
                                      .on_event = nullptr,
                                      .on_task =
                                          [this](const TaskId& task, const auto& what) {
                                            task_news.push_back(task.ToString() + " " + what);
                                          }});
    MUSTER_INVARIANT(made.ok());
    core = std::move(*made);
  }
  // kill -9 of the coordinator, and a new one on the same state. Daemons must join again.
  void RestartCoordinator() {
    core.reset();
    writer.reset();
    journal_disk.Kill();
    journal.reset();
    for (auto& [task, daemon] : daemons) daemon->silent = true;
    models.clear();
    Start();
  }

  // `info`: what else it says of itself. `refuse`: what it refuses from the first command on.
  FakeDaemon& Join(const TaskId& task, const std::string& boot_id = "boot-1",
                   const std::string& host = "host", v1::Register info = {},
                   const std::map<v1::Command::BodyCase, Status>& refuse = {}) {
    auto daemon = std::make_shared<FakeDaemon>(*this, task, boot_id);
    daemon->refuse = refuse;
    // The same process has its executors still.
    if (const auto before = daemons.find(task);
        before != daemons.end() && before->second->boot_id() == boot_id) {
      daemon->given = before->second->given;
      daemon->start = before->second->start;
    }
    daemons[task] = daemon;
    *info.mutable_task() = ToProto(task);
    info.set_boot_id(boot_id);
    info.set_pid(static_cast<std::uint32_t>(1'000 + ++last_pid));
    info.set_hostname(host);
    info.mutable_data()->set_tcp_address("127.0.0.1:" + std::to_string(5'000 + last_pid));
    const Result<SessionId> session = core->Register(info, daemon);
    joined = session.status();
    if (session.ok()) daemon->session = *session;
    Settle();
    return *daemon;
  }
  // That worker again, with the process of its number that it was asked to start before. `tells`:
  // it says so.
  FakeDaemon& Back(int worker, const v1::StartLaunch& launched, bool tells = true) {
    FakeDaemon& back = Join({"worker", worker});
    back.launched = launched;
    if (tells) {
      back.LaunchedProcess(static_cast<std::uint32_t>(worker), v1::LaunchEvent::KIND_STARTED);
    }
    return back;
  }
  void JoinAll(int ps, int workers, const std::string& boot_id = "boot-1") {
    for (int i = 0; i < ps; ++i) (void)Join({"ps", i}, boot_id);
    for (int i = 0; i < workers; ++i) (void)Join({"worker", i}, boot_id);
  }
  FakeDaemon& at(const TaskId& task) { return *daemons.at(task); }
  // Null: the process of now holds nothing of the job.
  Memory* MemoryOf(const TaskId& task, const std::string& job_id = "job-1") {
    const auto daemon = daemons.find(task);
    if (daemon == daemons.end()) return nullptr;
    const auto found = memories.find({task, daemon->second->boot_id(), job_id});
    return found == memories.end() ? nullptr : &found->second;
  }
  // The process is gone: its stream is reset.
  void Kill(const TaskId& task) {
    at(task).silent = true;
    core->OnStreamEnded(at(task).session);
  }

  void Settle() { time.RunReady(); }
  // Time passes, and whoever is not silent beats; drivers ask for something that they do not get.
  void Pass(Millis total, Millis step = Millis(100)) {
    for (Millis passed{0}; passed < total; passed += step) {
      if (!silent_drivers) AskInVain();
      for (auto& [job, driver] : models) {
        if (!silent_drivers) driver->Tick();
      }
      for (auto& [task, daemon] : daemons) {
        if (!daemon->silent) daemon->Beat();
      }
      time.Advance(step);
    }
  }

  void AskInVain() {
    const v1::ListJobsReply listed = core->List();
    for (const v1::Job& one : listed.jobs()) {
      if ((*core->Find(one.id()))->AsModel() == nullptr) continue;
      ModelJob& driven = job(one.id());
      v1::SaveCheckpointRequest request;
      request.set_view(driven.record().plan().view());
      request.set_driver(driven.driver().value());
      request.set_step(UINT64_MAX);
      driven.SaveCheckpoint(request, [](const auto&) {});
    }
  }

  static v1::JobSpec Spec(const std::string& name = "job") { return SampleSpec(name); }
  // Its variables live in one worker's executor.
  static v1::JobSpec WithoutServers(const std::string& name = "job") {
    v1::JobSpec spec = Spec(name);
    spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_ONE_DEVICE);
    return spec;
  }
  Result<v1::SubmitJobReply> Submit(const v1::JobSpec& spec, bool dry_run = false,
                                    bool restart = false) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_dry_run(dry_run);
    request.set_restart(restart);
    Result<v1::SubmitJobReply> answer = Unknown("no answer");
    core->Submit(request, [&](Result<v1::SubmitJobReply> reply) { answer = std::move(reply); });
    Settle();
    return answer;
  }
  ModelJob& job(const std::string& name = "job") { return *(*core->Find(name))->AsModel(); }
  Job& any(const std::string& name) { return **core->Find(name); }
  v1::JobState State(const std::string& name = "job") { return any(name).record().job().state(); }
  std::uint64_t View() { return job().record().plan().view(); }

  // --- As the driver; as the present one unless another number is given.
  template <class Request>
  Request As(std::optional<Incarnation> driver = std::nullopt) {
    Request request;
    request.set_view(View());
    request.set_driver(driver.value_or(job().driver()).value());
    return request;
  }
  Result<v1::OpenJobReply> Open(std::optional<Incarnation> driver = std::nullopt) {
    v1::OpenJobRequest request;
    request.set_driver(driver.value_or(job().driver()).value());
    auto answer = std::make_shared<Result<v1::OpenJobReply>>(Unknown("no answer"));
    job().OpenJob(request, [answer](auto reply) { *answer = std::move(reply); });
    return *answer;
  }
  void DriverExits(const std::string& how, bool success = false) {
    core->OnDriverExit(job().id(), job().driver(), success, how);
  }
  FakeDriver& model() { return *models.at(job().id()); }
  Status Schedule(std::uint64_t from, std::uint64_t to,
                  v1::ClosureKind kind = v1::CLOSURE_KIND_TRAIN) {
    model().buffers = 0;
    if (kind == v1::CLOSURE_KIND_EVALUATE) {
      auto begun = std::make_shared<Result<v1::BeginEvaluationReply>>(Unknown("no answer"));
      auto request = As<v1::BeginEvaluationRequest>();
      *request.mutable_report() = model().Report(false);
      job().BeginEvaluation(request, [begun](auto reply) { *begun = std::move(reply); });
      Settle();
      if (!begun->ok()) return begun->status();
      model().buffers = (*begun)->buffers();
    }
    const Status answer = model().Schedule(kind, from, to);
    Settle();
    return answer;
  }
  // How far the driver is; the job's view or another one may have been left meanwhile.
  struct Joined {
    bool all = false, stop = false;
    std::uint64_t steps = 0;
    bool done() const { return all; }
    std::uint64_t steps_done() const { return steps; }
    bool stop_requested() const { return stop; }
  };
  Result<Joined> JoinNow(std::optional<std::uint64_t> view = std::nullopt) {
    Settle();
    auto request = As<v1::ReportProgressRequest>();
    request.set_view(view.value_or(View()));
    *request.mutable_progress() = job().record().job().progress();
    const auto reported = job().ReportProgress(request);
    if (!reported.ok()) return reported.status();
    MUSTER_TRY_ASSIGN(const bool done, model().Join());
    return Joined{.all = done, .stop = reported->stop_requested(), .steps = model().done()};
  }
  // A checkpoint that could not be written is kSaveFailed with its reason.
  static constexpr StatusCode kSaveFailed = StatusCode::kUnimplemented;
  Status Save(std::uint64_t step) {
    const auto answer = BeginSave(step);
    Settle();
    return *answer;
  }
  // Steps from..to are done, and a checkpoint of them is saved.
  void TrainAndSave(std::uint64_t from, std::uint64_t to) {
    REQUIRE(Schedule(from, to).ok());
    WorkAll();
    REQUIRE(Save(to).ok());
  }
  // kUnknown until it is answered.
  std::shared_ptr<Status> BeginSave(std::uint64_t step) {
    auto request = As<v1::SaveCheckpointRequest>();
    request.set_step(step);
    if (models.contains(job().id())) *request.mutable_report() = model().Report(false);
    auto answer = std::make_shared<Status>(Unknown("no answer"));
    job().SaveCheckpoint(request, [answer](Result<v1::SaveCheckpointReply> reply) {
      const bool failed = reply.ok() && !reply->failure().empty();
      *answer = failed ? MakeStatus(kSaveFailed, reply->failure()) : reply.status();
    });
    return answer;
  }
  Status FinishJob(const Status& status = Ok()) {
    const auto answer = BeginFinish(status);
    Settle();
    return *answer;
  }
  // kUnknown until it is answered.
  std::shared_ptr<Status> BeginFinish(const Status& status = Ok()) {
    auto request = As<v1::FinishJobRequest>();
    request.mutable_status()->set_code(static_cast<int>(status.code()));
    request.mutable_status()->set_message(Message(status));
    auto answer = std::make_shared<Status>(Unknown("no answer"));
    job().FinishJob(request, [answer](const Status& finished) { *answer = finished; });
    return answer;
  }
  // The same from whoever sends this; kUnknown until it is answered.
  Status Finish(const v1::FinishJobRequest& request, const std::string& name = "job") {
    auto answer = std::make_shared<Status>(Unknown("no answer"));
    job(name).FinishJob(request, [answer](const Status& finished) { *answer = finished; });
    Settle();
    return *answer;
  }
  // Whether what was asked of the job is on disk; kUnknown: nobody knows yet.
  Status Written() {
    auto answer = std::make_shared<Status>(Unknown("no answer"));
    job().WhenWritten([answer](const Status& written) { *answer = written; });
    Settle();
    return *answer;
  }
  // Workers finish what they have until nothing is left.
  void WorkAll() {
    Settle();
    for (bool any = true; any;) {
      any = false;
      for (auto& [task, daemon] : daemons) {
        if (daemon->silent || daemon->given.empty()) continue;
        daemon->Work();
        any = true;
      }
      Settle();
    }
  }

  // With the events that the journal has.
  v1::Job Described(const std::string& name = "job") {
    v1::Job described;
    any(name).Describe([&](Result<v1::Job> all) { described = *std::move(all); });
    Settle();
    return described;
  }
  std::vector<std::string> Reasons() {
    std::vector<std::string> reasons;
    const v1::Job described = Described();
    for (const v1::Event& event : described.events()) reasons.push_back(event.reason());
    return reasons;
  }
  // The newest event of this reason.
  std::optional<v1::Event> EventOf(const std::string& reason, const std::string& name = "job") {
    std::optional<v1::Event> found;
    const v1::Job described = Described(name);
    for (const v1::Event& event : described.events()) {
      if (event.reason() == reason) found = event;
    }
    return found;
  }

  FakeScheduler time;
  muster::testing::TempFolder directory;
  Coordinator::Options options;
  OpenJournal open_journal;
  std::unique_ptr<Journal> journal;
  FakeDisk journal_disk{time};
  std::optional<JournalWriter> writer;
  InlineOffload log_thread{time};
  std::optional<Logs> logs;
  FakeCheckpoints checkpoints{time};
  FakeDrivers drivers;
  std::unique_ptr<Coordinator> core;
  std::map<TaskId, std::shared_ptr<FakeDaemon>> daemons;
  // By task, process and job; they outlive coordinators.
  std::map<std::tuple<TaskId, std::string, std::string>, Memory> memories;
  std::map<std::string, std::shared_ptr<FakeDriver>> models;  // by job
  Status joined;
  std::vector<std::string> task_news;
  bool silent_drivers = false;
  bool journal_full = false;
  int last_pid = 0;
  int last_port = 20'000;
};

}  // namespace muster::coordinator::testing
