// muster-trainer: the driver process of one view of a model job. The coordinator daemon starts it,
// with a socket pair as descriptor 3.
#include <cstdio>
#include <string>

#include <unistd.h>

#include "common/base/environment.h"
#include "common/config/settings.h"
#include "common/process/message_pipe.h"
#include "common/rpc/names.h"
#include "services/common/daemon.h"
#include "services/common/grpc_channel.h"
#include "services/common/tls_files.h"
#include "services/common/token.h"
#include "services/trainer/dispatched_closures.h"
#include "services/trainer/driver_client.h"
#include "services/trainer/patient_driver.h"
#include "services/trainer/trainer.h"

namespace muster {
namespace {

using services::Token;

const std::vector<config::Setting> kSettings = {
    {.name = "coordinator", .doc = "host:port of the coordinator"},
    {.name = "job", .doc = "the job to drive"},
    {.name = "driver",
     .kind = config::Kind::kInt,
     .fallback = "0",
     .doc = "the number that the coordinator has given this process",
     .least = 0},
    {.name = "token-file", .doc = "the cluster's token"},
    {.name = "tls-ca", .doc = "the authorities of the cluster"},
    {.name = "tls-cert", .doc = "the coordinator's certificate"},
    {.name = "tls-key", .doc = "and its key"},
    {.name = "tls-allowed", .doc = "the certificates that are let in"},
};

constexpr int kPipe = 3;
// The coordinator writes its first message when it has started the process.
constexpr Millis kFirstMessage{60'000};

Status Drive(const config::Values& values) {
  MUSTER_TRY_ASSIGN(const Token token, Token::Read(values.String("token-file")));
  const auto api = trainer::MakeDriverClient(
      services::MakeChannel(values.String("coordinator"), services::TlsFilesOf(values)), token,
      values.String("job"), Incarnation(static_cast<std::uint64_t>(values.Int("driver"))));
  const auto say = [](const std::string& line) {
    std::fprintf(stderr, "muster-trainer: %s\n", line.c_str());
  };
  trainer::PatientDriver patient(*api, {.say = say});
  // Threads of the links run on until the process ends: nothing of theirs is destroyed.
  static auto* const pipe = new process::MessagePipe(kPipe);
  static auto* const first = new v1::ToProgram;
  MUSTER_TRY(Annotate(pipe->Receive(*first, kFirstMessage), "the coordinator's pipe"));
  const auto make = [](const v1::OpenJobReply& opened) -> trainer::Closures& {
    return *new trainer::DispatchedClosures(first->start(), *pipe, opened);
  };
  ThreadScheduler clock;
  return trainer::Trainer(patient, make, clock, {}).Run();
}

int Main(int argc, char** argv) {
  const Result<config::Flags> flags = config::ParseFlags(argc, argv, kSettings);
  if (!flags.ok()) {
    std::fprintf(stderr, "muster-trainer: %s\n", Message(flags.status()).c_str());
    return services::kExitFlags;
  }
  if (flags->help) {
    std::printf("%s",
                config::HelpText("muster-trainer", "Drives one model job.", kSettings).c_str());
    return services::kExitDrained;
  }
  const Result<config::Values> values = config::Resolve(kSettings, *flags, ProcessEnvironment());
  if (!values.ok()) {
    std::fprintf(stderr, "muster-trainer: %s\n", Message(values.status()).c_str());
    return services::kExitConfig;
  }
  const Status status = Drive(*values);
  if (!status.ok()) std::fprintf(stderr, "muster-trainer: %s\n", ToString(status).c_str());
  (void)std::fflush(stderr);
  ::_exit(status.ok() ? services::kExitDrained : services::kExitFailed);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  muster::rpc::UseSystemResolver();
  return muster::Main(argc, argv);
}
