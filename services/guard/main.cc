// muster-guard [--cwd DIR] -- COMMAND ARGUMENTS: stands between a worker daemon and a launched
// command, so that nothing the command has started outlives it.
//
// It is the subreaper of all that the command starts, in whatever group or session that is. When
// the command has ended it kills what is left of them, then ends as the command did: with its exit
// code, or by its signal. SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 go to the command's process group;
// SIGQUIT, or the end of the daemon, kills all at once. Should the guard itself be killed, the
// command dies with it.
//
// The command's pid is written, as a line of text, to descriptor 3, which is then closed. A command
// that cannot be run ends with 127 (there is none) or 126, as in a shell.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int kPidDescriptor = 3;
constexpr int kUsage = 2;
// Together a second at most.
constexpr int kBusyTries = 500;
constexpr unsigned kBusyPauseUs = 2'000;

[[noreturn]] void Fail(int code, const std::string& what) {
  std::fprintf(stderr, "muster-guard: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(code);
}

// Whether `pid` is a child of this process, and not only waiting for its end to be taken.
bool IsLivingChild(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // The name may hold anything; what follows its last ')' is " STATE PARENT ...".
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos || text.size() < end + 5) return false;
  return text[end + 2] != 'Z' && std::atoi(text.c_str() + end + 4) == ::getpid();
}

// SIGKILL to all children; those of one that has ended become ours, and are found the next time.
void KillChildren() {
  DIR* processes = ::opendir("/proc");
  if (processes == nullptr) return;
  while (const dirent* entry = ::readdir(processes)) {
    const int pid = std::atoi(entry->d_name);
    if (pid > 0 && IsLivingChild(pid)) (void)::kill(pid, SIGKILL);
  }
  ::closedir(processes);
}

// Until this process has no child any more.
void EndDescendants() {
  while (true) {
    KillChildren();
    // Blocks until one of those that were killed is gone. Then all that are: to look through /proc
    // again for each of thousands takes minutes.
    if (::waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) return;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}

[[noreturn]] void RunCommand(char** argv, const sigset_t& before, pid_t guard) {
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(kUsage);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::execvp(argv[0], argv);
  // A file that was just written: a process forked meanwhile holds it open until its own exec.
  for (int tries = 0; errno == ETXTBSY && tries < kBusyTries; ++tries) {
    ::usleep(kBusyPauseUs);
    ::execvp(argv[0], argv);
  }
  const int error = errno;
  std::fprintf(stderr, "muster-guard: cannot run %s: %s\n", argv[0], std::strerror(error));
  (void)std::fflush(stderr);
  ::_exit(error == ENOENT ? 127 : 126);
}

void TellPid(pid_t pid) {
  if (::fcntl(kPidDescriptor, F_GETFD) < 0) return;
  // The daemon may have waited for it no longer: no reason to die here and leave the command alone.
  (void)::signal(SIGPIPE, SIG_IGN);
  const std::string text = std::to_string(pid) + "\n";
  (void)!::write(kPidDescriptor, text.data(), text.size());
  ::close(kPidDescriptor);
}

// Ends as the command has.
[[noreturn]] void EndAs(int status) {
  if (!WIFSIGNALED(status)) std::exit(WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  (void)::setrlimit(RLIMIT_CORE, &none);  // the command has left one, if any
  (void)::signal(number, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, number);
  ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  (void)::kill(::getpid(), number);
  std::exit(128 + number);
}

// Takes signals and ends until the command has ended; its status.
int Watch(pid_t command, const sigset_t& signals) {
  bool killed = false;
  while (true) {
    int number = 0;
    if (::sigwait(&signals, &number) != 0) continue;
    if (number == SIGQUIT) {
      killed = true;
      (void)::kill(-command, SIGKILL);
      (void)::kill(command, SIGKILL);
    } else if (number != SIGCHLD) {
      (void)::kill(-command, number);
    }
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (ended == command) return status;
    }
    if (killed) KillChildren();
  }
}

}  // namespace

// Signals are blocked before the fork, so that none is lost between it and the watch.
int main(int argc, char** argv) {
  int at = 1;
  if (at + 1 < argc && std::strcmp(argv[at], "--cwd") == 0) {
    if (::chdir(argv[at + 1]) != 0) Fail(126, argv[at + 1]);
    at += 2;
  }
  if (at + 1 >= argc || std::strcmp(argv[at], "--") != 0) {
    std::fputs("muster-guard [--cwd DIR] -- COMMAND ARGUMENTS: for muster-worker\n", stderr);
    return kUsage;
  }
  char** command_line = argv + at + 1;
  if (::fcntl(kPidDescriptor, F_GETFD) >= 0) (void)::fcntl(kPidDescriptor, F_SETFD, FD_CLOEXEC);

  sigset_t signals, before;
  ::sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGQUIT}) {
    ::sigaddset(&signals, number);
  }
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) Fail(126, "become a subreaper");
  // Until here the daemon's end was SIGKILL, and there was nobody to take along.
  if (::prctl(PR_SET_PDEATHSIG, SIGQUIT) != 0) Fail(126, "watch the daemon");

  const pid_t guard = ::getpid();
  const pid_t command = ::fork();
  if (command < 0) Fail(126, "fork");
  if (command == 0) RunCommand(command_line, before, guard);
  (void)::setpgid(command, command);  // whichever of the two comes first
  TellPid(command);
  const int status = Watch(command, signals);
  EndDescendants();
  EndAs(status);
}
