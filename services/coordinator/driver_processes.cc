#include "services/coordinator/driver_processes.h"

#include <csignal>

#include "common/base/wall_time.h"

namespace muster::coordinator {

Status DriverProcesses::Start(const std::string& job_id, std::uint64_t number) {
  if (closed_) return Unavailable("the coordinator is shutting down");
  // An old one may still be on its way out: its end is then nobody's concern.
  if (auto old = drivers_.extract(job_id)) Bury(std::move(old.mapped().child));
  process::Child::Options child;
  child.argv = {options_.program, "--coordinator",       address_, "--job", job_id,
                "--driver",       std::to_string(number)};
  child.environment = {{"MUSTER_TOKEN_FILE", options_.token_file}};
  child.on_line = [this, job_id](std::chrono::system_clock::time_point time, std::string line) {
    strand_.Post([this, job_id, time_us = UnixMicros(time), line = std::move(line)]() mutable {
      if (!closed_) options_.on_line(job_id, time_us, std::move(line));
    });
  };
  child.on_exit = [this, job_id, number](process::Exit exit) {
    strand_.Post([this, job_id, number, exit] { OnExit(job_id, number, exit); });
  };
  drivers_[job_id].number = number;
  auto started = std::make_shared<Result<std::unique_ptr<process::Child>>>(nullptr);
  forks_.Run(
      [started, child = std::move(child)]() mutable {
        *started = process::Child::Start(std::move(child));
      },
      [this, started, job_id, number] { OnStarted(job_id, number, std::move(*started)); });
  return Ok();
}

void DriverProcesses::OnStarted(const std::string& job_id, std::uint64_t number,
                                Result<std::unique_ptr<process::Child>> child) {
  const auto found = drivers_.find(job_id);
  const bool wanted = !closed_ && found != drivers_.end() && found->second.number == number;
  if (!wanted) {  // it has ended already, or another one has its place
    if (child.ok()) Bury(*std::move(child));
    return;
  }
  if (!child.ok()) {
    drivers_.erase(found);
    return options_.on_exit(job_id, number, false, "no start: " + ToString(child.status()));
  }
  found->second.child = *std::move(child);
  if (found->second.signal != 0) Signal(found->second, found->second.signal);
}

void DriverProcesses::Bury(std::unique_ptr<process::Child> child) {
  if (child == nullptr) return;
  if (closed_) return child.reset();
  forks_.Run([child = std::move(child)]() mutable { child.reset(); }, [] {});
}

void DriverProcesses::Signal(Driver& driver, int signal) {
  driver.signal = signal;
  if (driver.child != nullptr) (void)driver.child->Signal(signal);
}

void DriverProcesses::OnExit(const std::string& job_id, std::uint64_t number,
                             const process::Exit& exit) {
  const auto found = drivers_.find(job_id);
  if (closed_ || found == drivers_.end() || found->second.number != number) return;
  Bury(std::move(found->second.child));
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
  const bool runs = found != drivers_.end() && found->second.child != nullptr;
  return runs ? found->second.child->pid() : 0;
}

void DriverProcesses::Close() {
  closed_ = true;
  forks_.Stop();
  drivers_.clear();
}

}  // namespace muster::coordinator
