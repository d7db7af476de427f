#include "services/coordinator/driver_processes.h"

#include <csignal>

#include <nlohmann/json.hpp>

#include "common/base/wall_time.h"
#include "common/cluster/cluster_spec.h"
#include "common/net/host_id.h"
#include "services/common/program_child.h"

namespace muster::coordinator {

namespace {

// Between two batches of lines of one driver: a flood costs the strand ten pieces of work a second.
constexpr Millis kLinePause{100};

}  // namespace

// Executors of models outlive this coordinator, and so does their key.
Status DriverProcesses::StartModel(const v1::ProgramStart& start) {
  process::Child::Options child;
  child.argv = {options_.program, start.job_id()};
  child.environment = services::WithoutMuster();
  return StartAs(start, Epoch(), [child = std::move(child)](Running::Events events) mutable {
    return Running::Start(std::move(child), std::move(events));
  });
}

Status DriverProcesses::StartProgram(const ProgramLaunch& launch) {
  return StartAs(launch.start, Epoch(launch.start.epoch()),
                 [program = launch.program, start = launch.start, config = TfConfig(launch),
                  executable = options_.executable, data_cache = options_.data_cache](
                     Running::Events events) -> Result<std::unique_ptr<Running>> {
                   MUSTER_TRY_ASSIGN(const std::string path, executable(program.sha256()));
                   process::Child::Options child =
                       services::ProgramChild(path, program, start, data_cache);
                   child.environment["TF_CONFIG"] = config;
                   auto started = Running::Start(std::move(child), std::move(events));
                   if (!started.ok()) return services::ExplainStart(started.status(), path);
                   return started;
                 });
}

std::string DriverProcesses::TfConfig(const ProgramLaunch& launch) const {
  cluster::ClusterSpec::Jobs jobs(launch.cluster.begin(), launch.cluster.end());
  jobs["chief"][0] = address_;
  const Result<cluster::ClusterSpec> spec = cluster::ClusterSpec::Create(std::move(jobs));
  const bool evaluates = launch.start.role() == v1::PROGRAM_ROLE_EVALUATOR;
  nlohmann::json config{{"task", {{"type", evaluates ? "evaluator" : "chief"}, {"index", 0}}}};
  if (spec.ok()) config["cluster"] = spec->ToJson();
  return config.dump();
}

// Its first message is its start; what else is sent to it until it runs comes behind that.
Status DriverProcesses::StartAs(v1::ProgramStart start, Epoch key_of, Launch launch) {
  if (closed_) return Unavailable("the coordinator is shutting down");
  const std::string job_id =
      start.role() == v1::PROGRAM_ROLE_EVALUATOR ? EvaluatorOf(start.job_id()) : start.job_id();
  const Incarnation number(start.incarnation());
  start.set_key(options_.key(start.job_id(), key_of));
  start.set_link("auto");
  start.set_tls(options_.tls);
  MUSTER_TRY_ASSIGN(*start.mutable_host_id(), net::HostId());
  // An old one may still be on its way out: its end is then nobody's concern.
  if (auto old = drivers_.extract(job_id)) Bury(std::move(old.mapped().process));
  drivers_[job_id].number = number;
  v1::ToProgram first;
  *first.mutable_start() = std::move(start);
  Send(job_id, first);
  const auto lines = std::make_shared<process::LineGate>();
  Running::Events events{.on_line = LinesOf(job_id, lines),
                         .on_message =
                             [this, job_id, number](v1::FromProgram message) {
                               strand_.Post([this, job_id, number, message = std::move(message)] {
                                 if (!closed_) options_.on_message(job_id, number, message);
                               });
                             },
                         .on_exit = ExitOf(job_id, number, lines)};
  auto started = std::make_shared<Result<std::unique_ptr<Running>>>(nullptr);
  forks_.Run([started, launch = std::move(launch),
              events = std::move(events)]() mutable { *started = launch(std::move(events)); },
             [this, started, job_id, number] { OnStarted(job_id, number, std::move(*started)); });
  return Ok();
}

DriverProcesses::OnLine DriverProcesses::LinesOf(const std::string& job_id,
                                                 const std::shared_ptr<process::LineGate>& lines) {
  return [this, job_id, lines](std::chrono::system_clock::time_point time, std::string line) {
    if (!lines->Add(time, std::move(line))) return;
    strand_.Post([this, job_id, lines] { PassLines(job_id, lines); });
  };
}

std::function<void(process::Exit)> DriverProcesses::ExitOf(
    const std::string& job_id, Incarnation number,
    const std::shared_ptr<process::LineGate>& lines) {
  return [this, job_id, number, lines](process::Exit exit) {
    strand_.Post([this, job_id, number, lines, exit] {
      PassLines(job_id, lines);
      OnExit(job_id, number, exit);
    });
  };
}

// And again soon, while more come.
void DriverProcesses::PassLines(const std::string& job_id,
                                const std::shared_ptr<process::LineGate>& lines) {
  if (closed_) return;
  const std::vector<process::LineGate::Line> taken = lines->Take();
  for (const process::LineGate::Line& line : taken) {
    options_.on_line(job_id, UnixMicros(line.time), line.text);
  }
  if (taken.empty()) return;
  (void)strand_.RunAfter(kLinePause, [this, here = lifeline_.Watch(), job_id, lines] {
    if (here()) PassLines(job_id, lines);
  });
}

void DriverProcesses::OnStarted(const std::string& job_id, Incarnation number,
                                Result<std::unique_ptr<Running>> process) {
  const auto found = drivers_.find(job_id);
  const bool wanted = !closed_ && found != drivers_.end() && found->second.number == number;
  if (!wanted) {  // it has ended already, or another one has its place
    if (process.ok()) Bury(*std::move(process));
    return;
  }
  if (!process.ok()) {
    drivers_.erase(found);
    return options_.on_exit(job_id, number, false, "no start: " + ToString(process.status()));
  }
  Driver& driver = found->second;
  driver.process = *std::move(process);
  for (const v1::ToProgram& message : std::exchange(driver.waiting, {})) {
    driver.process->Send(message);
  }
  if (driver.signal != 0) Signal(driver, driver.signal);
}

void DriverProcesses::Send(const std::string& job_id, const v1::ToProgram& message) {
  const auto found = drivers_.find(job_id);
  if (found == drivers_.end()) return;
  if (found->second.process == nullptr) {
    found->second.waiting.push_back(message);
  } else {
    found->second.process->Send(message);
  }
}

void DriverProcesses::SendTo(const std::string& job_id, Incarnation driver,
                             const v1::ToProgram& message) {
  const auto found = drivers_.find(job_id);
  if (found != drivers_.end() && found->second.number == driver) Send(job_id, message);
}

void DriverProcesses::Bury(std::unique_ptr<Running> process) {
  if (process == nullptr) return;
  if (closed_) return process.reset();
  burials_.Bury(std::shared_ptr<Running>(std::move(process)));
}

void DriverProcesses::Signal(Driver& driver, int signal) {
  driver.signal = signal;
  if (driver.process != nullptr) (void)driver.process->Signal(signal);
}

void DriverProcesses::OnExit(const std::string& job_id, Incarnation number,
                             const process::Exit& exit) {
  const auto found = drivers_.find(job_id);
  if (closed_ || found == drivers_.end() || found->second.number != number) return;
  Bury(std::move(found->second.process));
  drivers_.erase(found);
  options_.on_exit(job_id, number, exit.ok(), exit.ToString());
}

void DriverProcesses::Stop(const std::string& job_id, Millis grace) {
  const auto found = drivers_.find(job_id);
  if (found == drivers_.end()) return;
  Signal(found->second, grace.count() > 0 ? SIGTERM : SIGKILL);
  if (grace.count() <= 0) return;
  (void)strand_.RunAfter(grace, [this, job_id, number = found->second.number] {
    const auto later = drivers_.find(job_id);
    if (later != drivers_.end() && later->second.number == number) {
      Signal(later->second, SIGKILL);
    }
  });
}

int DriverProcesses::Pid(const std::string& job_id) const {
  const auto found = drivers_.find(job_id);
  const bool runs = found != drivers_.end() && found->second.process != nullptr;
  return runs ? found->second.process->pid() : 0;
}

void DriverProcesses::Kill() {
  closed_ = true;
  for (auto& [job, driver] : drivers_) Signal(driver, SIGKILL);
}

void DriverProcesses::Close() {
  Kill();
  forks_.Stop();
  burials_.Stop();
  drivers_.clear();
}

}  // namespace muster::coordinator
