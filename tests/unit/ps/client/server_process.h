// A parameter server in a process of its own, to be killed or stopped.
#pragma once

#include <array>
#include <csignal>
#include <memory>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/client/program_cluster.h"

namespace muster::ps::testing {

class ServerProcess {
 public:
  ServerProcess() {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    const net::Fd from(pipe[0]);
    child_ = ::fork();
    if (child_ == 0) Serve(pipe[1]);
    const net::Fd to(pipe[1]);
    std::string said;
    for (char c = 0; ::read(from.get(), &c, 1) == 1 && c != '\n';) said += c;
    const std::size_t space = said.find(' ');
    server_.target = {.index = 0,
                      .tcp_address = said.substr(0, space),
                      .unix_path = said.substr(space + 1),
                      .host_id = *net::HostId()};
  }
  ~ServerProcess() {
    Signal(SIGKILL);
    (void)::waitpid(child_, nullptr, 0);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  void Signal(int signal) const { (void)::kill(child_, signal); }
  // Returns when it stands still.
  void Stop() const {
    Signal(SIGSTOP);
    (void)::waitpid(child_, nullptr, WUNTRACED);
  }
  const ProgramClient::Server& server() const { return server_; }
  std::unique_ptr<ProgramClient> Client(LinkMode link) const {
    return ProgramClient::Open({server_}, {.job_id = kProgram,
                                           .key = net::JobKey(kToken, kProgram, Epoch(1)),
                                           .epoch = Epoch(1),
                                           .incarnation = Incarnation(1),
                                           .link = link,
                                           .host_id = *net::HostId(),
                                           .timeout = Millis(60'000),
                                           .ping_after = Millis(100),
                                           .ping_limit = Millis(500)})
        .value();
  }

 private:
  [[noreturn]] void Serve(int to_parent) const {
    PsServer::Options options;
    options.unix_directory = directory_.path();
    options.token = kToken;
    options.host_id = *net::HostId();
    const auto server = PsServer::Start(options);
    if (!server.ok()) ::_exit(1);
    const v1::DataEndpoint endpoint = (*server)->endpoint();
    const std::string line = endpoint.tcp_address() + " " + endpoint.unix_path() + "\n";
    (void)!::write(to_parent, line.data(), line.size());
    for (;;) ::pause();
  }

  const muster::testing::TempFolder directory_;
  pid_t child_ = -1;
  ProgramClient::Server server_;
};

}  // namespace muster::ps::testing
