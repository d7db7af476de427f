// The admin port of a daemon that has a certificate, and who may look through it.
#include <list>
#include <thread>

#include "services/admin/admin_port.h"
#include "services/common/admin.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/unit/services/admin/https_client.h"

namespace muster::services {
namespace {

using testing::Certificates;
using testing::Get;
using testing::HttpClient;
using testing::HttpsClient;
using tls::Role;

struct TlsPort {
  TlsPort() : files(folder.Issue("node", {.role = Role::kNode, .names = {"worker:1"}})) {}

  void Start(HttpServer::Options http = {}) {
    http.tls = *tls::Context::FromFiles(files);
    testing::Listener listener;
    number = listener.port;
    std::vector<net::Fd> listeners;
    listeners.push_back(std::move(listener.fd));
    port = std::make_unique<AdminPort>(
        AdminPort::Options{
            .task = "worker:1", .version = "1.2.3", .authorize = TlsAdminGuard(), .http = http},
        std::move(listeners));
    port->Serve("/api/",
                [](const HttpRequest&, const HttpRespond& respond) { respond({.body = "jobs"}); });
    port->Serve("/large", [](const HttpRequest&, const HttpRespond& respond) {
      respond({.body = std::string(3'000'000, 'x') + "."});
    });
  }
  tls::Files Viewer() { return folder.Issue("bob", {.role = Role::kViewer, .names = {"bob"}}); }

  Certificates folder;
  tls::Files files;
  int number = 0;
  std::unique_ptr<AdminPort> port;
};

TEST_CASE_METHOD(TlsPort,
                 "behind TLS jobs and metrics are shown to certificates of the cluster alone",
                 "[admin][tls]") {
  Start();
  Certificates other;
  const auto sees = [this](const tls::Files& own) {
    HttpsClient client(number, own);
    REQUIRE(client.connected());
    return client.Get("/metrics").starts_with("HTTP/1.1 200 ") &&
           client.Get("/api/jobs").ends_with("\r\n\r\njobs");
  };
  const auto told = [this](const tls::Files& own, const std::string& why) {
    HttpsClient client(number, own);
    REQUIRE(client.connected());
    for (const char* path : {"/", "/metrics", "/api/jobs", "/nowhere", "/healthz/../metrics"}) {
      const std::string answer = client.Get(path);
      CAPTURE(path, answer);
      CHECK(answer.starts_with("HTTP/1.1 403 "));
      CHECK(answer.find(why) != std::string::npos);
      CHECK(answer.find("muster certs issue --viewer NAME") != std::string::npos);
      CHECK(answer.find("jobs\r\n") == std::string::npos);
    }
  };

  CHECK(sees(Viewer()));
  CHECK(sees(folder.Issue("ana", {.role = Role::kSubmitter, .names = {"ana"}})));
  CHECK(sees(folder.Issue("prometheus", {.role = Role::kNode, .names = {"worker:7"}})));

  told({}, "it shows no certificate");
  told(other.Issue("eve", {.role = Role::kViewer, .names = {"eve"}}),
       "an authority that is not in this process's tls-ca");
  told(folder.Issue("old", {.role = Role::kViewer, .names = {"old"}}, {},
                    Certificates::FromTo(std::chrono::minutes(-60), std::chrono::minutes(-1))),
       "has expired at");
  told(folder.Issue("new", {.role = Role::kViewer, .names = {"new"}}, {},
                    Certificates::FromTo(std::chrono::minutes(10), std::chrono::minutes(20))),
       "is not valid before");
}

TEST_CASE_METHOD(TlsPort,
                 "a kubelet, which has no certificate, hears whether the daemon is healthy",
                 "[admin][tls]") {
  Start();
  port->Turned();
  port->SetReady(true);
  port->SetStatus("attached");
  HttpsClient kubelet(number);

  CHECK(kubelet.Get("/healthz").starts_with("HTTP/1.1 200 "));
  CHECK(kubelet.Get("/readyz").ends_with("\r\n\r\nattached\n"));
}

TEST_CASE_METHOD(TlsPort, "who is revoked sees nothing more, on a connection that stands either",
                 "[admin][tls]") {
  const tls::Files bob = Viewer();
  folder.Write("allowed", folder.LineOf("node") + folder.LineOf("bob"));
  files.allowed = folder.path("allowed");
  Start();
  HttpsClient client(number, bob);
  REQUIRE(client.Get("/api/jobs").ends_with("jobs"));

  folder.Write("allowed", folder.LineOf("node"));

  const std::string answer = client.Get("/api/jobs");
  CHECK(answer.starts_with("HTTP/1.1 403 "));
  CHECK(answer.find("it has been revoked, or its line is missing") != std::string::npos);
}

TEST_CASE_METHOD(TlsPort, "whose certificate ends sees nothing more on a connection that stands",
                 "[admin][tls]") {
  Start();
  const auto now = std::chrono::system_clock::now();
  const tls::Files bob =
      folder.Issue("bob", {.role = Role::kViewer, .names = {"bob"}}, {},
                   {.from = now - std::chrono::minutes(5), .until = now + std::chrono::seconds(5)});
  HttpsClient client(number, bob);
  REQUIRE(client.Get("/api/jobs").ends_with("jobs"));

  std::string answer;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!answer.starts_with("HTTP/1.1 403 ") && std::chrono::steady_clock::now() < limit) {
    answer = client.Get("/api/jobs");
  }
  CHECK(answer.starts_with("HTTP/1.1 403 "));
  CHECK(answer.find("has expired at") != std::string::npos);
  CHECK(client.Get("/healthz").starts_with("HTTP/1.1 503 "));  // as without one
}

TEST_CASE_METHOD(TlsPort, "TLS 1.3 alone is spoken, and no ticket stands for a certificate",
                 "[admin][tls]") {
  Start();

  CHECK_FALSE(HttpsClient(number, Viewer(), TLS1_2_VERSION).connected());
  HttpsClient client(number, Viewer());
  REQUIRE(client.connected());
  CHECK(client.Get("/api/jobs").ends_with("jobs"));
  CHECK_FALSE(client.has_ticket());
}

TEST_CASE_METHOD(TlsPort, "a large answer comes whole", "[admin][tls]") {
  Start();
  HttpsClient client(number, Viewer());

  const std::string answer = client.Get("/large");

  CHECK(answer.size() > 3'000'000);
  CHECK(answer.ends_with("xx."));
}

TEST_CASE_METHOD(TlsPort, "the port shows a new certificate once there is one", "[admin][tls]") {
  Start();
  const std::string before = HttpsClient(number).fingerprint();
  REQUIRE_FALSE(before.empty());

  folder.Issue("node", {.role = Role::kNode, .names = {"worker:1"}});

  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (HttpsClient(number).fingerprint() == before && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  CHECK(HttpsClient(number).fingerprint() != before);
}

TEST_CASE_METHOD(TlsPort, "who speaks plain HTTP to it is told so, and garbage is cut off",
                 "[admin][tls]") {
  Start();

  const std::string answer = Get(number, "/metrics");
  CHECK(answer.starts_with("HTTP/1.1 400 "));
  CHECK(answer.ends_with("this port speaks HTTPS: ask for https://\n"));
  CHECK(answer.find("muster_") == std::string::npos);

  for (const std::string& bytes :
       {std::string(100'000, '\x7f'), std::string(100'000, '\x16'), std::string(3, '\0'),
        std::string("\x16\x03\x01\xff\xff") + std::string(70'000, 'x')}) {
    HttpClient client(number);
    client.Send(bytes);
    client.EndWrites();
    CHECK(client.Answer().find("HTTP/1.1 2") == std::string::npos);
  }
  CHECK(HttpsClient(number, Viewer()).Get("/api/jobs").ends_with("jobs"));
}

TEST_CASE_METHOD(TlsPort,
                 "who begins a handshake and does not end it is closed, however it trickles",
                 "[admin][tls]") {
  Start({.read_limit = Millis(300)});
  HttpClient silent(number);
  HttpClient slow(number);

  // A record that would be 512 bytes long, a byte at a time.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  slow.Send("\x16\x03\x01\x02");
  while (slow.Send(std::string(1, '\0')) && !slow.Closed(std::chrono::milliseconds(50)) &&
         std::chrono::steady_clock::now() < limit) {
  }

  CHECK(std::chrono::steady_clock::now() < limit);
  CHECK(silent.Closed());
}

TEST_CASE_METHOD(TlsPort, "a thousand handshakes that are not ended keep nobody out",
                 "[admin][tls]") {
  Start({.most_connections = 8, .read_limit = Millis(600'000)});
  std::list<HttpClient> silent;
  for (int i = 0; i < 900; ++i) silent.emplace_back(number).Send("\x16\x03\x01");

  CHECK(HttpsClient(number, Viewer()).Get("/api/jobs").ends_with("jobs"));
  CHECK(silent.front().Closed());
}

TEST_CASE_METHOD(TlsPort, "a port ends in the midst of handshakes and of requests",
                 "[admin][tls]") {
  Start();
  HttpClient shaking(number);
  shaking.Send("\x16\x03\x01");
  HttpsClient idle(number, Viewer());
  REQUIRE(idle.connected());

  port->Close();

  CHECK(shaking.Closed());
  CHECK(idle.Get("/healthz").empty());
}

}  // namespace
}  // namespace muster::services
