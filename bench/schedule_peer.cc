#include "bench/schedule_peer.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include "dispatch/executor.h"
#include <unistd.h>

#include "bench/scratch.h"
#include "common/net/socket.h"
#include "common/process/cpu_time.h"

namespace muster::bench {
namespace {

Status Serve(net::SpinMode spin) {
  MUSTER_TRY_ASSIGN(const auto scratch,
                    Scratch::Make(std::filesystem::temp_directory_path().string()));
  std::vector<net::Listener> listeners(2);
  MUSTER_TRY_ASSIGN(listeners[0], net::ListenUnix(scratch->path() + "/socket"));
  MUSTER_TRY_ASSIGN(listeners[1], net::ListenTcp("127.0.0.1:0"));
  MUSTER_TRY_ASSIGN(const auto executor,
                    dispatch::Executor::Create(
                        {.identity = {.token = kScheduleKey, .host_id = "bench"}, .spin = spin},
                        ScheduleFunctions()));
  fmt::print("{}\n{}\n", listeners[0].address, listeners[1].address);
  (void)std::fflush(stdout);
  std::thread until_parent_ends([&] {
    for (char c = 0; ::read(STDIN_FILENO, &c, 1) > 0;) {
    }
    executor->Stop();
  });
  const Status status = executor->Serve(listeners);
  until_parent_ends.join();
  return status;
}

}  // namespace

const dispatch::FunctionTable& ScheduleFunctions() {
  static const dispatch::FunctionTable functions = [] {
    dispatch::FunctionTable table;
    table.Add("empty", [](dispatch::ClosureContext&) { return Ok(); });
    table.Add("take", [](dispatch::ClosureContext&) { return Ok(); });
    table.Add("give", [](dispatch::ClosureContext& context) {
      std::uint64_t bytes = 0;
      if (context.arguments().size() != sizeof(bytes)) return InvalidArgument("give: how many?");
      std::memcpy(&bytes, context.arguments().data(), sizeof(bytes));
      context.value().resize(bytes);
      return Ok();
    });
    return table;
  }();
  return functions;
}

Result<std::unique_ptr<SchedulePeer>> SchedulePeer::Start(net::SpinMode spin) {
  std::unique_ptr<SchedulePeer> peer(new SchedulePeer);
  const char* mode = spin == net::SpinMode::kOff ? "blocking" : "spinning";
  MUSTER_TRY_ASSIGN(peer->process_, SelfProcess::Start("schedule-executor", mode));
  MUSTER_TRY_ASSIGN(peer->unix_, peer->process_->ReadLine());
  MUSTER_TRY_ASSIGN(peer->tcp_, peer->process_->ReadLine());
  return peer;
}

double SchedulePeer::CpuSeconds() const {
  const auto time = process::CpuTime(process_->pid());
  return time.ok() ? std::chrono::duration<double>(*time).count() : 0;
}

int RunScheduleExecutor(int argc, char** argv) {
  const bool blocking = argc > 1 && std::string_view(argv[1]) == "blocking";
  const Status status = Serve(blocking ? net::SpinMode::kOff : net::SpinMode::kAlways);
  if (status.ok()) return 0;
  std::fprintf(stderr, "executor: %s\n", ToString(status).c_str());
  return 1;
}

}  // namespace muster::bench
