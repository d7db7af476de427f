#include "common/process/spawn.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/process/no_more.h"

namespace muster::process::internal {
namespace {

constexpr unsigned kCloseRangeCloexec = 1U << 2;
// Together 200 ms at most.
constexpr int kBusyTries = 100;
constexpr long kBusyPauseNs = 2'000'000;

// Everything the child touches between fork and exec: only plain memory and system calls there,
// because another thread of ours may hold malloc's lock for ever in the copy.
struct Plan {
  std::string path;
  std::vector<char*> argv;
  std::vector<std::string> environment_text;
  std::vector<char*> environment;
  std::vector<std::pair<int, int>> descriptors;  // source here -> number there
  int output = -1;
  int errors = -1;
  int null = -1;
  int error_pipe = -1;
  int first_free = 3;  // above every number that the child wants
  int open_limit = 1024;
  std::string oom_score;  // empty: as ours
  pid_t parent = 0;
};

[[noreturn]] void ExitWith(const Plan& plan, int error) {
  (void)!::write(plan.error_pipe, &error, sizeof error);
  ::_exit(127);
}

void MarkAllCloseOnExec(const Plan& plan) {
  if (::syscall(SYS_close_range, 3U, ~0U, kCloseRangeCloexec) == 0) return;
  for (int fd = 3; fd < plan.open_limit; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// A copy of `fd` at a number that no dup2 below overwrites.
int OutOfTheWay(Plan& plan, int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, plan.first_free);
  if (copy < 0) ExitWith(plan, errno);
  return copy;
}

// In the child, between fork() and exec(): no allocation, no locks. What fails goes through the
// pipe.
[[noreturn]] void RunChild(Plan& plan) {
  plan.error_pipe = OutOfTheWay(plan, plan.error_pipe);
  if (::setpgid(0, 0) != 0) ExitWith(plan, errno);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ExitWith(plan, errno);
  if (::getppid() != plan.parent) ::_exit(127);  // it died before the line above

  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);

  for (auto& [source, target] : plan.descriptors) source = OutOfTheWay(plan, source);
  const int null = OutOfTheWay(plan, plan.null);
  const int output = plan.output < 0 ? -1 : OutOfTheWay(plan, plan.output);
  const int errors = plan.errors < 0 ? output : OutOfTheWay(plan, plan.errors);
  MarkAllCloseOnExec(plan);
  for (const auto& [source, target] : plan.descriptors) {
    if (::dup2(source, target) < 0) ExitWith(plan, errno);
  }
  if (::dup2(null, 0) < 0) ExitWith(plan, errno);
  if (output >= 0 && ::dup2(output, 1) < 0) ExitWith(plan, errno);
  if (errors >= 0 && ::dup2(errors, 2) < 0) ExitWith(plan, errno);

  if (!plan.oom_score.empty()) {
    // Best effort: a kernel without it kills in another order.
    const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file >= 0) (void)!::write(file, plan.oom_score.data(), plan.oom_score.size());
  }
  for (int tries = 0;; ++tries) {
    ::execve(plan.path.c_str(), plan.argv.data(), plan.environment.data());
    // A file that was just written: a child forked meanwhile holds it open until its own exec.
    if (errno != ETXTBSY || tries >= kBusyTries) ExitWith(plan, errno);
    const timespec pause{.tv_sec = 0, .tv_nsec = kBusyPauseNs};
    ::nanosleep(&pause, nullptr);
  }
}

// As shells look along PATH: a folder of that name, which may be entered, is none.
bool IsProgram(const std::string& path) {
  struct stat is{};
  return ::access(path.c_str(), X_OK) == 0 && ::stat(path.c_str(), &is) == 0 && S_ISREG(is.st_mode);
}

Result<std::string> FindProgram(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (::access(name.c_str(), X_OK) != 0) return FromErrno(errno, fmt::format("start {}", name));
    return name;
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (!name.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, colon), name);
    if (IsProgram(candidate)) return candidate;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return NotFound("start {}: no such program in PATH", name);
}

void BuildEnvironment(const std::map<std::string, std::string>& changes,
                      const std::set<std::string>& empty, Plan& plan) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) {
      const std::string name(*entry, static_cast<std::size_t>(equals - *entry));
      if (changes.contains(name) || empty.contains(name)) continue;
    }
    plan.environment_text.emplace_back(*entry);
  }
  for (const auto& [name, value] : changes) {
    if (value.empty() || empty.contains(name)) continue;
    std::string& text = plan.environment_text.emplace_back(name);
    text.append("=").append(value);
  }
  for (const std::string& name : empty) plan.environment_text.push_back(name + "=");
  for (std::string& text : plan.environment_text) plan.environment.push_back(text.data());
  plan.environment.push_back(nullptr);
}

// Who has started this process may have ignored SIGCHLD, which exec hands on: the kernel would then
// take each child's end by itself, and every end would read as exit code 0.
void HearOfEnds() {
  struct sigaction now{};
  if (::sigaction(SIGCHLD, nullptr, &now) != 0) return;
  const bool ignored = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
  if (!ignored && (now.sa_flags & SA_NOCLDWAIT) == 0) return;
  if (ignored) now.sa_handler = SIG_DFL;
  now.sa_flags &= ~SA_NOCLDWAIT;
  (void)::sigaction(SIGCHLD, &now, nullptr);
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

// Between fork and exec the child may only call what is safe in a signal handler: a thread of ours
// may have held any lock. What fails there comes back through a pipe that a successful exec closes.
Result<pid_t> Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return InvalidArgument("start: no program named");
  Plan plan;
  MUSTER_TRY_ASSIGN(plan.path,
                    FindProgram(options.program.empty() ? options.argv.front() : options.program));
  if (options.oom_score > 0) plan.oom_score = std::to_string(options.oom_score);
  for (const std::string& argument : options.argv) {
    plan.argv.push_back(const_cast<char*>(argument.c_str()));  // execve's signature; never written
  }
  plan.argv.push_back(nullptr);
  BuildEnvironment(options.environment, options.empty_variables, plan);
  for (const auto& [source, target] : options.descriptors) {
    if (target < 3) return InvalidArgument("descriptor {} in the child: at least 3", target);
    plan.descriptors.emplace_back(source, target);
    plan.first_free = std::max(plan.first_free, target + 1);
  }
  plan.output = options.output;
  plan.errors = options.errors;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    plan.open_limit = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65'536));
  }
  plan.parent = ::getpid();

  Descriptor null{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (null.fd < 0) return FromErrno(errno, "open /dev/null");
  plan.null = null.fd;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  Descriptor read_end{ends[0]};
  Descriptor write_end{ends[1]};
  plan.error_pipe = write_end.fd;
  HearOfEnds();

  const pid_t pid = ::fork();
  if (pid < 0) {
    const int why = errno;
    const std::string what = fmt::format("fork for {}", plan.path);
    return why == EAGAIN ? NoMore(why, what) : FromErrno(why, what);
  }
  if (pid == 0) RunChild(plan);

  ::close(std::exchange(write_end.fd, -1));
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(read_end.fd, &error, sizeof error);  // ends at exec, which closes the other end
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    if (error == ENOEXEC) {
      return InvalidArgument("start {}: {} (no executable, or one of another architecture)",
                             plan.path, ::strerrordesc_np(error));
    }
    return FromErrno(error, fmt::format("start {}", plan.path));
  }
  return pid;
}

}  // namespace muster::process::internal
