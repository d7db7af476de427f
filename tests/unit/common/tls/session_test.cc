#include "common/tls/session.h"

#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include <openssl/ssl.h>

#include "common/base/wall_time.h"
#include "common/tls/ssl_context.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/unit/common/tls/sessions.h"

namespace muster::tls {
namespace {

using namespace std::chrono_literals;
using testing::Certificates;
using testing::Says;

const Holder kServer{.role = Role::kNode, .names = {"ps:1"}};
const Holder kWorker{.role = Role::kNode, .names = {"worker:0"}};

struct Meeting {
  Status client = Ok();
  Status server = Ok();
};

// Until both are done, or one has refused and the other has heard of it.
Meeting Shake(Session& client, Session& server) {
  Meeting meeting;
  bool client_done = false;
  bool server_done = false;
  for (int i = 0; i < 10; ++i) {
    if (meeting.client.ok() && !client_done) {
      const auto step = client.Handshake();
      meeting.client = step.status();
      client_done = step.ok() && *step;
    }
    Carry(client, server);
    if (meeting.server.ok() && !server_done) {
      const auto step = server.Handshake();
      meeting.server = step.status();
      server_done = step.ok() && *step;
    }
    Carry(server, client);
  }
  // The client is done before the server has seen what it proves.
  std::byte byte{};
  if (client_done && !meeting.server.ok()) meeting.client = client.Read({&byte, 1}).status();
  return meeting;
}

// By certificates: what the client has against the server, and whom the server sees.
struct Visit {
  Status client = Ok();
  Result<Holder> visitor = Unknown("no handshake");
};

Visit Come(Context& client, Context& server, const std::string& task = "",
           const std::string& host = "") {
  const auto a = client.Connect(task, host);
  const auto b = server.Accept();
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  const Meeting meeting = Shake(**a, **b);
  Visit visit{.client = meeting.client};
  visit.visitor = meeting.server.ok() ? (*b)->Visitor() : meeting.server;
  return visit;
}

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("two nodes of one authority learn who the other is, and speak unreadably for others",
          "[tls][unit]") {
  Certificates folder;
  const auto worker = ContextOf(folder.Issue("worker", kWorker));
  const auto ps = ContextOf(folder.Issue("ps", kServer));
  const auto a = worker->Connect("ps:1");
  const auto b = ps->Accept();
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  const Meeting meeting = Shake(**a, **b);
  REQUIRE(meeting.client == Ok());
  REQUIRE(meeting.server == Ok());

  const std::string secret = "the parameters of a model";
  REQUIRE((*a)->Write(std::as_bytes(std::span(secret))).value() == secret.size());
  const auto sent = (*a)->Waiting();
  CHECK(Text(sent).find("parameters") == std::string::npos);
  Carry(**a, **b);
  std::vector<std::byte> got(100);
  got.resize((*b)->Read(got).value());

  CHECK(Text(got) == secret);
  REQUIRE((*b)->Visitor().ok());
  CHECK((*b)->Visitor()->ToString() == "node worker:0");
  CHECK((*a)->binding().value() == (*b)->binding().value());
}

TEST_CASE("a changed byte ends the connection instead of arriving", "[tls][unit]") {
  const auto keys = KeyContext::Make();
  const auto a = keys->Connect({.name = "job-1", .key = "key"});
  const auto b = keys->Accept([](std::string_view) { return "key"; });
  REQUIRE(Shake(**a, **b).server == Ok());
  const std::vector<std::byte> words(100, std::byte{1});
  REQUIRE((*a)->Write(words).ok());
  const auto sent = (*a)->Waiting();
  std::vector<std::byte> changed(sent.begin(), sent.end());
  changed[50] ^= std::byte{1};

  std::memcpy((*b)->Room().data(), changed.data(), changed.size());
  (*b)->Came(changed.size());

  std::vector<std::byte> got(100);
  CHECK((*b)->Read(got).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("whom a node does not trust it refuses", "[tls][unit]") {
  Certificates folder;
  const auto ps = ContextOf(folder.Issue("ps", kServer));
  const auto worker = ContextOf(folder.Issue("worker", kWorker));

  SECTION("a server of a foreign authority, which hears why") {
    Certificates foreign;
    const Visit visit = Come(*worker, *ContextOf(foreign.Issue("ps", kServer)));
    CHECK(visit.client.code() == StatusCode::kUnauthenticated);
    CHECK(Says(visit.client, "an authority that is not in this process's tls-ca"));
    CHECK(Says(visit.visitor.status(), "its tls-ca does not have the authority that issued it"));
  }
  SECTION("a visitor of a foreign authority") {
    Certificates both;  // trusts the cluster's authority, and has a certificate of its own
    both.Write("ca.pem", both.authority().certificate + folder.authority().certificate);
    const Visit visit = Come(*ContextOf(both.Issue("worker", kWorker)), *ps);
    CHECK(visit.visitor.status().code() == StatusCode::kUnauthenticated);
    CHECK(Says(visit.visitor.status(), "an authority that is not in this process's tls-ca"));
  }
  SECTION("another task than the one that is wanted") {
    const Visit visit = Come(*worker, *ps, "ps:0");
    CHECK(visit.client.code() == StatusCode::kPermissionDenied);
    CHECK(Says(visit.client, "it should be ps:0, and shows the certificate of node ps:1"));
  }
  SECTION("a certificate for another host than the one that is wanted") {
    CHECK(Come(*worker, *ps, "ps:1", "127.0.0.1").client == Ok());
    const Visit visit = Come(*worker, *ps, "ps:1", "node-4");
    CHECK(visit.client.code() == StatusCode::kPermissionDenied);
    CHECK(Says(visit.client,
               "node-4 shows a certificate of CN = node ps:1 for other hosts "
               "(127.0.0.1, localhost): connect by one of those, or issue one"));
  }
  SECTION("a person's certificate where a server should be") {
    const auto ana = ContextOf(folder.Issue("ana", {.role = Role::kSubmitter, .names = {"ana"}}));
    CHECK_FALSE(Come(*worker, *ana).client.ok());
  }
  SECTION("a certificate where a key should be, and the other way round") {
    const auto keys = KeyContext::Make();
    const auto a = worker->Connect();
    const auto b = keys->Accept([](std::string_view) { return "key"; });
    CHECK(Says(Shake(**a, **b).client, "takes none of the ways that this process offers"));
    const auto c = keys->Connect({.name = "job-1", .key = "key"});
    const auto d = ps->Accept();
    CHECK_FALSE(Shake(**c, **d).client.ok());
  }
  SECTION("plain text") {
    const auto b = ps->Accept();
    const std::string hello = "MSTR, and what a frame says: hello";
    std::memcpy((*b)->Room().data(), hello.data(), hello.size());
    (*b)->Came(hello.size());
    CHECK(Says((*b)->Handshake().status(), "it speaks plain text where TLS is needed"));
  }
}

TEST_CASE("a peer's certificate that has expired since is refused by its dates", "[tls][unit]") {
  Certificates folder;
  // Read while it was good: the process has been running since.
  const auto soon = std::chrono::system_clock::now() + 2s;
  const Period short_one{soon - 60s, soon};
  const auto limit = std::chrono::steady_clock::now() + 30s;
  const auto until_refused = [&](Context& client, Context& server) {
    Visit visit = Come(client, server);
    while (visit.client.ok() && visit.visitor.ok() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
      visit = Come(client, server);
    }
    return visit;
  };

  SECTION("the visitor's") {
    const auto worker = ContextOf(folder.Issue("worker", kWorker, {}, short_one));
    const auto ps = ContextOf(folder.Issue("ps", kServer));
    CHECK(Says(until_refused(*worker, *ps).visitor.status(), "has expired at"));
  }
  SECTION("the server's, which hears of it") {
    const auto worker = ContextOf(folder.Issue("worker", kWorker));
    const auto ps = ContextOf(folder.Issue("ps", kServer, {}, short_one));
    const Visit visit = until_refused(*worker, *ps);
    CHECK(Says(visit.client, "has expired at"));
    CHECK(Says(visit.visitor.status(), "expired, or not valid yet by its clock"));
  }
}

TEST_CASE("no context gives tickets, whoever has made it", "[tls][unit]") {
  REQUIRE(RequireTls13().ok());
  // As gRPC makes its own.
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> theirs(SSL_CTX_new(TLS_method()),
                                                                 &SSL_CTX_free);
  CHECK(SSL_CTX_get_num_tickets(theirs.get()) == 0);
  CHECK(SSL_CTX_get_num_tickets(MakeSslContext()->get()) == 0);
}

TEST_CASE("two that know one secret need no certificates", "[tls][unit]") {
  const auto client = KeyContext::Make();
  const auto server = KeyContext::Make();
  const auto meet = [&](const std::string& name, const std::string& key) {
    const auto a = client->Connect({.name = name, .key = key});
    const auto b = server->Accept([](std::string_view named) -> std::optional<std::string> {
      if (named != "job-1") return std::nullopt;
      return "a job's key";
    });
    REQUIRE(a.ok());
    REQUIRE(b.ok());
    return Shake(**a, **b);
  };

  CHECK(meet("job-1", "a job's key").server == Ok());
  CHECK(meet("job-1", "a job's key").client == Ok());
  CHECK(Says(meet("job-1", "another job's key").server, "it does not have the key that it names"));
  CHECK(Says(meet("job-1", "another job's key").client, "it is of another cluster or job"));
  CHECK_FALSE(meet("job-2", "a job's key").server.ok());
  CHECK_FALSE(meet("job-2", "a job's key").client.ok());
}

TEST_CASE("a certificate that ends soon is told of, once, and no more when another is in its place",
          "[tls][unit]") {
  using std::chrono::minutes;
  Certificates folder;
  std::vector<std::string> warnings;
  const auto open = [&](const Files& files) {
    return Context::FromFiles(files, [&](const std::string& line) { warnings.push_back(line); });
  };
  // A fifth of its time is 12 minutes.
  const Period soon = Certificates::FromTo(minutes(-50), minutes(10));
  const Files files = folder.Issue("ps", kServer, {"127.0.0.1"}, soon);

  const auto context = open(files);

  REQUIRE(context.ok());
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("ps.pem ends at " + UtcText(soon.until)) != std::string::npos);
  CHECK((*context)->Ends() == std::chrono::floor<std::chrono::seconds>(soon.until));
  const Period later = Certificates::FromTo(minutes(-5), minutes(60));
  folder.Issue("ps", kServer, {"127.0.0.1"}, later);
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while ((*context)->Ends() < std::chrono::floor<std::chrono::seconds>(later.until)) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::yield();
  }
  REQUIRE(open(files).ok());
  CHECK(warnings.size() == 1);
}

TEST_CASE("certificates and authorities are read anew when their files change", "[tls][unit]") {
  Certificates folder;
  std::vector<std::string> warnings;
  const Files files = folder.Issue("ps", kServer);
  auto context =
      Context::FromFiles(files, [&](const std::string& line) { warnings.push_back(line); });
  REQUIRE(context.ok());
  const auto worker = ContextOf(folder.Issue("worker", kWorker));
  const auto limit = std::chrono::steady_clock::now() + 30s;
  const auto until = [&](const auto& met) {
    while (!met() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    return met();
  };

  SECTION("another certificate") {
    folder.Issue("ps", {.role = Role::kNode, .names = {"ps:2"}});
    CHECK(until([&] { return Come(*worker, **context, "ps:2").client.ok(); }));
  }
  SECTION("an authority is taken away: who is of it is let in no more") {
    const tls::Issued next = Certificates::NewAuthority();
    folder.Write("ca.pem", folder.authority().certificate + next.certificate);
    folder.IssueBy(next, "ps", kServer);
    REQUIRE(until([&] { return Come(*worker, **context).client.ok(); }));
    CHECK(Come(*worker, **context).visitor.ok());
    folder.Write("ca.pem", next.certificate);
    CHECK(until([&] { return !Come(*worker, **context).visitor.ok(); }));
  }
  SECTION("files of no use leave the old ones in use, and are told of once") {
    folder.Write("ps.pem", "garbage");
    REQUIRE(until([&] {
      CHECK(Come(*worker, **context).client.ok());
      return !warnings.empty();
    }));
    CHECK(Come(*worker, **context).client.ok());
    CHECK(warnings.size() == 1);
    CHECK(warnings[0].find("those from before stay in use") != std::string::npos);
  }
  SECTION("a key that others could read is taken once they cannot, though its file is the same") {
    folder.Issue("ps", {.role = Role::kNode, .names = {"ps:2"}});
    const auto mode = [&](std::filesystem::perms others) {
      std::filesystem::permissions(files.key, std::filesystem::perms::owner_read | others);
    };
    mode(std::filesystem::perms::others_read);
    REQUIRE(until([&] {
      CHECK(Come(*worker, **context, "ps:1").client.ok());
      return !warnings.empty();
    }));
    CHECK(warnings[0].find("only this process's user") != std::string::npos);

    mode(std::filesystem::perms::none);

    CHECK(until([&] { return Come(*worker, **context, "ps:2").client.ok(); }));
    CHECK(warnings.size() == 1);
  }
  SECTION("a certificate that is not valid yet is taken when it is, and told of once") {
    const auto now = std::chrono::system_clock::now();
    folder.Issue("ps", {.role = Role::kNode, .names = {"ps:2"}}, {"127.0.0.1"},
                 {now + 3s, now + 1h});
    REQUIRE(until([&] {
      CHECK(Come(*worker, **context, "ps:1").client.ok());
      return !warnings.empty();
    }));
    CHECK(warnings[0].find("is not valid before") != std::string::npos);

    CHECK(until([&] { return Come(*worker, **context, "ps:2").client.ok(); }));
    CHECK(warnings.size() == 1);
  }
}

}  // namespace muster::tls
