#include "services/admin/http_server.h"

#include <list>
#include <thread>

#include "tests/support/catch.h"
#include "tests/unit/services/admin/http_client.h"

namespace muster::services {
namespace {

using testing::Get;
using testing::HttpClient;
using testing::Listener;

// Says what it was asked for, or nothing.
struct Server {
  void Start(HttpServer::Options options) {
    Listener listener;
    port = listener.port;
    std::vector<net::Fd> listeners;
    listeners.push_back(std::move(listener.fd));
    server = HttpServer::Start(options, std::move(listeners),
                               [this](const HttpRequest& request, HttpRespond respond) {
                                 if (request.path == "/silent") return kept.push_back(respond);
                                 respond({.body = request.path + " of " + request.host});
                               });
  }
  int port = 0;
  std::vector<HttpRespond> kept;
  std::unique_ptr<HttpServer> server;
};

TEST_CASE_METHOD(Server, "a request is answered, and the connection may be used again",
                 "[admin][http]") {
  Start({});
  HttpClient client(port);

  client.Send("GET /a%20b?query HTTP/1.1\r\nHost: here:80\r\n\r\n");
  const std::string first = client.Answer();
  client.Send("HEAD /c HTTP/1.1\r\nHost: here\r\n\r\n");
  client.Send("GET /d HTTP/1.1\r\nHost: here\r\n\r\n");
  const std::string both = client.Answer();

  CHECK(first.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(first.ends_with("\r\n\r\n/a b of here:80"));
  // HEAD: the length, and no body.
  CHECK(both.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(both.find("Content-Length: 10\r\n") != std::string::npos);
  CHECK(both.find("/c of here") == std::string::npos);
}

TEST_CASE_METHOD(Server, "what changes something, has a body, is too long or is no HTTP is refused",
                 "[admin][http]") {
  Start({});
  const auto answer = [this](const std::string& bytes) {
    HttpClient client(port);
    client.Send(bytes);
    return client.Answer();
  };

  CHECK(answer("DELETE /jobs HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 405 "));
  CHECK(answer("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(answer("GET / HTTP/1.1\r\nHost: here\r\nHost: there\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(answer("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 "));
  CHECK(answer("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\nx")
            .starts_with("HTTP/1.1 413 "));
  CHECK(answer("GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\nHost: here\r\n\r\n")
            .starts_with("HTTP/1.1 431 "));
  CHECK(answer(std::string(4'000, '\x7f') + "\r\n\r\n").starts_with("HTTP/1.1 400 "));
  (void)answer(std::string(1'000'000, '\x7f'));
  CHECK(answer("GET /%zz HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(answer("GET /%00 HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 400 "));
  CHECK(answer("GET / HTTP/1.1\r\nHost: here\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

TEST_CASE_METHOD(Server, "what is asked for by a whole URL is the path on the host that it names",
                 "[admin][http]") {
  Start({});
  const auto answer = [this](const std::string& target) {
    HttpClient client(port);
    client.Send("GET " + target + " HTTP/1.1\r\nHost: field\r\n\r\n");
    return client.Answer();
  };

  CHECK(answer("http://here:80/a%20b?c://d").ends_with("\r\n\r\n/a b of here:80"));
  CHECK(answer("HTTPS://here").ends_with("\r\n\r\n/ of here"));
  CHECK(answer("http://here?/a").ends_with("\r\n\r\n/ of here"));
  CHECK(answer("/a?http://here/").ends_with("\r\n\r\n/a of field"));
  for (const char* none : {"http:///a", "http://", "ftp://here/a", "://here/a", "here:80"}) {
    CAPTURE(none);
    CHECK(answer(none).starts_with("HTTP/1.1 400 "));
  }
}

TEST_CASE_METHOD(Server, "who begins a request and does not end it is closed", "[admin][http]") {
  Start({.read_limit = Millis(200)});
  HttpClient client(port);

  client.Send("GET / HTTP/1.1\r\nHost: he");

  CHECK(client.Closed());
}

TEST_CASE_METHOD(Server, "a thousand connections that say nothing keep nobody out",
                 "[admin][http]") {
  Start({.most_connections = 8, .read_limit = Millis(600'000)});
  std::list<HttpClient> silent;
  for (int i = 0; i < 900; ++i) silent.emplace_back(port).Send("GET / HT");

  CHECK(Get(port, "/").starts_with("HTTP/1.1 200 "));
  CHECK(silent.front().Closed());
}

TEST_CASE_METHOD(Server, "a handler that does not answer in time is not waited for",
                 "[admin][http]") {
  Start({.answer_limit = Millis(100)});

  CHECK(Get(port, "/silent").starts_with("HTTP/1.1 503 "));
  // Too late, and after the end of the server.
  REQUIRE(kept.size() == 1);
  kept[0]({});
  server.reset();
  kept[0]({});
}

TEST_CASE_METHOD(Server, "a server ends while somebody waits for an answer", "[admin][http]") {
  Start({});
  HttpClient client(port);
  client.Send("GET /silent HTTP/1.1\r\nHost: here\r\n\r\n");
  HttpClient idle(port);

  server->Close();

  CHECK(client.Closed());
  CHECK(idle.Closed());
}

}  // namespace
}  // namespace muster::services
