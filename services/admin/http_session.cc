#include "services/admin/http_session.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <utility>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

namespace muster::services {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

struct Target {
  std::string_view host;
  std::string_view path;
};

// "http://here:80/path", as it is asked for through a proxy: the host that it names weighs more
// than the field (RFC 9112, section 3.2.2).
Target TargetOf(std::string_view target, std::string_view host) {
  const std::size_t scheme = std::min(target.find("://"), target.size());
  const boost::beast::string_view name(target.data(), scheme);
  const std::string_view rest = target.substr(std::min(scheme + 3, target.size()));
  const std::size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  if (end == 0 || (!boost::beast::iequals(name, "http") && !boost::beast::iequals(name, "https"))) {
    return {host, target};
  }
  const bool has_path = end < rest.size() && rest[end] == '/';
  return {rest.substr(0, end), has_path ? rest.substr(end) : "/"};
}

HttpReply Refuse(int status, std::string why) {
  return {.status = status, .body = std::move(why) + "\n"};
}

// What is wrong with a request that could not be read; nothing: the peer has gone.
std::optional<HttpReply> Complaint(const boost::system::error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Refuse(431, fmt::format("a request has at most {} bytes here", HttpServer::kMostHeader));
  }
  if (error == http::error::body_limit || error == http::error::unexpected_body) {
    return Refuse(413, "requests have no body here");
  }
  const bool ours = error.category() == make_error_code(http::error::end_of_stream).category();
  if (ours && error != http::error::end_of_stream && error != http::error::partial_message) {
    return Refuse(400, "no HTTP request: " + error.message());
  }
  return std::nullopt;
}

http::response<http::string_body> Response(HttpReply reply, bool head, unsigned version) {
  http::response<http::string_body> message(static_cast<http::status>(reply.status), version);
  message.set(http::field::content_type, reply.type);
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : reply.fields) message.set(name, value);
  message.content_length(reply.body.size());
  if (!head) message.body() = std::move(reply.body);
  return message;
}

}  // namespace

Result<std::string> DecodePath(std::string_view target) {
  std::string path;
  target = target.substr(0, target.find_first_of("?#"));
  if (!target.starts_with('/')) return InvalidArgument("the path must begin with /");
  for (std::size_t at = 0; at < target.size(); ++at) {
    char next = target[at];
    if (next == '%') {
      unsigned code = 0;
      const char* const begin = target.data() + at + 1;
      if (at + 2 < target.size() && std::from_chars(begin, begin + 2, code, 16).ptr == begin + 2) {
        next = static_cast<char>(code);
        at += 2;
      } else {
        return InvalidArgument("the path has a % without two hexadecimal digits");
      }
    }
    if (static_cast<unsigned char>(next) < 0x20 || next == 0x7f) {
      return InvalidArgument("the path has a control character");
    }
    path.push_back(next);
  }
  return path;
}

bool HttpLoop::Post(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (!ended_) asio::post(io_, std::move(task));
  return !ended_;
}

void HttpLoop::End() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  io_.stop();
}

HttpSession::HttpSession(asio::ip::tcp::socket socket, const std::shared_ptr<HttpLoop>& loop,
                         const HttpServer::Options& options, const HttpHandler& handler)
    : stream_(std::move(socket)), loop_(loop), options_(options), handler_(handler) {}

void HttpSession::Close() { stream_.Close(); }

// Shared with the function that the handler has, which may live longer than the session.
struct HttpSession::Answer {
  explicit Answer(const asio::any_io_executor& executor) : given(executor) {}
  asio::steady_timer given;
  std::optional<HttpReply> reply;
};

asio::awaitable<HttpReply> HttpSession::Handle(HttpRequest request) {
  const auto answer = std::make_shared<Answer>(stream_.get_executor());
  answer->given.expires_after(options_.answer_limit);
  handler_(request, [weak = std::weak_ptr(answer), loop = loop_](HttpReply reply) {
    const std::shared_ptr<HttpLoop> still = loop.lock();
    if (still == nullptr) return;
    (void)still->Post([weak, reply = std::move(reply)]() mutable {
      const auto waiting = weak.lock();
      if (waiting == nullptr || waiting->reply) return;
      waiting->reply = std::move(reply);
      waiting->given.cancel();
    });
  });
  (void)co_await answer->given.async_wait(kAwait);
  if (answer->reply) co_return std::move(*answer->reply);
  co_return Refuse(503, fmt::format("no answer within {} ms: what knows it is busy or stands still",
                                    options_.answer_limit.count()));
}

void HttpSession::BeginToRead() {
  stream_.ExpireAfter(options_.read_limit);
  reading_ = true;
  since_ = std::chrono::steady_clock::now();
}

asio::awaitable<bool> HttpSession::Encrypt() {
  if (options_.tls == nullptr) co_return true;
  auto session = options_.tls->Accept();
  if (!session.ok()) co_return false;
  BeginToRead();
  const Status shaken = co_await stream_.Encrypt(*std::move(session));
  reading_ = false;
  if (shaken.ok()) co_return true;
  if (stream_.SpeaksPlainText()) {
    stream_.GoOnInTheClear();
    HttpReply reply = Refuse(400, "this port speaks HTTPS: ask for https://");
    (void)co_await Send(std::move(reply), false, 11, false);
  }
  co_await stream_.Drain();
  co_return false;
}

// As http::async_read() does it.
asio::awaitable<HttpStream::Error> HttpSession::Read(Parser& parser) {
  HttpStream::Error error;
  while (!parser.is_done()) {
    if (buffer_.size() > 0) {
      buffer_.consume(parser.put(buffer_.data(), error));
      if (!error) continue;
      if (error != http::error::need_more) co_return error;
      error.clear();
    }
    const std::size_t room = buffer_.max_size() - buffer_.size();
    if (room == 0) co_return http::error::buffer_overflow;
    const auto [failed, bytes] = co_await stream_.Read(buffer_.prepare(room));
    if (failed == asio::error::eof) {
      if (!parser.got_some()) co_return http::error::end_of_stream;
      parser.put_eof(error);
      co_return error;
    }
    if (failed) co_return failed;
    buffer_.commit(bytes);
  }
  co_return error;
}

asio::awaitable<HttpStream::Error> HttpSession::Send(HttpReply reply, bool head, unsigned version,
                                                     bool keep) {
  auto message = Response(std::move(reply), head, version);
  message.keep_alive(keep);
  std::ostringstream text;
  if (head) {
    text << message.base();
  } else {
    text << message;
  }
  stream_.ExpireAfter(options_.write_limit);
  co_return co_await stream_.Write(text.view());
}

// Requests one after another until the peer goes, is silent too long, or is refused: then it hears
// why, and what it goes on sending is read away so that the answer is not lost with a reset.
asio::awaitable<void> HttpSession::Run() {
  const auto self = shared_from_this();
  bool keep = co_await Encrypt();
  while (keep) {
    Parser parser;
    parser.header_limit(HttpServer::kMostHeader);
    parser.body_limit(0);
    parser.eager(true);
    BeginToRead();
    const HttpStream::Error failed = co_await Read(parser);
    reading_ = false;

    HttpReply reply;
    bool head = false;
    unsigned version = 11;
    if (failed) {
      std::optional<HttpReply> complaint = Complaint(failed);
      if (!complaint) break;
      reply = std::move(*complaint);
      keep = false;
    } else {
      const auto& request = parser.get();
      head = request.method() == http::verb::head;
      version = request.version();
      keep = request.keep_alive();
      const auto field = request[http::field::host];
      const std::size_t hosts = request.count(http::field::host);
      const Target target = TargetOf({request.target().data(), request.target().size()},
                                     {field.data(), field.size()});
      const Result<std::string> path = DecodePath(target.path);
      if (!head && request.method() != http::verb::get) {
        reply = Refuse(405, "GET and HEAD only: nothing can be changed here");
        reply.fields = {{"Allow", "GET, HEAD"}};
      } else if (!path.ok()) {
        reply = Refuse(400, Message(path.status()));
      } else if (hosts > 1 || (hosts == 0 && version >= 11)) {
        // RFC 9112, section 3.2.
        reply = Refuse(400, fmt::format("{} Host fields; a request has one", hosts));
      } else {
        // A variable: g++ 12 destroys a temporary in a co_await twice.
        HttpRequest asked{
            .path = *path, .host = std::string(target.host), .visitor = stream_.Visitor()};
        reply = co_await Handle(std::move(asked));
      }
    }
    if (co_await Send(std::move(reply), head, version, keep)) break;
    if (failed) co_await stream_.Drain();
  }
  stream_.Close();
}

}  // namespace muster::services
