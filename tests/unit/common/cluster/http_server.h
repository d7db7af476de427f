// A small HTTP(S) server in this process, for tests of those who ask one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::cluster {

// A new key and a certificate for it, signed by itself, for localhost and 127.0.0.1 unless told
// otherwise. PEM.
struct Certificate {
  std::string key;
  std::string certificate;
};
Certificate MakeCertificate(const std::string& names = "DNS:localhost,IP:127.0.0.1");

struct ServerRequest {
  std::string method;
  std::string target;
  std::string authorization;    // header
  std::string metadata_flavor;  // header
  std::string body;
};

// Answers each request on a port of its own on 127.0.0.1, until destroyed.
class HttpServer {
 public:
  // What goes over the wire, as it is; then the connection is closed. Nothing: it stays open,
  // silent.
  using Handler = std::function<std::optional<std::string>(const ServerRequest&)>;
  // The handler runs on the server's thread.
  explicit HttpServer(Handler handler, const Certificate* tls = nullptr);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "http://127.0.0.1:41234", or with another host name.
  [[nodiscard]] std::string Url(const std::string& host = "127.0.0.1") const;
  // Those that came so far.
  [[nodiscard]] std::vector<ServerRequest> Requests() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A whole answer with a body.
std::string HttpText(int status, const std::string& body);

}  // namespace muster::cluster
