// muster-trainer JOB: the driver process of one view of a model job. The coordinator daemon starts
// it, with a socket pair as descriptor 3, which says all that it is to know; the job is named for
// those who list processes.
#include <cstdio>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "common/process/message_pipe.h"
#include "services/trainer/dispatched_closures.h"
#include "services/trainer/driver_pipe.h"
#include "services/trainer/patient_driver.h"
#include "services/trainer/trainer.h"

namespace muster {
namespace {

constexpr int kPipe = 3;
constexpr int kUsage = 2;
// The coordinator writes its first message when it has started the process.
constexpr Millis kFirstMessage{60'000};

Status Drive() {
  // Threads of the links run on until the process ends: nothing of theirs is destroyed.
  static auto* const pipe = new process::MessagePipe(kPipe);
  static auto* const first = new v1::ToProgram;
  MUSTER_TRY(Annotate(pipe->Receive(*first, kFirstMessage), "the coordinator's pipe"));
  // It is killed with its coordinator anyhow; nothing that it still did would count.
  static auto* const api = new trainer::DriverPipe(*pipe, first->start(), [](const Status& status) {
    std::fprintf(stderr, "muster-trainer: the coordinator is gone: %s\n", Message(status).c_str());
    (void)std::fflush(stderr);
    ::_exit(1);
  });
  const auto say = [](const std::string& line) {
    std::fprintf(stderr, "muster-trainer: %s\n", line.c_str());
  };
  trainer::PatientDriver patient(*api, {.say = say});
  const auto make = [](const v1::OpenJobReply& opened) -> trainer::Closures& {
    return *new trainer::DispatchedClosures(first->start(), *api, opened);
  };
  ThreadScheduler clock;
  return trainer::Trainer(patient, make, clock, {}).Run();
}

int Main() {
  struct stat info{};
  if (::fstat(kPipe, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    std::fprintf(stderr,
                 "muster-trainer: descriptor 3 is no socket: a coordinator starts this program\n");
    return kUsage;
  }
  const Status status = Drive();
  if (!status.ok()) std::fprintf(stderr, "muster-trainer: %s\n", ToString(status).c_str());
  (void)std::fflush(stderr);
  ::_exit(status.ok() ? 0 : 1);
}

}  // namespace
}  // namespace muster

int main() { return muster::Main(); }
