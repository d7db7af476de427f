// One connection of an HttpServer, over any stream of bytes: the fuzz target gives it a pair of
// sockets.
#pragma once

#include <list>
#include <memory>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "common/base/mutex.h"
#include "services/admin/http_server.h"
#include "services/admin/http_stream.h"

namespace muster::services {

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
  // It waits for a handshake or a request, since then.
  bool reading() const { return reading_; }
  TimePoint since() const { return since_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::empty_body>;
  struct Answer;
  // False: it is over, and the peer has heard why if it can.
  boost::asio::awaitable<bool> Encrypt();
  boost::asio::awaitable<HttpStream::Error> Read(Parser& parser);
  boost::asio::awaitable<HttpReply> Handle(HttpRequest request);
  boost::asio::awaitable<HttpStream::Error> Send(HttpReply reply, bool head, unsigned version,
                                                 bool keep);
  void BeginToRead();

  HttpStream stream_;
  boost::beast::flat_buffer buffer_{HttpServer::kMostHeader};
  const std::weak_ptr<HttpLoop> loop_;
  const HttpServer::Options& options_;
  const HttpHandler& handler_;
  bool reading_ = false;
  TimePoint since_;
};

}  // namespace muster::services
