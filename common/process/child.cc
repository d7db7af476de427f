#include "common/process/child.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/process/no_more.h"
#include "common/process/spawn.h"

namespace muster::process {
namespace {

using std::chrono::milliseconds;

// A longer line is handed on in pieces, so that a child cannot make us hold without bound.
constexpr std::size_t kLongestLine = 64 * 1024;
// Reads, of 16 KiB, for what a process had written when it ended: more than a pipe holds. Others
// that it has left in its group may write on without a pause, until they are killed.
constexpr int kLastReads = 128;
// How long the pipe may still be held open by a process that left the group before it died.
constexpr milliseconds kAfterlife{200};

// How many of the kernel's own kills our children were told of.
std::atomic<std::uint64_t> told_oom_kills{0};

// There is one that no child was told of, after the first `before`.
bool TakeOomKill(std::uint64_t before) {
  const std::uint64_t kills = ReadOomKills().value_or(0);
  std::uint64_t told = told_oom_kills;
  do {
    if (kills <= std::max(before, told)) return false;
  } while (!told_oom_kills.compare_exchange_weak(told, std::max(before, told) + 1));
  return true;
}

// Cuts a stream of bytes into lines.
class LineCutter {
 public:
  using OnLine = std::function<void(std::chrono::system_clock::time_point, std::string)>;
  explicit LineCutter(const OnLine& on_line) : on_line_(on_line) {}

  void Add(std::string_view bytes) {
    const auto now = std::chrono::system_clock::now();
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      std::string_view piece = bytes.substr(0, newline);
      if (partial_.size() + piece.size() > kLongestLine) {
        piece = piece.substr(0, kLongestLine - partial_.size());
        partial_.append(piece);
        Emit(now);
        bytes.remove_prefix(piece.size());
        continue;
      }
      partial_.append(piece);
      if (newline == std::string_view::npos) return;
      Emit(now);
      bytes.remove_prefix(newline + 1);
    }
  }

  void Finish() {
    if (!partial_.empty()) Emit(std::chrono::system_clock::now());
  }

 private:
  void Emit(std::chrono::system_clock::time_point now) {
    if (!partial_.empty() && partial_.back() == '\r') partial_.pop_back();
    on_line_(now, std::exchange(partial_, {}));
  }

  const OnLine& on_line_;
  std::string partial_;
};

// A pipe that the child writes into, if there is one.
struct Stream {
  explicit Stream(const LineCutter::OnLine& on_line) : lines(on_line), open(on_line != nullptr) {}
  // For poll(), which passes over -1.
  int Descriptor() const { return open ? ends[0] : -1; }

  LineCutter lines;
  int ends[2] = {-1, -1};
  // It has not come to its end.
  bool open;
};

// The thread that forks the child stays with it to the end: PR_SET_PDEATHSIG fires when the
// forking thread ends, not the process.
class RealChild final : public Child {
 public:
  explicit RealChild(Options options)
      : options_(std::move(options)), output_(options_.on_line), errors_(options_.on_error_line) {}

  ~RealChild() override {
    (void)Signal(SIGKILL);
    if (thread_.joinable()) thread_.join();
    for (int fd : {output_.ends[0], output_.ends[1], errors_.ends[0], errors_.ends[1], pidfd_}) {
      if (fd >= 0) ::close(fd);
    }
  }

  Status Begin() {
    for (const auto& [sink, stream] :
         {std::pair(&options_.on_line, &output_), std::pair(&options_.on_error_line, &errors_)}) {
      if (*sink && ::pipe2(stream->ends, O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
    }
    std::promise<Status> started;
    std::future<Status> result = started.get_future();
    try {
      thread_ = std::thread([this, started = std::move(started)]() mutable {
        Status status = Launch();
        const bool ok = status.ok();
        started.set_value(std::move(status));
        if (ok) Watch();
      });
    } catch (const std::system_error& error) {
      return NoMore(error.code().value(), "a thread for " + options_.argv.front());
    }
    return result.get();
  }

  int pid() const override { return pid_; }

  Status Signal(int signal) override {
    const MutexLock lock(mutex_);
    if (pid_ == 0 || reaped_) return NotFound("process {} has ended", pid_);
    killed_ = killed_ || signal == SIGKILL;
    if (::kill(-pid_, signal) != 0) {
      return FromErrno(errno, fmt::format("signal {} to process group {}", signal, pid_));
    }
    return Ok();
  }

  Result<Exit> Wait(milliseconds limit) override {
    MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!exit_ && ended_.wait_until(mutex_, deadline)) {
    }
    if (!exit_) {
      return DeadlineExceeded("{} (pid {}) still runs after {} ms", options_.argv.front(), pid_,
                              limit.count());
    }
    return *exit_;
  }

  Exit End(milliseconds grace) override {
    (void)Signal(SIGTERM);
    if (Result<Exit> exit = Wait(grace); exit.ok()) return *exit;
    (void)Signal(SIGKILL);
    const MutexLock lock(mutex_);
    while (!exit_) ended_.wait(mutex_);  // SIGKILL cannot be refused
    return *exit_;
  }

 private:
  Status Launch() {
    oom_kills_ = ReadOomKills().value_or(0);
    MUSTER_TRY_ASSIGN(const pid_t pid, internal::Spawn({.program = options_.program,
                                                        .argv = options_.argv,
                                                        .environment = options_.environment,
                                                        .empty_variables = options_.empty_variables,
                                                        .descriptors = options_.descriptors,
                                                        .oom_score = options_.oom_score,
                                                        .output = output_.ends[1],
                                                        .errors = errors_.ends[1]}));
    for (Stream* stream : {&output_, &errors_}) {
      if (stream->ends[1] >= 0) ::close(std::exchange(stream->ends[1], -1));
    }
    pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    pid_ = pid;
    return Ok();
  }

  void Watch() {
    ReadUntilEnd();
    const Exit exit = Reap();
    for (Stream* stream : {&output_, &errors_}) {
      ReadRest(*stream);
      stream->lines.Finish();
    }
    {
      const MutexLock lock(mutex_);
      exit_ = exit;
    }
    ended_.notify_all();
    if (options_.on_exit) options_.on_exit(exit);
  }

  // Until the process has ended or has closed all its outputs.
  void ReadUntilEnd() {
    int reads_left = kLastReads;
    while (output_.open || errors_.open) {
      pollfd polled[3] = {{output_.Descriptor(), POLLIN, 0},
                          {errors_.Descriptor(), POLLIN, 0},
                          {pidfd_, POLLIN, 0}};
      if (::poll(polled, 3, -1) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) ReadSome(output_);
      if (polled[1].revents != 0) ReadSome(errors_);
      const bool silent = polled[0].revents == 0 && polled[1].revents == 0;
      if (polled[2].revents != 0 && (silent || --reads_left == 0)) return;
    }
  }

  // What was still in the pipe when it died. Its group is dead by now, so this ends at once unless
  // a process of its own making has left the group and kept the pipe.
  static void ReadRest(Stream& stream) {
    const auto deadline = std::chrono::steady_clock::now() + kAfterlife;
    while (stream.open) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd polled{stream.ends[0], POLLIN, 0};
      if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) <= 0) return;
      ReadSome(stream);
    }
  }

  static void ReadSome(Stream& stream) {
    char buffer[16 * 1024];
    const ssize_t got = ::read(stream.ends[0], buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) return;
    stream.open = got > 0;
    if (got > 0) stream.lines.Add({buffer, static_cast<std::size_t>(got)});
  }

  // Waits for the end, kills what is left of the group, and only then lets the kernel reuse the
  // number: a Signal() at the same time must not meet a stranger.
  Exit Reap() {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
    const MutexLock lock(mutex_);
    ::kill(-pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    reaped_ = true;
    if (!WIFSIGNALED(status)) return {.code = WEXITSTATUS(status), .signal = 0};
    Exit exit{.code = 0, .signal = WTERMSIG(status)};
    exit.out_of_memory = exit.signal == SIGKILL && !killed_ && TakeOomKill(oom_kills_);
    if (!exit.out_of_memory) return exit;
    if (const auto limit = ReadLimits().memory_bytes) exit.memory_limit_mib = *limit >> 20;
    return exit;
  }

  const Options options_;
  std::thread thread_;
  Stream output_;
  Stream errors_;
  int pidfd_ = -1;
  // When it began.
  std::uint64_t oom_kills_ = 0;

  pid_t pid_ = 0;  // written once, before Start() returns

  Mutex mutex_;
  Condition ended_;
  bool reaped_ MUSTER_GUARDED_BY(mutex_) = false;
  bool killed_ MUSTER_GUARDED_BY(mutex_) = false;  // SIGKILL by us
  std::optional<Exit> exit_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace

std::string Exit::ToString() const {
  if (signal == 0) return fmt::format("exit code {}", code);
  const char* name = ::sigabbrev_np(signal);
  std::string text = name == nullptr ? fmt::format("signal {}", signal)  //
                                     : fmt::format("signal SIG{}", name);
  if (!out_of_memory) return text;
  text += " (out of memory";
  if (memory_limit_mib) text += fmt::format(": the limit is {} MiB", *memory_limit_mib);
  return text + ")";
}

bool Exit::from_outside() const {
  return ok() || signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

Result<std::unique_ptr<Child>> Child::Start(Options options) {
  auto child = std::make_unique<RealChild>(std::move(options));
  MUSTER_TRY(child->Begin());
  return std::unique_ptr<Child>(std::move(child));
}

}  // namespace muster::process
