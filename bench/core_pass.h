// What this machine takes to pass bytes from one core to another through memory that both have: the
// limit of everything that copies between processes. One thread copies out of warm memory of its
// own, the other one reads the copy.
//
// Threading: one thread. Errors: those of an arena.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/net/arena.h"

namespace muster::bench {

class CorePass {
 public:
  // With `pin` the reader keeps to the second processor.
  static Result<std::unique_ptr<CorePass>> Create(std::size_t most_bytes, bool pin);
  ~CorePass();

  // Copies so many bytes and waits until they have been read.
  Status Pass(std::size_t bytes);

 private:
  CorePass(net::Arena memory, std::size_t most_bytes)
      : memory_(std::move(memory)), own_(most_bytes / sizeof(float), 1.0F) {}
  void Read();

  net::Arena memory_;
  std::vector<float> own_;
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::uint32_t> asked_{0};
  std::atomic<std::uint32_t> done_{0};
  std::atomic<bool> stopping_{false};
  std::thread reader_;
};

}  // namespace muster::bench
