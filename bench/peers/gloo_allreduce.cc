// muster-gloo-allreduce RANKS: what `muster-bench allreduce` compares with, by Gloo over loopback
// TCP. Starts its other ranks itself; rank 0 prints one JSON object.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/collective_timing.h"
#include "common/base/status.h"

namespace muster::bench {
namespace {

CollectiveCalls CallsOf(const std::shared_ptr<gloo::rendezvous::Context>& context) {
  CollectiveCalls calls;
  calls.size = context->size;
  calls.all_reduce = [context](std::span<const float> values, std::span<float> sums) {
    gloo::AllreduceOptions options(context);
    // Gloo only reads inputs, but asks for a pointer that could write.
    options.setInput(const_cast<float*>(values.data()), values.size());
    options.setOutput(sums.data(), sums.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
    return Ok();
  };
  calls.broadcast = [context](std::int64_t& number) {
    gloo::BroadcastOptions options(context);
    options.setOutput(&number, 1);
    options.setRoot(0);
    gloo::broadcast(options);
    return Ok();
  };
  calls.barrier = [context] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
    return Ok();
  };
  return calls;
}

int RunRank(int rank, int ranks, const std::string& folder) {
  try {
    gloo::transport::tcp::attr address;
    address.hostname = "127.0.0.1";
    gloo::rendezvous::FileStore store(folder);
    const auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    auto device = gloo::transport::tcp::CreateDevice(address);
    context->connectFullMesh(store, device);
    const auto figures = TimeCollectives(CallsOf(context));
    if (figures.ok()) {
      if (rank == 0) std::printf("%s\n", figures->c_str());
      std::fflush(stdout);
      return 0;
    }
    std::fprintf(stderr, "muster-gloo-allreduce: %s\n", ToString(figures.status()).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "muster-gloo-allreduce: %s\n", error.what());
  }
  return 1;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  const int ranks = argc == 2 ? std::atoi(argv[1]) : 0;
  char folder[] = "/tmp/muster-gloo-XXXXXX";
  if (ranks < 1 || ::mkdtemp(folder) == nullptr) {
    std::fputs("usage: muster-gloo-allreduce RANKS\n", stderr);
    return 64;
  }
  for (int rank = 1; rank < ranks; ++rank) {
    if (::fork() != 0) continue;
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(muster::bench::RunRank(rank, ranks, folder));
  }
  const int code = muster::bench::RunRank(0, ranks, folder);
  for (int rank = 1; rank < ranks; ++rank) (void)::wait(nullptr);
  std::filesystem::remove_all(folder);
  return code;
}
