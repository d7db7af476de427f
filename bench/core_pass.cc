#include "bench/core_pass.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include <sched.h>

#include "ps/kernels.h"

namespace muster::bench {
namespace {

// The reader looks for so long before it sleeps: an operation that is repeated finds it awake.
constexpr std::chrono::milliseconds kLook{1};

}  // namespace

Status PinTo(std::size_t nth) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return FromErrno(errno, "sched_getaffinity");
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
    CPU_SET(cpu, &one);
    if (::sched_setaffinity(0, sizeof(one), &one) == 0) return Ok();
    return FromErrno(errno, "sched_setaffinity");
  }
  return FailedPrecondition("--pin needs two processors; this process may use {}",
                            CPU_COUNT(&allowed));
}

Result<std::unique_ptr<CorePass>> CorePass::Create(std::size_t most_bytes, bool pin) {
  MUSTER_TRY_ASSIGN(net::Arena memory, net::Arena::Create(most_bytes, /*shared=*/true));
  std::unique_ptr<CorePass> made(new CorePass(std::move(memory), most_bytes));
  made->reader_ = std::thread([self = made.get(), pin] {
    if (pin) (void)PinTo(1);
    self->Read();
  });
  return made;
}

CorePass::~CorePass() {
  stopping_ = true;
  ++asked_;
  asked_.notify_all();
  reader_.join();
}

void CorePass::Read() {
  for (std::uint32_t read = 0;; ++read) {
    const auto until = std::chrono::steady_clock::now() + kLook;
    while (asked_ == read && std::chrono::steady_clock::now() < until) {
    }
    asked_.wait(read);
    if (stopping_) return;
    const std::span<const float> bytes(reinterpret_cast<const float*>(memory_.base()),
                                       bytes_ / sizeof(float));
    // The server's own loop that reads a gradient and does nothing else.
    if (ps::AllFinite(bytes)) done_ = read + 1;
  }
}

Status CorePass::Pass(std::size_t bytes) {
  std::memcpy(memory_.base(), own_.data(), bytes);
  bytes_ = bytes;
  const std::uint32_t number = ++asked_;
  asked_.notify_all();
  while (done_ != number) {
  }
  return Ok();
}

}  // namespace muster::bench
