// The part of WorkerCore that takes what processes write, and their ends.
#include <algorithm>

#include "common/base/words.h"
#include "common/telemetry/log.h"
#include "worker/lines.h"
#include "worker/program_errors.h"
#include "worker/worker_core.h"

namespace muster::worker {
namespace {

// What the C++ runtime, libtorch and glibc say before they abort.
bool TellsWhy(std::string_view line) {
  for (const std::string_view sign : {"what():", "INTERNAL ASSERT", "a bug in Muster:",
                                      "Assertion `", "ERROR: AddressSanitizer"}) {
    if (line.find(sign) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

void WorkerCore::OnLine(ProcessId process, std::int64_t time_us, const std::string& line) {
  std::string text = CutLine(line);
  if (const auto dying = dying_.find(process); dying != dying_.end()) {
    return AddLine(dying->second.job_id, time_us, std::move(text));
  }
  const auto found = processes_.find(process);
  if (found == processes_.end()) return;
  if (TellsWhy(text)) found->second.cause = text;
  found->second.last_lines.push_back(text);
  if (found->second.last_lines.size() > kLastLines) found->second.last_lines.pop_front();
  if (found->second.use != Use::kJob) {
    log::Debug("executor {}: {}", found->second.pid, text);
    return;
  }
  AddLine(found->second.job_id, time_us, std::move(text));
}

void WorkerCore::AddLine(const std::string& job_id, std::int64_t time_us, std::string text) {
  Job& job = jobs_[job_id];
  if (job.lines.lines_size() >= kMostLinesWaiting) {
    ++job.dropped_lines;
    return;
  }
  v1::LogLine& entry = *job.lines.add_lines();
  entry.set_time_us(time_us);
  entry.set_text(std::move(text));
  if (std::exchange(job.flush_planned, true)) return;
  (void)scheduler_.RunAfter(options_.log_delay,
                            lifeline_.Guard([this, job_id] { FlushLines(job_id); }));
}

void WorkerCore::FlushLines(const std::string& job_id) {
  Job& job = jobs_[job_id];
  job.flush_planned = false;
  if (job.lines.lines_size() == 0) return;
  if (job.dropped_lines > 0) {
    v1::LogLine& note = *job.lines.add_lines();
    note.set_time_us(job.lines.lines(job.lines.lines_size() - 2).time_us());
    note.set_text(fmt::format(
        "({} dropped: too many at once)",
        Counted(static_cast<std::uint64_t>(std::exchange(job.dropped_lines, 0)), "line")));
  }
  v1::DaemonMessage message;
  message.mutable_log()->Swap(&job.lines);
  message.mutable_log()->set_job_id(job_id);
  io_.ToCoordinator(std::move(message));
}

// By what the process was for: a spare is started anew after a while, a check fails with its last
// words, a job's goes to OnJobExited(). One that was being killed leaves its lines and its count,
// no more.
void WorkerCore::OnExited(ProcessId id, const std::string& how, bool from_outside,
                          std::optional<std::vector<ClosureId>> running, std::uint64_t closures) {
  if (const auto dying = dying_.find(id); dying != dying_.end()) {
    CountLast(closures, dying->second.closures);
    FlushLines(dying->second.job_id);
    dying_.erase(dying);
    return;
  }
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;  // killed by us
  Process process = std::move(found->second);
  processes_.erase(found);
  std::deque<std::string>& lines = process.last_lines;
  const bool told = std::find(lines.begin(), lines.end(), process.cause) != lines.end();
  if (!how.starts_with("signal")) process.cause.clear();
  if (!process.cause.empty() && !told) lines.push_front(process.cause);
  std::string last = process.cause;
  if (last.empty() && !lines.empty()) last = lines.back();
  if (!last.empty()) last = ": " + last;
  switch (process.use) {
    case Use::kSpare:
      log::Warning("the executor started in advance ({}) ended: {}{}", process.pid, how, last);
      spare_.reset();
      return KeepWarm(Millis(10'000));
    case Use::kCheck:
      if (process.program) return EndCheck(id, ExplainEarlyEnd(how, lines), {}, false);
      return EndCheck(id,
                      Internal("the executor ended while {}: {}{}", checks_[id].what, how, last),
                      {}, false);
    case Use::kJob:
      CountLast(closures, jobs_[process.job_id].pulse.ended());
      // While its daemon is there a user's program has no orderly end here: with 0, too, its own
      // code has called exit().
      if (process.program && !how.starts_with("signal")) from_outside = false;
      return OnJobExited(process.job_id, process,
                         {.how = how,
                          .stuck = false,
                          .from_outside = from_outside,
                          .running = std::move(running)});
  }
}

// A pulse comes every second: a short job ends between two.
void WorkerCore::CountLast(std::uint64_t closures, std::uint64_t counted) {
  if (closures > counted) closures_done_ += closures - counted;
}

void WorkerCore::OnJobExited(const std::string& job_id, const Process& process,
                             const ExecutorEnd& end) {
  Job& job = jobs_[job_id];
  log::With({{"job", job_id}}).Warning("executor {} ended: {}", process.pid, end.how);
  job.process.reset();
  job.starting = job.ready = false;
  job.pulse.Clear();
  FlushLines(job_id);
  Tell(v1::ExecutorEvent::KIND_EXITED, job_id, job, process.pid, end, process.last_lines);
  AnswerAll(job, Unavailable("the executor of job {} on worker:{} ended before it was ready: {}",
                             job_id, options_.worker_index, end.how));
  if (draining_) FinishDrain();
}

}  // namespace muster::worker
