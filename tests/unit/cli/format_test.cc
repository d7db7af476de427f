#include "cli/format.h"

#include "cli/progress.h"
#include "common/messages/job_state.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

TEST_CASE("figures are written for people", "[cli][unit]") {
  CHECK(Seconds(0.4) == "0 s");
  CHECK(Seconds(119) == "119 s");
  CHECK(Seconds(600) == "10 min");
  CHECK(Seconds(10'800) == "3.0 h");
  CHECK(Thousands(0) == "0");
  CHECK(Thousands(999) == "999");
  CHECK(Thousands(1'234'567) == "1,234,567");
  CHECK(StateName(v1::JOB_STATE_RUNNING) == "RUNNING");
}

TEST_CASE("a table aligns its columns and leaves no blanks at the end", "[cli][unit]") {
  CHECK(Table({{"A", "LONG", "C"}, {"wide", "x", ""}}) == "A     LONG  C\nwide  x\n");
}

v1::Job RunningJob() {
  v1::Job job = testing::MakeJob("j-1", v1::JOB_STATE_RUNNING);
  job.mutable_progress()->set_step(1200);
  job.mutable_progress()->set_total_steps(2345);
  job.mutable_progress()->set_examples_per_second(40'123.7);
  job.mutable_progress()->set_loss(0.38214);
  job.mutable_progress()->set_eta_seconds(12.2);
  job.mutable_progress()->set_phase("training");
  return job;
}

TEST_CASE("the progress line tells step, rate, loss and ETA", "[cli][unit]") {
  CHECK(ProgressLine(RunningJob(), 0) ==
        "step 1200/2345 [##########..........]  51%  40,123 examples/s  loss 0.3821  ETA 12 s");
  CHECK(ProgressLine(RunningJob(), 40).size() == 39);
  // Cut between characters, and by their number.
  v1::Job job = RunningJob();
  job.mutable_progress()->set_phase("évaluation");
  const std::string whole = ProgressLine(job, 0);
  const auto before = static_cast<int>(whole.size() - std::string("évaluation").size());
  CHECK(ProgressLine(job, before + 2) == whole.substr(0, static_cast<std::size_t>(before)) + "é");
}

TEST_CASE("the progress line of a job that waits tells for what", "[cli][unit]") {
  v1::Job job = testing::MakeJob("j-1", v1::JOB_STATE_PENDING);
  job.set_message("waiting for worker:0");
  CHECK(ProgressLine(job, 0) == "PENDING: waiting for worker:0");
}

TEST_CASE("on a terminal progress is one line that is redrawn, events stand above", "[cli][unit]") {
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err, .live = true, .columns = 200};
  FakeScheduler clock;
  ProgressView view(terminal, clock);
  v1::Job job = RunningJob();

  view.Show(job);
  v1::Event* event = job.add_events();
  event->set_sequence(1);
  event->set_message("worker:1 (pid 7) was lost: signal SIGKILL");
  view.Show(job);
  view.Show(job);
  view.Finish();

  const std::string line = ProgressLine(RunningJob(), 200);
  CHECK(err.str().starts_with(line + "\r\033[K"));
  CHECK(err.str().ends_with("worker:1 (pid 7) was lost: signal SIGKILL\n" + line + "\n"));
  CHECK(out.str().empty());
}

TEST_CASE("in a pipe progress is plain lines, not too many", "[cli][unit]") {
  std::ostringstream out, err;
  const Terminal terminal{.out = out, .err = err};
  FakeScheduler clock;
  ProgressView view(terminal, clock);
  v1::Job job = RunningJob();

  for (int i = 0; i < 100; ++i) {
    job.mutable_progress()->set_step(1200 + i);
    view.Show(job);
    clock.Advance(std::chrono::milliseconds(100));
  }
  view.Finish();

  const std::string text = err.str();
  CHECK(std::count(text.begin(), text.end(), '\n') == 5);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE("a job that waits shows for whom, not when it would be done", "[cli][unit]") {
  v1::Job job;
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_reason("WAITING_FOR_TASKS");
  job.set_message("waiting for worker:0 (lost)");
  job.mutable_progress()->set_step(2);
  job.mutable_progress()->set_total_steps(10);
  job.mutable_progress()->set_eta_seconds(10'000);
  const std::string line = ProgressLine(job, 0);
  CHECK(line.find("waiting for worker:0 (lost)") != std::string::npos);
  CHECK(line.find("ETA") == std::string::npos);
}

}  // namespace
}  // namespace muster::cli
