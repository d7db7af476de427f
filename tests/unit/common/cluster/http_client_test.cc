#include "common/cluster/http_client.h"

#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "common/cluster/url.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/cluster/http_server.h"

namespace muster::cluster {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

HttpOptions Within(std::chrono::milliseconds limit, std::string ca_file = {}) {
  return {.deadline = Clock::now() + limit, .ca_file = std::move(ca_file)};
}

HttpServer::Handler Always(std::string answer) {
  return [answer = std::move(answer)](const ServerRequest&) { return answer; };
}

bool Has(const Status& status, const std::string& text) {
  UNSCOPED_INFO(ToString(status));
  return Message(status).find(text) != std::string::npos;
}

TEST_CASE("a request reaches the server whole and its answer comes back", "[cluster][unit]") {
  HttpServer server([](const ServerRequest& request) {
    return HttpText(200, "[\"" + request.method + "\", \"" + request.target + "\"]");
  });

  const Result<nlohmann::json> answer = FetchJson({.url = server.Url() + "/a/b?c=%20d",
                                                   .method = "POST",
                                                   .headers = {{"Authorization", "Bearer x"}},
                                                   .body = "{\"k\": 1}"},
                                                  Within(60s));

  CHECK(answer.value() == nlohmann::json::array({"POST", "/a/b?c=%20d"}));
  REQUIRE(server.Requests().size() == 1);
  CHECK(server.Requests()[0].body == "{\"k\": 1}");
  CHECK(server.Requests()[0].authorization == "Bearer x");
}

TEST_CASE("a server that never answers costs no more than the deadline", "[cluster][unit]") {
  HttpServer server([](const ServerRequest&) { return std::nullopt; });
  const Clock::time_point start = Clock::now();

  const Status status = Fetch({.url = server.Url() + "/x"}, Within(200ms)).status();

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Has(status, "GET " + server.Url() + "/x: no answer in time while waiting for the answer"));
  CHECK(Clock::now() - start < 30s);
}

TEST_CASE("a server that stops in the middle costs no more than the deadline either",
          "[cluster][unit]") {
  // Speaks TCP, never TLS.
  HttpServer plain([](const ServerRequest&) { return std::nullopt; });
  std::string url = plain.Url();
  url.replace(0, 4, "https");

  const Status status = Fetch({.url = url}, Within(200ms)).status();

  CHECK_FALSE(status.ok());
  CHECK(Has(status, "GET " + url));
}

TEST_CASE("an error status names endpoint, status and what the server said", "[cluster][unit]") {
  const auto status_of = [](int status) {
    HttpServer server(Always(HttpText(status, "{\"message\":\n \"it broke\"}")));
    return FetchText({.url = server.Url()}, Within(60s)).status();
  };

  CHECK(status_of(500).code() == StatusCode::kUnavailable);
  CHECK(Has(status_of(500), ": HTTP 500 Internal Server Error: {\"message\": \"it broke\"}"));
  CHECK(status_of(429).code() == StatusCode::kUnavailable);
  CHECK(status_of(401).code() == StatusCode::kUnauthenticated);
  CHECK(status_of(403).code() == StatusCode::kPermissionDenied);
  CHECK(status_of(404).code() == StatusCode::kNotFound);
  CHECK(status_of(302).code() == StatusCode::kFailedPrecondition);
  CHECK(status_of(400).code() == StatusCode::kFailedPrecondition);
}

TEST_CASE("half a JSON is an error, cut by the server or by the connection", "[cluster][unit]") {
  HttpServer half(Always(HttpText(200, "{\"items\": [1, 2")));
  HttpServer cut(Always("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"items\": [1, 2"));
  HttpServer header(Always("HTTP/1.1 200 OK\r\nContent-Le"));

  const Status first = FetchJson({.url = half.Url()}, Within(60s)).status();
  const Status second = FetchJson({.url = cut.Url()}, Within(60s)).status();
  const Status third = FetchJson({.url = header.Url()}, Within(60s)).status();

  CHECK(first.code() == StatusCode::kUnavailable);
  CHECK(Has(first, "GET " + half.Url() + ": the answer: not JSON: parse error at line 1"));
  CHECK(Has(first, "15 bytes"));
  CHECK(second.code() == StatusCode::kUnavailable);
  CHECK(Has(second, "the connection ended in the middle of the answer"));
  CHECK(Has(third, "the connection ended in the middle of the answer"));
}

TEST_CASE("an answer that is no HTTP, or far too long, is refused", "[cluster][unit]") {
  HttpServer ssh(Always("SSH-2.0-OpenSSH_9.2\r\n\r\n"));
  HttpServer longer(Always(HttpText(200, std::string(2000, 'x'))));
  HttpOptions small = Within(60s);
  small.max_body_bytes = 1000;

  CHECK(Has(Fetch({.url = ssh.Url()}, Within(60s)).status(), "the answer is no HTTP"));
  const Status status = Fetch({.url = longer.Url()}, small).status();
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(Has(status, "longer than 1000 bytes"));
}

TEST_CASE("nobody listening, and a host without an address, are said", "[cluster][unit]") {
  std::string url;
  {
    HttpServer gone(Always(""));
    url = gone.Url();
  }

  CHECK(Has(Fetch({.url = url}, Within(60s)).status(), "connecting: Connection refused"));
  const Status unknown = Fetch({.url = "http://no-such-host.invalid/"}, Within(2s)).status();
  CHECK_FALSE(unknown.ok());
  CHECK(Has(unknown, "looking up host no-such-host.invalid"));
}

TEST_CASE("TLS works with the right authority only", "[cluster][unit]") {
  const testing::TempFolder directory;
  const Certificate own = MakeCertificate();
  const std::string ca = directory.Write("ca.pem", own.certificate);
  const std::string other_ca = directory.Write("other.pem", MakeCertificate().certificate);
  HttpServer server(Always(HttpText(200, "secret")), &own);

  CHECK(FetchText({.url = server.Url()}, Within(60s, ca)).value() == "secret");
  CHECK(FetchText({.url = server.Url("localhost")}, Within(60s, ca)).value() == "secret");
  for (const std::string& wrong : {other_ca, std::string()}) {
    const Status status = FetchText({.url = server.Url()}, Within(60s, wrong)).status();
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(Has(status, "certificate is not trusted"));
  }
  CHECK(server.Requests().size() == 2);
}

TEST_CASE("a certificate for another host is refused", "[cluster][unit]") {
  const testing::TempFolder directory;
  const Certificate own = MakeCertificate("DNS:example.com,IP:10.0.0.1");
  const std::string ca = directory.Write("ca.pem", own.certificate);
  HttpServer server(Always(HttpText(200, "secret")), &own);

  CHECK(Has(Fetch({.url = server.Url()}, Within(60s, ca)).status(), "IP address mismatch"));
  CHECK(
      Has(Fetch({.url = server.Url("localhost")}, Within(60s, ca)).status(), "hostname mismatch"));
}

TEST_CASE("a CA file that is not there is named", "[cluster][unit]") {
  const Status status =
      Fetch({.url = "https://127.0.0.1:1/"}, Within(1s, "/nonexistent/ca.pem")).status();

  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Has(status, "CA file /nonexistent/ca.pem"));
}

TEST_CASE("a token is read from its file and goes into no clear connection", "[cluster][unit]") {
  const testing::TempFolder directory;

  CHECK(ReadTokenFile(directory.Write("token", " abc.def\n")).value() == "abc.def");
  CHECK(ReadTokenFile(directory.Write("empty", "\n")).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(ReadTokenFile(directory.Write("long", std::string(100'000, 'a'))).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(ReadTokenFile("/nonexistent/token").status().code() == StatusCode::kNotFound);
  CHECK(BearerHeader("abc", "https://host/").value().second == "Bearer abc");
  CHECK(BearerHeader("abc", "http://127.0.0.1:80/").ok());
  CHECK(BearerHeader("abc", "http://[::1]:80/").ok());
  CHECK(Has(BearerHeader("abc", "http://host/").status(), "would be sent in the clear"));
  CHECK(Has(BearerHeader("abc", "http://127.evil.com/").status(), "in the clear"));
  CHECK_FALSE(BearerHeader("a\r\nX-Evil: b", "https://host/").ok());
}

TEST_CASE("a header cannot bring a second one along", "[cluster][unit]") {
  const Status status =
      Fetch({.url = "http://127.0.0.1:1/", .headers = {{"A", "b\r\nC: d"}}}, Within(1s)).status();

  CHECK(status.code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a URL is taken apart", "[cluster][unit]") {
  const Url url = ParseUrl("https://example.com/a?b=c#d").value();
  CHECK(url.tls);
  CHECK(url.host == "example.com");
  CHECK(url.port == 443);
  CHECK(url.target == "/a?b=c");
  CHECK(url.HostHeader() == "example.com");
  CHECK(ParseUrl("http://h:8080").value().HostHeader() == "h:8080");
  CHECK(ParseUrl("http://h?x").value().target == "/?x");
  CHECK(ParseUrl("http://[::1]/").value().port == 80);
  CHECK(ParseUrl("http://[::1]:81/").value().HostHeader() == "[::1]:81");

  for (const char* bad : {"", "host", "ftp://host", "http://", "http://user@host/", "http://h:0/",
                          "http://h:x/", "http://a b/", "http://h/\r\nx", "http:///x"}) {
    INFO(bad);
    CHECK(ParseUrl(bad).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("what is put into a URL is encoded", "[cluster][unit]") {
  CHECK(PercentEncode("job-name=a,b in (c)/~\n") == "job-name%3Da%2Cb%20in%20%28c%29%2F~%0A");
}

}  // namespace
}  // namespace muster::cluster
