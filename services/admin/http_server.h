// A small HTTP/1.1 server for people and their tools: GET and HEAD alone, answers that fit into
// memory, on one thread of its own.
//
// What a stranger can cost is bounded: requests have no body and at most kMostHeader bytes, a
// connection that waits for the rest of one, or of a TLS handshake, is closed after
// Options::read_limit, and with
// Options::most_connections open, the one that has waited longest for a request makes room for the
// next; so a thousand silent connections keep nobody out.
//
// Threading: Start() and Close() from one thread; handlers run on the server's own thread and must
// not wait. Lifetime: what handlers use outlives Close().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/tls/context.h"

namespace muster::services {

struct HttpRequest {
  // Decoded; always begins with "/".
  std::string path;
  // As it was sent: "example.net:8080"; empty: HTTP/1.0 without one.
  std::string host;
  // Who asks, by a certificate, or why that is not known (tls::Session::Visitor); nothing: it came
  // in the clear.
  std::optional<Result<tls::Holder>> visitor = {};
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  // More fields of the header.
  std::vector<std::pair<std::string, std::string>> fields = {};
};

// Answers once, from any thread; what comes later, or after Close(), is dropped.
using HttpRespond = std::function<void(HttpReply)>;
using HttpHandler = std::function<void(const HttpRequest&, HttpRespond)>;

// "%41" to "A". kInvalidArgument: no path, or it holds what no path does (a broken escape, a
// control character).
Result<std::string> DecodePath(std::string_view target);

class HttpServer {
 public:
  static constexpr std::size_t kMostHeader = 8'192;

  struct Options {
    std::size_t most_connections = 64;
    // From the end of one answer (or from connecting) to the end of the next request.
    Millis read_limit{10'000};
    // For the handler's answer: 503 after that.
    Millis answer_limit{5'000};
    // For the peer to take it.
    Millis write_limit{10'000};
    // HTTPS by it: whoever comes is let in, and HttpRequest::visitor says who that is. Null: HTTP.
    std::shared_ptr<tls::Context> tls = {};
  };

  // `listeners` are bound and listen.
  static std::unique_ptr<HttpServer> Start(Options options, std::vector<net::Fd> listeners,
                                           HttpHandler handler);
  ~HttpServer();
  // Ends all connections. Idempotent.
  void Close();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster::services
