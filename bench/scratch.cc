#include "bench/scratch.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::bench {
namespace {

// Processes that work in the folder end with the measurement, but not in the same moment.
constexpr int kRemovals = 100;
constexpr std::chrono::milliseconds kRemovalPause{100};

[[noreturn]] void RemoveBehind(int parent, const std::string& path) {
  // Not in the group that a terminal's Ctrl-C is for; and it holds nothing open whose end somebody
  // waits for.
  (void)::setsid();
  (void)::dup2(parent, STDIN_FILENO);
  (void)::close_range(STDOUT_FILENO, ~0U, 0);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
  }
  std::error_code error;
  for (int i = 0; i < kRemovals && std::filesystem::exists(path, error); ++i) {
    if (i > 0) std::this_thread::sleep_for(kRemovalPause);
    std::filesystem::remove_all(path, error);
  }
  ::_exit(0);
}

}  // namespace

Result<std::unique_ptr<Scratch>> Scratch::Make(const std::string& where) {
  std::string path = where + "/muster-bench-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return FromErrno(errno, "make " + path);
  std::unique_ptr<Scratch> made(new Scratch(std::move(path)));
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  const net::Fd gone(ends[0]);
  made->alive_ = net::Fd(ends[1]);
  made->watcher_ = ::fork();
  if (made->watcher_ < 0) return FromErrno(errno, "fork");
  if (made->watcher_ == 0) RemoveBehind(gone.get(), made->path_);
  return made;
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  alive_.Reset();
  while (watcher_ > 0 && ::waitpid(watcher_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace muster::bench
