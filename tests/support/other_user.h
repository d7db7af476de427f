// Processes of another user, which only root can start.
#pragma once

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <string>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "tests/support/catch.h"

namespace muster::testing {

inline constexpr uid_t kOtherUser = 12'345;

// False, and said: this test has none.
inline bool MayBeOthers() {
  if (::geteuid() == 0) return true;
  WARN("left out: only root can start a process of another user");
  return false;
}

// A process of another user, that says something when it is done.
class OtherUser {
 public:
  explicit OtherUser(const std::function<std::string()>& run) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    says_.Reset(ends[0]);
    const net::Fd mouth(ends[1]);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ > 0) return;
    std::string words = "it is not another user";
    if (::setresuid(kOtherUser, kOtherUser, kOtherUser) == 0) words = run();
    (void)!::write(mouth.get(), words.data(), words.size());
    ::_exit(0);
  }
  ~OtherUser() {
    (void)::kill(child_, SIGKILL);
    (void)::waitpid(child_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;
  // What it says first.
  std::string Words() const {
    std::array<char, 1024> words{};
    const ssize_t got = ::read(says_.get(), words.data(), words.size());
    return {words.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  net::Fd says_;
  pid_t child_ = -1;
};

// What such a process is told once it runs: it is started before anything else has threads.
class Whisper {
 public:
  Whisper() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    ear_.Reset(ends[0]);
    mouth_.Reset(ends[1]);
  }
  // A few kilobytes at most.
  void Say(const std::string& words) const {
    REQUIRE(::write(mouth_.get(), words.data(), words.size()) ==
            static_cast<ssize_t>(words.size()));
  }
  std::string Hear() const {
    std::array<char, 4096> words{};
    const ssize_t got = ::read(ear_.get(), words.data(), words.size());
    return {words.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  net::Fd ear_;
  net::Fd mouth_;
};

}  // namespace muster::testing
