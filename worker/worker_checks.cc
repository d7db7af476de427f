// The part of WorkerCore that finds out before a job runs whether it could: in a process of its
// own, with a deadline.
#include "worker/program_errors.h"
#include "worker/worker_core.h"

namespace muster::worker {

void WorkerCore::RunCheck(Waiter waiter, v1::ToExecutor message, const v1::JobSpec& spec,
                          std::string what, Millis limit) {
  WithFile(FileOf(spec), waiter,
           [this, waiter, message = std::move(message), what = std::move(what),
            limit](const Result<std::string>& path) {
             if (!path.ok()) return Answer(waiter, Annotate(path.status(), "the job's archive"));
             v1::ToExecutor complete = message;
             complete.set_archive_path(*path);
             complete.set_cache_directory(options_.cache_directory);
             BeginCheck(waiter, std::move(complete), what, limit);
           });
}

void WorkerCore::BeginCheck(Waiter waiter, v1::ToExecutor message, std::string what, Millis limit) {
  if (draining_) {
    return Answer(waiter, Unavailable("worker:{} is draining", options_.worker_index));
  }
  const Result<ProcessId> process = TakeProcess(Use::kCheck, "");
  if (!process.ok()) return Answer(waiter, process.status());
  WatchCheck(*process, waiter, std::move(what), limit);
  io_.Send(*process, message);
}

// `process` answers `waiter`, or this does when it has not ended in time.
void WorkerCore::WatchCheck(ProcessId process, Waiter waiter, std::string what, Millis limit) {
  Check& check = checks_[process];
  check.waiter = waiter;
  check.what = std::move(what);
  check.limit = limit;
  ExtendCheck(process);
}

void WorkerCore::ExtendCheck(ProcessId process) {
  const auto found = checks_.find(process);
  if (found == checks_.end()) return;
  Check& check = found->second;
  if (check.deadline != 0) (void)scheduler_.Cancel(check.deadline);
  if (check.limit.count() <= 0) return;
  check.deadline = scheduler_.RunAfter(check.limit, lifeline_.Guard([this, id = process] {
    const auto late = checks_.find(id);
    if (late == checks_.end()) return;
    const Millis waited = late->second.limit;
    EndCheck(id,
             processes_[id].program ? ExplainSilence(waited)
                                    : DeadlineExceeded("{} has not ended within {} s",
                                                       late->second.what, waited.count() / 1'000),
             {}, false);
  }));
}

void WorkerCore::EndCheck(ProcessId process, const Status& status, v1::CommandResult result,
                          bool keep) {
  const auto found = checks_.find(process);
  if (found == checks_.end()) return;
  const Check check = std::move(found->second);
  checks_.erase(found);
  (void)scheduler_.Cancel(check.deadline);
  if (keep && options_.warm && !spare_ && !draining_) {
    processes_[process].use = Use::kSpare;
    spare_ = process;
  } else {
    KillProcess(process);
  }
  Answer(check.waiter, status, std::move(result));
}

void WorkerCore::EndChecks(const Status& why) {
  while (!checks_.empty()) EndCheck(checks_.begin()->first, why, {}, false);
}

}  // namespace muster::worker
