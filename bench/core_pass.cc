#include "bench/core_pass.h"

#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "bench/pin.h"
#include "ps/kernels.h"

namespace muster::bench {
namespace {

// The reader looks for so long before it sleeps: an operation that is repeated finds it awake.
constexpr std::chrono::milliseconds kLook{1};

}  // namespace

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
