// Executors on threads of the test, and a driver with links to them.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/driver.h"
#include "dispatch/executor.h"

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::dispatch {

inline TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

// An executor that serves until it is destroyed.
class RunningExecutor {
 public:
  RunningExecutor(const FunctionTable& functions, net::LinkKind kind, std::uint32_t slots = 1,
                  std::string key = "key", Executor::Options options = {}) {
    options.identity = {.token = std::move(key), .host_id = "host"};
    options.closures_at_a_time = slots;
    auto made = Executor::Create(std::move(options), functions);
    REQUIRE(made.ok());
    executor_ = *std::move(made);
    Result<net::Listener> listener = net::ListenTcp("127.0.0.1:0");
    if (kind == net::LinkKind::kUnix) {
      listener = net::ListenUnix(folder_.emplace() / "socket");
    }
    REQUIRE(listener.ok());
    listeners_.push_back(*std::move(listener));
    thread_ = std::thread([this] { (void)executor_->Serve(listeners_); });
  }
  ~RunningExecutor() {
    executor_->Stop();
    thread_.join();
  }

  Executor& executor() { return *executor_; }
  net::LinkKind kind() const { return listeners_[0].kind; }
  const std::string& address() const { return listeners_[0].address; }

 private:
  std::unique_ptr<Executor> executor_;
  std::optional<testing::TempFolder> folder_;  // of a Unix socket
  std::vector<net::Listener> listeners_;
  std::thread thread_;
};

inline Driver::Options DriverOptions(const FunctionTable& functions) {
  return {.identity = {.token = "key", .host_id = "host"}, .functions = functions.hash()};
}

inline Status ConnectTo(Driver& driver, const std::string& task, const RunningExecutor& executor) {
  return driver.Connect(task, Incarnation(1), executor.kind(), executor.address(), Soon());
}

template <class T>
std::span<const std::byte> BytesOfValue(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

inline std::int64_t NumberIn(std::span<const std::byte> bytes) {
  std::int64_t number = 0;
  if (bytes.size() == sizeof(number)) std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

}  // namespace muster::dispatch
