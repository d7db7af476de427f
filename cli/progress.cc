#include "cli/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "cli/format.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

constexpr int kBarCells = 20;

std::string Bar(double share) {
  const int full = static_cast<int>(share * kBarCells);
  return "[" + std::string(static_cast<std::size_t>(full), '#') +
         std::string(static_cast<std::size_t>(kBarCells - full), '.') + "]";
}

// The sentence at the job's end says it, once.
bool ToldAtTheEnd(const v1::Event& event) {
  for (const char* reason :
       {"JOB_SUCCEEDED", "JOB_FAILED", "JOB_CANCELLED", "CLOSURE_FAILED", "POISON_CLOSURE"}) {
    if (event.reason() == reason) return true;
  }
  return false;
}

// What a program has said of itself.
std::string ProgramLine(const v1::ProgramReport& report, bool ended) {
  std::string line = fmt::format("{} closures", Thousands(report.done()));
  if (ended) return line;
  if (report.closures_per_second() > 0) {
    line +=
        fmt::format("  {}/s", Thousands(static_cast<std::uint64_t>(report.closures_per_second())));
  }
  if (report.in_flight() > 0) line += fmt::format("  {} in flight", Thousands(report.in_flight()));
  if (report.queued() > 0) line += fmt::format("  {} queued", Thousands(report.queued()));
  if (!report.phase().empty()) line += "  " + report.phase();
  return line;
}

}  // namespace

std::string ProgressLine(const v1::Job& job, int columns) {
  const v1::JobProgress& progress = job.progress();
  std::string line;
  // The end is told in a sentence of its own.
  const bool counts = progress.total_steps() != 0 || job.has_program() || job.spec().has_launch();
  if (!HasEnded(job.state()) && (job.state() != v1::JOB_STATE_RUNNING || !counts)) {
    line = StateName(job.state());
    if (!job.message().empty()) line += ": " + job.message();
  }
  if (job.has_program()) {
    line += (line.empty() ? "" : "  ") + ProgramLine(job.program(), HasEnded(job.state()));
  }
  if (progress.total_steps() != 0) {
    const double share = std::min(
        1.0, static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps()));
    if (!line.empty()) line += "  ";
    line += fmt::format("step {}/{} {} {:3.0f}%", progress.step(), progress.total_steps(),
                        Bar(share), std::floor(share * 100));
    if (progress.examples_per_second() > 0) {
      line += fmt::format("  {} examples/s",
                          Thousands(static_cast<std::uint64_t>(progress.examples_per_second())));
    }
    if (progress.step() > 0) line += fmt::format("  loss {:.4f}", progress.loss());
    if (progress.has_accuracy()) line += fmt::format("  accuracy {:.4f}", progress.accuracy());
    const bool waits = job.state() == v1::JOB_STATE_RUNNING && job.reason() == "WAITING_FOR_TASKS";
    if (waits) {
      line += "  " + job.message();
    } else if (progress.has_eta_seconds() && !HasEnded(job.state())) {
      line += fmt::format("  ETA {}", Seconds(progress.eta_seconds()));
    }
    if (!progress.phase().empty() && progress.phase() != "training") {
      line += "  " + progress.phase();
    }
  }
  // A cursor in the last column would go on to the next line.
  return columns == 1 ? "" : std::string(Cut(line, std::max(columns - 1, 0)));
}

void ProgressView::Show(const v1::Job& job) {
  for (const v1::Event& event : job.events()) {
    if (event.sequence() <= last_event_) continue;
    last_event_ = event.sequence();
    if (ToldAtTheEnd(event)) continue;
    Say(fmt::format("{} {}", ClockTime(event.time_ms()), event.message()));
  }
  const std::string line = ProgressLine(job, terminal_.live ? terminal_.columns : 0);
  const std::string state = StateName(job.state()) + job.progress().phase() + job.program().phase();
  if (line.empty() || line == last_line_) return;
  if (terminal_.live) {
    Erase();
    terminal_.err << line << std::flush;
    drawn_ = true;
  } else if (state != last_state_ || clock_.Now() - last_shown_ >= kQuiet) {
    terminal_.err << line << '\n' << std::flush;
  } else {
    return;
  }
  last_line_ = line;
  last_state_ = state;
  last_shown_ = clock_.Now();
}

void ProgressView::Say(const std::string& sentence) {
  Erase();
  terminal_.err << sentence << '\n' << std::flush;
  last_line_.clear();
}

void ProgressView::Yield() {
  if (!drawn_) return;
  Erase();
  terminal_.err << std::flush;
  last_line_.clear();
}

void ProgressView::Finish() {
  if (drawn_) terminal_.err << '\n' << std::flush;
  drawn_ = false;
}

void ProgressView::Erase() {
  if (drawn_) terminal_.err << "\r\033[K";
  drawn_ = false;
}

}  // namespace muster::cli
