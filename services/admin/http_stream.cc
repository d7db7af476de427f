#include "services/admin/http_stream.h"

#include <array>

#include <boost/asio/error.hpp>
#include <boost/asio/write.hpp>

namespace muster::services {
namespace {

namespace asio = boost::asio;

// So much is read of what a peer has sent and was refused.
constexpr std::size_t kMostDrained = 65'536;
constexpr Millis kDrainLimit{500};

}  // namespace

asio::awaitable<HttpStream::Error> HttpStream::Fill() {
  const std::span<std::byte> room = session_->Room();
  const auto [failed, bytes] =
      co_await tcp_.async_read_some(asio::buffer(room.data(), room.size()), kAwait);
  if (failed) co_return failed;
  if (!first_) first_ = static_cast<char>(room.front());
  session_->Came(bytes);
  co_return Error();
}

asio::awaitable<HttpStream::Error> HttpStream::Flush() {
  while (!session_->Waiting().empty()) {
    const std::span<const std::byte> waiting = session_->Waiting();
    const auto [failed, bytes] =
        co_await tcp_.async_write_some(asio::buffer(waiting.data(), waiting.size()), kAwait);
    if (failed) co_return failed;
    session_->Went(bytes);
  }
  co_return Error();
}

asio::awaitable<Status> HttpStream::Encrypt(std::unique_ptr<tls::Session> session) {
  session_ = std::move(session);
  while (true) {
    const Result<bool> done = session_->Handshake();
    // To who speaks plain text an alert would be no words.
    if (!done.ok() && SpeaksPlainText()) co_return done.status();
    const Error unsent = co_await Flush();
    if (!done.ok()) co_return done.status();
    if (*done && !unsent) co_return Ok();
    const Error failed = unsent ? unsent : co_await Fill();
    if (failed) co_return Unavailable("in the TLS handshake: {}", failed.message());
  }
}

std::optional<Result<tls::Holder>> HttpStream::Visitor() const {
  if (session_ == nullptr) return std::nullopt;
  return session_->Visitor();
}

asio::awaitable<std::pair<HttpStream::Error, std::size_t>> HttpStream::Read(
    asio::mutable_buffer into) {
  if (session_ == nullptr) {
    const auto [failed, bytes] = co_await tcp_.async_read_some(into, kAwait);
    co_return std::pair(failed, bytes);
  }
  while (true) {
    const Result<std::size_t> got =
        session_->Read({static_cast<std::byte*>(into.data()), into.size()});
    if (!got.ok()) co_return std::pair(Error(asio::error::connection_reset), std::size_t{0});
    if (*got > 0) co_return std::pair(Error(), *got);
    if (session_->ended()) co_return std::pair(Error(asio::error::eof), std::size_t{0});
    // Part of a record, or an order to answer (new keys).
    Error failed = co_await Flush();
    if (!failed) failed = co_await Fill();
    if (failed) co_return std::pair(failed, std::size_t{0});
  }
}

asio::awaitable<HttpStream::Error> HttpStream::Write(std::string_view bytes) {
  if (session_ == nullptr) {
    const auto [failed, sent] =
        co_await asio::async_write(tcp_, asio::buffer(bytes.data(), bytes.size()), kAwait);
    co_return failed;
  }
  while (!bytes.empty()) {
    const Result<std::size_t> taken = session_->Write(std::as_bytes(std::span(bytes)));
    if (!taken.ok()) co_return Error(asio::error::connection_reset);
    bytes.remove_prefix(*taken);
    if (const Error failed = co_await Flush(); failed) co_return failed;
  }
  co_return Error();
}

asio::awaitable<void> HttpStream::Drain() {
  ExpireAfter(kDrainLimit);
  if (session_ != nullptr) {
    session_->End();
    (void)co_await Flush();
  }
  Error ignored;
  tcp_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  std::array<char, 4'096> rest{};
  for (std::size_t drained = 0; drained < kMostDrained;) {
    const auto [ended, bytes] = co_await tcp_.async_read_some(asio::buffer(rest), kAwait);
    if (ended) break;
    drained += bytes;
  }
}

}  // namespace muster::services
