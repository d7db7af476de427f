#include "common/cluster/http_client.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <nlohmann/json.hpp>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/base/words.h"
#include "common/cluster/json_text.h"
#include "common/cluster/url.h"

namespace muster::cluster {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using Endpoints = std::vector<tcp::endpoint>;
using ErrorCode = boost::system::error_code;

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);

// The addresses of a host. A look-up cannot be broken off, so it runs on a thread that is left
// behind when the deadline passes; it touches nothing but the state that it owns together with the
// waiter.
Result<Endpoints> Lookup(const Url& url, Clock::time_point deadline) {
  ErrorCode no_literal;
  const auto literal = asio::ip::make_address(url.host, no_literal);
  const auto port = static_cast<unsigned short>(url.port);
  if (!no_literal) return Endpoints{{literal, port}};

  using Found = std::pair<ErrorCode, Endpoints>;
  auto promise = std::make_shared<std::promise<Found>>();
  std::future<Found> future = promise->get_future();
  std::thread([promise, host = url.host, port] {
    asio::io_context io;
    ErrorCode error;
    const auto results = tcp::resolver(io).resolve(host, std::to_string(port), error);
    Endpoints endpoints;
    for (const auto& result : results) endpoints.push_back(result.endpoint());
    promise->set_value({error, std::move(endpoints)});
  }).detach();
  if (future.wait_until(deadline) != std::future_status::ready) {
    return DeadlineExceeded("no answer in time while looking up host {}", url.host);
  }
  auto [error, endpoints] = future.get();
  if (error) return Unavailable("looking up host {}: {}", url.host, error.message());
  return std::move(endpoints);
}

// One exchange over a stream of either kind.
class Exchange {
 public:
  Exchange(const HttpRequest& request, const HttpOptions& options, const Url& url)
      : request_(request), options_(options), url_(url) {}

  Result<HttpAnswer> Run(const Endpoints& endpoints) {
    asio::io_context io;
    // Stays when nothing completes, which would be a bug of ours.
    Result<HttpAnswer> result = Internal("the exchange never ended");
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
          // No conditional expression: g++ 12 copies its temporaries byte by byte.
          if (url_.tls) {
            result = co_await OverTls(io, endpoints);
          } else {
            result = co_await Plain(io, endpoints);
          }
        },
        asio::detached);
    io.run();
    return result;
  }

 private:
  asio::awaitable<Result<HttpAnswer>> Plain(asio::io_context& io, const Endpoints& endpoints) {
    beast::tcp_stream stream(io);
    const Status connected = co_await Connect(stream, endpoints);
    if (!connected.ok()) co_return connected;
    co_return co_await Talk(stream);
  }

  asio::awaitable<Result<HttpAnswer>> OverTls(asio::io_context& io, const Endpoints& endpoints) {
    ssl::context context(ssl::context::tls_client);
    const Status trust = SetTrust(context);
    if (!trust.ok()) co_return trust;
    beast::ssl_stream<beast::tcp_stream> stream(io, context);
    const Status named = ExpectHost(stream.native_handle());
    if (!named.ok()) co_return named;
    const Status connected = co_await Connect(beast::get_lowest_layer(stream), endpoints);
    if (!connected.ok()) co_return connected;

    phase_ = "the TLS handshake";
    const auto [error] = co_await stream.async_handshake(ssl::stream_base::client, kToken);
    if (error) {
      const long verdict = SSL_get_verify_result(stream.native_handle());
      if (verdict != X509_V_OK) {
        co_return Unavailable("the server's certificate is not trusted: {} (authorities: {})",
                              X509_verify_cert_error_string(verdict),
                              options_.ca_file.empty() ? "the system's" : options_.ca_file);
      }
      co_return Failed(error);
    }
    co_return co_await Talk(stream);
  }

  Status SetTrust(ssl::context& context) const {
    context.set_verify_mode(ssl::verify_peer);
    SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
    ErrorCode error;
    if (options_.ca_file.empty()) {
      (void)context.set_default_verify_paths(error);
    } else {
      (void)context.load_verify_file(options_.ca_file, error);
    }
    if (!error) return Ok();
    return InvalidArgument("CA file {}: {}", options_.ca_file, error.message());
  }

  // The certificate must be for the host of the URL, by name or by address.
  Status ExpectHost(SSL* connection) const {
    const char* host = url_.host.c_str();
    ErrorCode no_address;
    asio::ip::make_address(url_.host, no_address);
    const bool set = no_address
                         ? SSL_set_tlsext_host_name(connection, host) == 1 &&
                               SSL_set1_host(connection, host) == 1
                         : X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(connection), host) == 1;
    return set ? Ok()
               : InvalidArgument("host \"{}\" cannot be checked against a certificate", host);
  }

  asio::awaitable<Status> Connect(beast::tcp_stream& stream, const Endpoints& endpoints) {
    phase_ = "connecting";
    stream.expires_at(options_.deadline);
    const auto [error, endpoint] = co_await stream.async_connect(endpoints, kToken);
    co_return error ? Failed(error) : Ok();
  }

  template <class Stream>
  asio::awaitable<Result<HttpAnswer>> Talk(Stream& stream) {
    phase_ = "sending the request";
    http::request<http::string_body> request = MakeRequest();
    const auto [write_error, sent] = co_await http::async_write(stream, request, kToken);
    if (write_error) co_return Failed(write_error);

    phase_ = "waiting for the answer";
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(options_.max_body_bytes);
    const auto [read_error, received] = co_await http::async_read(stream, buffer, parser, kToken);
    if (read_error) co_return Failed(read_error);
    http::response<http::string_body> answer = parser.release();
    // Member by member: g++ 12 mishandles aggregates in coroutines.
    HttpAnswer result;
    result.status = static_cast<int>(answer.result_int());
    result.reason = std::string(answer.reason());
    result.body = std::move(answer.body());
    co_return result;
  }

  http::request<http::string_body> MakeRequest() const {
    http::request<http::string_body> request;
    request.version(11);
    request.method_string(request_.method);
    request.target(url_.target);
    request.set(http::field::host, url_.HostHeader());
    request.set(http::field::user_agent, "muster");
    request.set(http::field::accept, "application/json");
    request.set(http::field::connection, "close");
    for (const auto& [name, value] : request_.headers) request.set(name, value);
    if (!request_.body.empty()) {
      request.set(http::field::content_type, "application/json");
      request.body() = request_.body;
    }
    request.prepare_payload();
    return request;
  }

  Status Failed(const ErrorCode& error) const {
    if (error == beast::error::timeout)
      return DeadlineExceeded("no answer in time while {}", phase_);
    if (error == http::error::body_limit) {
      return ResourceExhausted("the answer is longer than {} bytes", options_.max_body_bytes);
    }
    if (error == http::error::partial_message || error == http::error::end_of_stream ||
        error == ssl::error::stream_truncated || error == asio::error::eof) {
      return Unavailable("the connection ended in the middle of the answer");
    }
    if (error.category() == http::make_error_code(http::error::bad_version).category()) {
      return Unavailable("the answer is no HTTP: {}", error.message());
    }
    return Unavailable("{}: {}", phase_, error.message());
  }

  const HttpRequest& request_;
  const HttpOptions& options_;
  const Url& url_;
  std::string_view phase_ = "connecting";
};

Status CheckHeaders(const HttpRequest& request) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; };
  for (const auto& [name, value] : request.headers) {
    if (name.empty() || std::any_of(name.begin(), name.end(), control) ||
        std::any_of(value.begin(), value.end(), control)) {
      return InvalidArgument("header \"{}\" has a control character", name);
    }
  }
  return Ok();
}

std::string Named(const HttpRequest& request) { return request.method + " " + request.url; }

Result<HttpAnswer> FetchUnnamed(const HttpRequest& request, const HttpOptions& options) {
  MUSTER_TRY(CheckHeaders(request));
  MUSTER_TRY_ASSIGN(const Url url, ParseUrl(request.url));
  MUSTER_TRY_ASSIGN(const Endpoints endpoints, Lookup(url, options.deadline));
  if (endpoints.empty()) return Unavailable("host {} has no address", url.host);
  return Exchange(request, options, url).Run(endpoints);
}

// The beginning of what a server says, fit for one line of a message.
std::string OneLine(const std::string& body) {
  constexpr std::size_t kLongest = 200;
  std::string line;
  for (const char c : body.substr(0, kLongest)) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == 127;
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : c;
  }
  if (body.size() > kLongest) line += "..";
  return line;
}

std::string Snippet(const std::string& body) {
  const std::string line = OneLine(body);
  return line.empty() ? "no further text" : line;
}

StatusCode CodeOf(int status) {
  if (status == 401) return StatusCode::kUnauthenticated;
  if (status == 403) return StatusCode::kPermissionDenied;
  if (status == 404) return StatusCode::kNotFound;
  return status >= 500 || status == 429 ? StatusCode::kUnavailable
                                        : StatusCode::kFailedPrecondition;
}

}  // namespace

Result<HttpAnswer> Fetch(const HttpRequest& request, const HttpOptions& options) {
  try {
    Result<HttpAnswer> answer = FetchUnnamed(request, options);
    if (answer.ok()) return answer;
    return Annotate(answer.status(), Named(request));
  } catch (const std::exception& error) {  // Boost's own: out of descriptors, out of memory
    return Unavailable("{}: {}", Named(request), error.what());
  }
}

Result<std::string> FetchText(const HttpRequest& request, const HttpOptions& options) {
  MUSTER_TRY_ASSIGN(HttpAnswer answer, Fetch(request, options));
  if (answer.status >= 200 && answer.status < 300) return std::move(answer.body);
  return MakeStatus(CodeOf(answer.status),
                    fmt::format("{}: HTTP {} {}: {}", Named(request), answer.status,
                                OneLine(answer.reason), Snippet(answer.body)));
}

Result<nlohmann::json> FetchJson(const HttpRequest& request, const HttpOptions& options) {
  MUSTER_TRY_ASSIGN(const std::string text, FetchText(request, options));
  Result<nlohmann::json> parsed = ParseJson(text, "the answer");
  if (parsed.ok()) return parsed;
  return Unavailable("{}: {} (it is {}: {})", Named(request), Message(parsed.status()),
                     Counted(text.size(), "byte"), Snippet(text));
}

Result<std::pair<std::string, std::string>> BearerHeader(std::string_view token,
                                                         const std::string& url) {
  const bool plain = !token.empty() && std::all_of(token.begin(), token.end(),
                                                   [](char c) { return c > ' ' && c < 127; });
  if (!plain) return InvalidArgument("the token for {} has a blank or a control character", url);
  MUSTER_TRY_ASSIGN(const Url parsed, ParseUrl(url));
  if (!parsed.tls && !parsed.IsLoopback()) {
    return InvalidArgument("{} is not https; the token would be sent in the clear", url);
  }
  return std::pair<std::string, std::string>("Authorization", "Bearer " + std::string(token));
}

Result<std::string> ReadTokenFile(const std::string& path) {
  constexpr std::size_t kLongest = 64 << 10;
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return FromErrno(errno, "open the token file " + path);
  std::string token(kLongest + 1, '\0');
  in.read(token.data(), static_cast<std::streamsize>(token.size()));
  if (in.bad()) return FromErrno(errno, "read the token file " + path);
  token.resize(static_cast<std::size_t>(in.gcount()));
  if (token.size() > kLongest) {
    return InvalidArgument("token file {}: longer than {} bytes", path, kLongest);
  }
  const std::size_t first = token.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return InvalidArgument("token file {}: empty", path);
  return token.substr(first, token.find_last_not_of(" \t\r\n") - first + 1);
}

std::string PercentEncode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace muster::cluster
