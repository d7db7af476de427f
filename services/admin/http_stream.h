// The bytes of one connection of an HttpServer: in the clear, or behind TLS.
//
// Threading: the loop's. Every wait ends when the time of ExpireAfter() is over.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "common/base/scheduler.h"
#include "common/tls/session.h"

namespace muster::services {

// Errors come as values.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

class HttpStream {
 public:
  using Error = boost::system::error_code;

  explicit HttpStream(boost::asio::ip::tcp::socket socket) : tcp_(std::move(socket)) {}

  auto get_executor() { return tcp_.get_executor(); }
  void ExpireAfter(Millis limit) { tcp_.expires_after(limit); }

  // From now on all bytes pass through the session. The errors of its handshake; kUnavailable: the
  // peer has gone, or its time is over.
  boost::asio::awaitable<Status> Encrypt(std::unique_ptr<tls::Session> session);
  // The peer has sent letters where a handshake begins with another byte.
  bool SpeaksPlainText() const { return first_ && *first_ >= 'A' && *first_ <= 'Z'; }
  // Bytes are as they are again.
  void GoOnInTheClear() { session_.reset(); }
  // As tls::Session::Visitor(); nothing: it came in the clear.
  std::optional<Result<tls::Holder>> Visitor() const;

  boost::asio::awaitable<std::pair<Error, std::size_t>> Read(boost::asio::mutable_buffer into);
  boost::asio::awaitable<Error> Write(std::string_view bytes);
  // Says that no more comes, and reads on for a while: a connection that is closed with bytes
  // unread is reset, and the peer may never see the last answer.
  boost::asio::awaitable<void> Drain();
  void Close() { tcp_.close(); }

 private:
  // Takes ciphertext that comes; sends what there is.
  boost::asio::awaitable<Error> Fill();
  boost::asio::awaitable<Error> Flush();

  boost::beast::tcp_stream tcp_;
  // Null: in the clear.
  std::unique_ptr<tls::Session> session_;
  std::optional<char> first_;
};

}  // namespace muster::services
