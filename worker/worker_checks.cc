// The part of WorkerCore that finds out before a job runs whether it could: in a process of its
// own, with a deadline.
#include "worker/program_errors.h"
#include "worker/worker_core.h"

namespace muster::worker {

void WorkerCore::RunCheck(Waiter waiter, v1::ToExecutor message, const v1::JobSpec& spec,
                          std::string what) {
  WithFile(FileOf(spec), [this, waiter, message = std::move(message),
                          what = std::move(what)](const Result<std::string>& path) {
    if (!path.ok()) return Answer(waiter, Annotate(path.status(), "the job's archive"));
    v1::ToExecutor complete = message;
    complete.set_archive_path(*path);
    complete.set_cache_directory(options_.cache_directory);
    BeginCheck(waiter, std::move(complete), what);
  });
}

void WorkerCore::BeginCheck(Waiter waiter, v1::ToExecutor message, std::string what) {
  const Result<ProcessId> process = TakeProcess(Use::kCheck, "");
  if (!process.ok()) return Answer(waiter, process.status());
  WatchCheck(*process, waiter, std::move(what));
  io_.Send(*process, message);
}

// `process` answers `waiter`, or this does when it has not ended in time.
void WorkerCore::WatchCheck(ProcessId process, Waiter waiter, std::string what) {
  Check& check = checks_[process];
  check.waiter = waiter;
  check.what = std::move(what);
  check.deadline = scheduler_.RunAfter(options_.check_limit, lifeline_.Guard([this, id = process] {
    if (!checks_.contains(id)) return;
    const Status late = processes_[id].program
                            ? ExplainSilence(options_.check_limit)
                            : DeadlineExceeded("{} has not ended within {} s", checks_[id].what,
                                               options_.check_limit.count() / 1'000);
    EndCheck(id, late, {}, false);
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

}  // namespace muster::worker
