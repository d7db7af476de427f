#include "services/admin/http_server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <sys/socket.h>

#include "services/admin/http_session.h"

namespace muster::services {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// After an error of accept(2), which is the host's: no descriptors, no memory.
constexpr Millis kRest{100};

tcp FamilyOf(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  (void)::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4();
}

}  // namespace

// Everything but `loop` is the thread's.
struct HttpServer::State {
  asio::awaitable<void> Accept(tcp::acceptor& acceptor) {
    while (true) {
      auto [failed, socket] = co_await acceptor.async_accept(kAwait);
      if (failed == asio::error::operation_aborted) co_return;
      if (failed) {
        asio::steady_timer rest(loop->io(), kRest);
        (void)co_await rest.async_wait(kAwait);
        continue;
      }
      MakeRoom();
      const auto session = std::make_shared<HttpSession>(std::move(socket), loop, options, handler);
      sessions.push_back(session);
      asio::co_spawn(loop->io(), session->Run(), asio::detached);
    }
  }

  void MakeRoom() {
    std::erase_if(sessions, [](const auto& session) { return session.expired(); });
    while (sessions.size() >= options.most_connections) {
      // Those that are being answered have a limit of their own, and are few: whoever asks is
      // answered within milliseconds.
      auto oldest = sessions.begin();
      TimePoint since = TimePoint::max();
      for (auto one = sessions.begin(); one != sessions.end(); ++one) {
        const auto session = one->lock();
        if (session == nullptr || !session->reading() || session->since() >= since) continue;
        since = session->since();
        oldest = one;
      }
      if (const auto session = oldest->lock()) session->Close();
      sessions.erase(oldest);
    }
  }

  Options options;
  HttpHandler handler;
  std::shared_ptr<HttpLoop> loop = std::make_shared<HttpLoop>();
  std::vector<tcp::acceptor> acceptors;
  std::vector<std::weak_ptr<HttpSession>> sessions;
  std::thread thread;
};

std::unique_ptr<HttpServer> HttpServer::Start(Options options, std::vector<net::Fd> listeners,
                                              HttpHandler handler) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->handler = std::move(handler);
  for (net::Fd& listener : listeners) {
    const tcp family = FamilyOf(listener.get());
    state->acceptors.emplace_back(state->loop->io(), family, listener.Release());
  }
  for (tcp::acceptor& acceptor : state->acceptors) {
    asio::co_spawn(state->loop->io(), state->Accept(acceptor), asio::detached);
  }
  state->thread = std::thread([loop = state->loop] { loop->io().run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() { Close(); }

void HttpServer::Close() {
  if (state_ == nullptr) return;
  state_->loop->End();
  state_->thread.join();
  state_.reset();
}

}  // namespace muster::services
