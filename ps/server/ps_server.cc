#include "ps/server/ps_server.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <list>
#include <map>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/private_directory.h"
#include "common/net/proof.h"
#include "common/net/socket.h"
#include "common/process/no_more.h"
#include "muster/v1/common.pb.h"
#include "ps/server/connection.h"

namespace muster::ps {
namespace {

// How long the accepting thread sleeps when it can do nothing (descriptors ran out), and at most
// between looking for connections that have ended.
constexpr Millis kBreather{100};
constexpr Millis kReapEvery{1'000};

// A socket file outlives a killed process; one that nobody listens on goes.
void RemoveStaleSockets(const std::string& directory) {
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("ps-") || !name.ends_with(".sock")) continue;
    const TimePoint soon = std::chrono::steady_clock::now() + kBreather;
    if (!net::IsRefused(net::ConnectUnix(at->path().string(), soon).status())) continue;
    std::filesystem::remove(at->path(), ignored);
  }
}

Result<net::Listener> ListenIn(const std::string& directory) {
  if (::mkdir(directory.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    return FromErrno(errno, "make directory " + directory);
  }
  MUSTER_TRY(RequireOwnDirectory(directory));
  RemoveStaleSockets(directory);
  // A socket's path has to be short, so another server of this process may have the same one.
  std::string path;
  std::error_code ignored;
  do {
    const net::Nonce nonce = net::RandomNonce();
    path = fmt::format("{}/ps-{}-{:02x}{:02x}.sock", directory, ::getpid(),
                       static_cast<unsigned>(nonce[0]), static_cast<unsigned>(nonce[1]));
  } while (std::filesystem::exists(path, ignored));
  return net::ListenUnix(path);
}

class PsServerImpl final : public PsServer {
 public:
  PsServerImpl(Options options, std::vector<net::Listener> listeners, net::Fd wake, int cores)
      : context_(std::move(options), cores),
        listeners_(std::move(listeners)),
        wake_(std::move(wake)),
        acceptor_([this] { AcceptAll(); }) {}
  ~PsServerImpl() override { PsServerImpl::Stop(); }

  v1::DataEndpoint endpoint() const override;
  void Publish(JobNumber job, std::shared_ptr<JobShards> shards) override {
    context_.jobs.Publish(job, std::move(shards));
  }
  void Drop(JobNumber job) override { context_.jobs.Drop(job); }
  void DropProgram(const std::string& job_id) override { context_.programs.Drop(job_id); }
  void BeginEpoch(Epoch epoch) override { context_.programs.BeginEpoch(epoch); }
  std::vector<ProgramUse> programs() const override { return context_.programs.uses(); }
  ServerCounters counters(JobNumber job) const override { return context_.jobs.counters(job); }
  LinkCounters links() const override;
  void Stop() override;

 private:
  struct Peer {
    Peer(ServerContext& context, net::Fd fd, net::LinkKind kind, const std::string& name)
        : host(name.substr(0, name.rfind(':'))),
          connection(context, std::move(fd), kind, name),
          thread([this] { connection.Run(); }) {}
    const std::string host;
    Connection connection;
    std::thread thread;
  };

  void AcceptAll();
  void Admit(net::Accepted accepted);
  void MakeWay();
  void Reap();

  ServerContext context_;
  std::vector<net::Listener> listeners_;
  net::Fd wake_;
  std::atomic<bool> stopping_{false};
  Mutex stop_mutex_;  // a second Stop() waits for the first
  // Touched by the accepting thread alone, and by Stop() after that has ended.
  std::list<Peer> peers_;
  std::thread acceptor_;
};

v1::DataEndpoint PsServerImpl::endpoint() const {
  v1::DataEndpoint endpoint;
  std::string tcp = listeners_[0].address;
  if (!context_.options.advertised_host.empty()) {
    tcp = JoinHostPort(context_.options.advertised_host, tcp.substr(tcp.rfind(':') + 1));
  }
  endpoint.set_tcp_address(tcp);
  if (listeners_.size() > 1) endpoint.set_unix_path(listeners_[1].address);
  endpoint.set_host_id(context_.options.host_id);
  return endpoint;
}

LinkCounters PsServerImpl::links() const {
  return {.connections_now = context_.connections_now,
          .connections_accepted = context_.connections_accepted,
          .handshakes_refused = context_.handshakes_refused,
          .bad_frames = context_.bad_frames,
          .unix_socket_bytes = context_.unix_socket_bytes};
}

void PsServerImpl::AcceptAll() {
  while (!stopping_) {
    auto accepted = net::Accept(listeners_, wake_.get(), kReapEvery);
    Reap();
    if (stopping_) return;
    if (!accepted.ok()) {
      context_.Warn(context_.failures,
                    fmt::format("cannot accept a data connection at the moment: {}; trying again",
                                Message(accepted.status())));
      (void)net::Accept({}, wake_.get(), kBreather);
      continue;
    }
    if (accepted->fd.valid()) Admit(*std::move(accepted));
  }
}

void PsServerImpl::Admit(net::Accepted accepted) {
  ++context_.connections_accepted;
  const auto& options = context_.options;
  const bool crowded = context_.handshaking >= options.max_handshakes;
  if (crowded) MakeWay();
  // Those that made way need a moment to end.
  if (context_.connections_now >= options.max_connections ||
      context_.handshaking >= 2 * options.max_handshakes) {
    ++context_.handshakes_refused;
    context_.Warn(
        context_.refusals,
        fmt::format(
            "data connection from {} refused: {} open (limit {}), {} in the handshake (limit {})",
            accepted.peer, context_.connections_now, options.max_connections, context_.handshaking,
            options.max_handshakes));
    return;
  }
  ++context_.connections_now;
  ++context_.handshaking;
  try {
    peers_.emplace_back(context_, std::move(accepted.fd), listeners_[accepted.listener].kind,
                        accepted.peer);
  } catch (const std::system_error& error) {
    --context_.connections_now;
    --context_.handshaking;
    context_.Warn(context_.failures, fmt::format("no thread for a data connection from {}: {}",
                                                 accepted.peer, error.what()));
  }
}

// Who greets does so at once: of too many that have not, the oldest one of the host with most of
// them is let go, so that silent peers keep nobody out.
void PsServerImpl::MakeWay() {
  std::map<std::string_view, std::size_t> waiting;
  for (const Peer& peer : peers_) {
    if (peer.connection.handshaking()) ++waiting[peer.host];
  }
  const auto most =
      std::ranges::max_element(waiting, {}, [](const auto& host) { return host.second; });
  if (most == waiting.end()) return;
  const auto oldest = std::ranges::find_if(peers_, [&](const Peer& peer) {
    return peer.connection.handshaking() && peer.host == most->first;
  });
  context_.Warn(
      context_.refusals,
      fmt::format("{} data connections have not greeted (limit {}): the oldest from {} is "
                  "closed",
                  context_.handshaking, context_.options.max_handshakes, oldest->host));
  oldest->connection.Stop();
}

void PsServerImpl::Reap() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (!peer->connection.done()) {
      ++peer;
      continue;
    }
    peer->thread.join();
    peer = peers_.erase(peer);
  }
}

void PsServerImpl::Stop() {
  const MutexLock lock(stop_mutex_);
  if (stopping_.exchange(true)) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  acceptor_.join();
  for (Peer& peer : peers_) peer.connection.Stop();
  for (Peer& peer : peers_) peer.thread.join();
  peers_.clear();
  for (const net::Listener& listener : listeners_) {
    if (listener.kind == net::LinkKind::kUnix) (void)::unlink(listener.address.c_str());
  }
  for (net::Listener& listener : listeners_) listener.fd.Reset();
}

}  // namespace

Result<std::unique_ptr<PsServer>> PsServer::Start(Options options) {
  std::vector<net::Listener> listeners;
  MUSTER_TRY_ASSIGN(net::Listener tcp, net::ListenTcp(options.tcp_address));
  listeners.push_back(std::move(tcp));
  if (!options.unix_directory.empty()) {
    MUSTER_TRY_ASSIGN(net::Listener local, ListenIn(options.unix_directory));
    listeners.push_back(std::move(local));
  }
  net::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return FromErrno(errno, "eventfd");
  const int cores = UsableProcessors();
  const std::string address = listeners[0].address;
  try {
    return std::unique_ptr<PsServer>(std::make_unique<PsServerImpl>(
        std::move(options), std::move(listeners), std::move(wake), cores));
  } catch (const std::system_error& error) {
    return process::NoMore(error.code().value(), "a thread for data plane " + address);
  }
}

}  // namespace muster::ps
