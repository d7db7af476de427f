// Members of a group as threads or as processes of their own, on free ports of loopback.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/cost_model.h"
#include "collectives/process/form_group.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"

namespace muster::collectives {

// Figures by which this algorithm is the cheapest for everything.
inline AlgorithmCosts CheapestBy(Algorithm algorithm) {
  AlgorithmCosts costs;
  for (const Algorithm other : kAlgorithms) costs.of(other).round = other == algorithm ? 0 : 1;
  return costs;
}

// Listeners and specs of a group to be.
class Address {
 public:
  explicit Address(int size) {
    spec.job = "test";
    spec.key = "a key of the test";
    for (int r = 0; r < size; ++r) {
      auto listener = net::ListenTcp("127.0.0.1:0");
      REQUIRE(listener.ok());
      spec.members.push_back({fmt::format("worker:{}", r), listener->address});
      listeners.push_back(*std::move(listener));
    }
  }
  GroupSpec Of(int rank) const {
    GroupSpec own = spec;
    own.rank = rank;
    return own;
  }
  int size() const { return static_cast<int>(listeners.size()); }

  GroupSpec spec;
  std::vector<net::Listener> listeners;
};

// Runs member(group) for all ranks at once, each on a thread. Every group must form.
inline void InGroup(const Address& address, const std::function<void(Group&)>& member) {
  std::vector<std::thread> threads;
  for (int r = 0; r < address.size(); ++r) {
    threads.emplace_back([&, r] {
      auto group = FormGroup(address.Of(r), address.listeners[static_cast<std::size_t>(r)]);
      if (!group.ok()) {
        FAIL_CHECK(ToString(group.status()));
        return;
      }
      member(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A member in a process of its own. What `body` returns is told to the parent.
class Process {
 public:
  explicit Process(const std::function<std::string()>& body) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      const std::string text = body();
      (void)!::write(ends[1], text.data(), text.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    read_ = ends[0];
  }
  ~Process() {
    Signal(SIGKILL);
    Signal(SIGCONT);
    (void)::waitpid(pid_, nullptr, 0);
    ::close(read_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void Signal(int signal) const { (void)::kill(pid_, signal); }
  // Waits until it has ended.
  std::string Told() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(read_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<std::size_t>(n));
    }
    return text;
  }

 private:
  pid_t pid_ = -1;
  int read_ = -1;
};

// Steps that another process waits for: a byte a step.
class Steps {
 public:
  Steps() { REQUIRE(::pipe(ends_) == 0); }
  ~Steps() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  void Done() const { (void)!::write(ends_[1], "s", 1); }
  void Await() const {
    char byte = 0;
    (void)!::read(ends_[0], &byte, 1);
  }

 private:
  int ends_[2];
};

}  // namespace muster::collectives
