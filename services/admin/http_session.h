// One connection of an HttpServer, over any stream of bytes: the fuzz target gives it a pair of
// sockets.
#pragma once

#include <list>
#include <memory>
#include <string>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "common/base/mutex.h"
#include "services/admin/http_server.h"

namespace muster::services {

// Errors come as values.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

// What sessions share. Threading: Post() from any thread.
class HttpLoop {
 public:
  boost::asio::io_context& io() { return io_; }
  // Runs it on the loop's thread; false: the loop has ended.
  bool Post(std::function<void()> task);
  void End();

 private:
  Mutex mutex_;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  boost::asio::io_context io_{1};
};

// Lifetime: handler, options and loop outlive it.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, const std::shared_ptr<HttpLoop>& loop,
              const HttpServer::Options& options, const HttpHandler& handler);

  // Until the peer has gone, or must go.
  boost::asio::awaitable<void> Run();
  void Close();
  // It waits for a request, since then.
  bool reading() const { return reading_; }
  TimePoint since() const { return since_; }

 private:
  struct Answer;
  boost::asio::awaitable<HttpReply> Handle(HttpRequest request);
  boost::asio::awaitable<void> Drain();

  boost::beast::tcp_stream stream_;
  boost::beast::flat_buffer buffer_{HttpServer::kMostHeader};
  const std::weak_ptr<HttpLoop> loop_;
  const HttpServer::Options& options_;
  const HttpHandler& handler_;
  bool reading_ = false;
  TimePoint since_;
};

}  // namespace muster::services
