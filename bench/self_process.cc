#include "bench/self_process.h"

#include <array>
#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace muster::bench {

Result<std::unique_ptr<SelfProcess>> SelfProcess::Start(const std::string& role,
                                                        const std::string& argument) {
  std::unique_ptr<SelfProcess> process(new SelfProcess(role));
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  const net::Fd child_in(in[0]);
  process->in_ = net::Fd(in[1]);
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  process->out_ = net::Fd(out[0]);
  const net::Fd child_out(out[1]);
  process->pid_ = ::fork();
  if (process->pid_ < 0) return FromErrno(errno, "fork");
  if (process->pid_ == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)::dup2(child_in.get(), STDIN_FILENO);
    (void)::dup2(child_out.get(), STDOUT_FILENO);
    const char* second = argument.empty() ? nullptr : argument.c_str();
    (void)::execl("/proc/self/exe", "muster-bench", role.c_str(), second, nullptr);
    ::_exit(127);
  }
  return process;
}

SelfProcess::~SelfProcess() {
  in_.Reset();
  if (pid_ > 0) (void)::waitpid(pid_, nullptr, 0);
}

Result<std::string> SelfProcess::ReadLine() {
  std::string line;
  for (char c = 0;;) {
    if (::read(out_.get(), &c, 1) != 1) {
      return Unavailable("the benchmark's {} process ended early", role_);
    }
    if (c == '\n') return line;
    line += c;
  }
}

}  // namespace muster::bench
