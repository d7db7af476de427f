#include "bench/rank_processes.h"

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/process/form_group.h"
#include "common/net/socket.h"

namespace muster::bench {
namespace {

Status RunRank(const collectives::GroupSpec& spec, const net::Listener& listener,
               const std::function<Status(collectives::Group&)>& body) {
  MUSTER_TRY_ASSIGN(const std::unique_ptr<collectives::Group> group,
                    collectives::FormGroup(spec, listener));
  return body(*group);
}

}  // namespace

Status InRanks(int ranks, collectives::GroupSpec spec,
               const std::function<Status(collectives::Group&)>& body) {
  spec.job = "bench";
  spec.key = "bench";
  spec.spin = net::SpinMode::kAlways;
  spec.members.clear();
  std::vector<net::Listener> listeners;
  for (int r = 0; r < ranks; ++r) {
    MUSTER_TRY_ASSIGN(net::Listener listener, net::ListenTcp("127.0.0.1:0"));
    spec.members.push_back({fmt::format("rank:{}", r), listener.address});
    listeners.push_back(std::move(listener));
  }
  std::vector<pid_t> others;
  for (int r = 1; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid < 0) return FromErrno(errno, "fork");
    if (pid == 0) {
      spec.rank = r;
      const Status status = RunRank(spec, listeners[static_cast<std::size_t>(r)], body);
      ::_exit(status.ok() ? 0 : 1);
    }
    others.push_back(pid);
  }
  spec.rank = 0;
  Status status = RunRank(spec, listeners[0], body);
  for (const pid_t pid : others) (void)::waitpid(pid, nullptr, 0);
  return status;
}

}  // namespace muster::bench
