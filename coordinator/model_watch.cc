// The driver's process: it is started, watched, and replaced when it ends or is silent.
//
// Each view has one of its own. Another one in the same view finds in OpenJob where that is and
// goes on from there: nothing is trained again. Its number fences the old one, which may only be
// stopped and wake up later.
#include "coordinator/model_job.h"

namespace muster::coordinator {
namespace {

// Looks without a sign of life before a driver is given up. Looks, and not time by the clock: while
// this process, or the whole machine, stands still nobody looks, and nobody is blamed.
constexpr int kLooks = 10;

// One that ends at once may do so before its id is known.
std::string Name(int pid) {
  return pid == 0 ? "the job's driver" : fmt::format("the job's driver (process {})", pid);
}

}  // namespace

void ModelJob::StartDriver() {
  driver_ = Driver();
  driver_.number = NextIncarnation(world_.epoch, drivers_started_);
  driver_.settled_before = lasting_.settled;
  driver_.heard_at = world_.scheduler.Now();
  v1::ProgramStart start;
  start.set_role(v1::PROGRAM_ROLE_DRIVER);
  start.set_job_id(id());
  start.set_job_name(record().job().name());
  start.set_epoch(world_.epoch.value());
  start.set_incarnation(driver_.number.value());
  world_.logs.NoteStart(id(), driver_task());
  const Status status = world_.drivers.StartModel(start);
  if (!status.ok()) {
    return LoseDriver("DRIVER_LOST", "the job's driver cannot be started: " + Message(status),
                      {{"how", Message(status)}});
  }
  driver_.running = true;
  view_->OnDriverBegins();
  WatchDriver();
}

void ModelJob::EndDriver() {
  if (!driver_.running) return;
  world_.drivers.Stop(id(), Millis(0));
  driver_ = Driver();
}

void ModelJob::WatchDriver() {
  if (world_.options.driver_timeout.count() <= 0) return;
  const auto look = [this, here = lifeline_.Watch(), number = driver_.number] {
    if (!here() || ended() || !driver_.running || driver_.number != number) return;
    driver_.pid = world_.drivers.Pid(id());
    if (std::exchange(driver_.heard, false) || driver_.calls > 0) {
      driver_.silent_looks = 0;
      driver_.heard_at = world_.scheduler.Now();
    } else if (++driver_.silent_looks >= kLooks) {
      const auto silence =
          std::chrono::duration_cast<Millis>(world_.scheduler.Now() - driver_.heard_at);
      // SIGKILL: a stopped process takes nothing else.
      world_.drivers.Stop(id(), Millis(0));
      return LoseDriver(
          "DRIVER_STUCK",
          fmt::format("{} asked nothing for {:.1f} s and was killed", Name(driver_.pid),
                      static_cast<double>(silence.count()) / 1000),
          {{"pid", std::to_string(driver_.pid)}, {"silence_ms", std::to_string(silence.count())}});
    }
    WatchDriver();
  };
  (void)world_.scheduler.RunAfter(world_.options.driver_timeout / kLooks, look);
}

void ModelJob::OnDriverExit(Incarnation driver, bool success, const std::string& how) {
  if (driver != driver_.number) return;
  driver_.running = false;
  if (ended()) return;
  LoseDriver("DRIVER_LOST",
             fmt::format("{} ended {} ({}) before the job did", Name(driver_.pid),
                         success ? "by itself" : "with an error", how),
             {{"pid", std::to_string(driver_.pid)}, {"how", how}});
}

void ModelJob::LoseDriver(const std::string& reason, const std::string& what,
                          Story::Fields fields) {
  if (lasting_.settled > driver_.settled_before) driver_failures_ = 0;
  if (!driver_lost_at_) driver_lost_at_ = driver_.heard_at;
  driver_ = Driver();
  ++driver_failures_;
  if (view_) view_->OnDriverGone();
  if (ended()) return;
  const bool again = driver_failures_ < world_.options.driver_limit;
  fields.emplace_back("failures", std::to_string(driver_failures_));
  story_.Tell(reason, what + (again ? "; another takes its place" : "; it is not started again"),
              nullptr, fields, world_.logs.Last(id(), "trainer"));
  // What it waited in is answered: whoever wakes up learns that it was replaced.
  story_.parked().Recheck();
  if (!again) {
    return Fail(Internal(
        "the job's driver was lost {} times without getting on, the last time: {}; `muster logs {} "
        "trainer` shows what it wrote",
        driver_failures_, what, id()));
  }
  (void)world_.scheduler.RunAfter(
      Millis(250 << driver_failures_), [this, here = lifeline_.Watch()] {
        if (!here() || ended() || driver_.running || !view_ || !view_->open()) return;
        StartDriver();
      });
}

void ModelJob::NoteDriverBack() {
  if (!driver_lost_at_) return;
  const auto gap = std::chrono::duration_cast<Millis>(world_.scheduler.Now() - *driver_lost_at_);
  driver_lost_at_.reset();
  story_.Tell(
      "DRIVER_REPLACED",
      fmt::format("process {} drives the job now, {:.1f} s after the one before it was last heard; "
                  "it goes on at step {}",
                  driver_.pid, static_cast<double>(gap.count()) / 1000, view_->StepsDone()),
      nullptr,
      {{"pid", std::to_string(driver_.pid)},
       {"gap_ms", std::to_string(gap.count())},
       {"step", std::to_string(view_->StepsDone())}});
}

}  // namespace muster::coordinator
