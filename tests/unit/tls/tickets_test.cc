// Who comes back: by a ticket, in less time, and never when its certificate would be refused.
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/tls/session.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"
#include "tests/unit/tls/sessions.h"

namespace muster::tls {
namespace {

using namespace std::chrono_literals;
using testing::Certificates;
using testing::Says;

const Holder kPs{.role = Role::kNode, .names = {"ps:1"}};
const Holder kComer{.role = Role::kNode, .names = {"worker:0"}};

struct Visit {
  Status client = Ok();
  Status server = Ok();
  bool resumed = false;
  std::string server_saw;
  std::string client_saw;
  Session::Binding binding{};

  bool let_in() const { return client.ok() && server.ok(); }
};

// Connects, says one byte each way, and leaves, with a word of goodbye or without.
Visit Come(Session& client, Session& server) {
  Visit visit;
  bool done[2] = {false, false};
  for (int i = 0; i < 10; ++i) {
    if (visit.client.ok() && !done[0]) {
      const auto step = client.Handshake();
      visit.client = step.status();
      done[0] = step.ok() && *step;
    }
    Carry(client, server);
    if (visit.server.ok() && !done[1]) {
      const auto step = server.Handshake();
      visit.server = step.status();
      done[1] = step.ok() && *step;
    }
    Carry(server, client);
  }
  std::byte byte{7};
  if (visit.server.ok()) REQUIRE(server.Write({&byte, 1}).ok());
  Carry(server, client);
  std::byte got{};
  // Also what brings the ticket, or the refusal.
  if (done[0]) visit.client = client.Read({&got, 1}).status();
  if (!visit.let_in()) return visit;
  CHECK(got == byte);
  REQUIRE(client.resumed() == server.resumed());
  REQUIRE(client.binding().value() == server.binding().value());
  visit.resumed = client.resumed();
  visit.client_saw = client.peer().holder.ToString();
  visit.server_saw = server.peer().holder.ToString();
  visit.binding = client.binding().value();
  return visit;
}

Visit Come(Context& client, Context& server, const std::string& task = "ps:1") {
  const auto a = client.ConnectAgain(task);
  const auto b = server.Accept();
  REQUIRE(a.status() == Ok());
  REQUIRE(b.status() == Ok());
  return Come(**a, **b);
}

template <typename Met>
bool Until(const Met& met) {
  const auto limit = std::chrono::steady_clock::now() + 30s;
  while (!met()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("who comes back resumes, again and again, and is known as before",
          "[tls][tickets][unit]") {
  Certificates folder;
  const auto worker = ContextOf(folder.Issue("worker", kComer));
  const auto ps = ContextOf(folder.Issue("ps", kPs));

  const Visit first = Come(*worker, *ps);
  const Visit second = Come(*worker, *ps);
  const Visit third = Come(*worker, *ps);

  REQUIRE(first.let_in());
  CHECK_FALSE(first.resumed);
  for (const Visit* again : {&second, &third}) {
    REQUIRE(again->let_in());
    CHECK(again->resumed);
    CHECK(again->client_saw == "node ps:1");
    CHECK(again->server_saw == "node worker:0");
    // What proofs are bound to is of one connection alone.
    CHECK(again->binding != first.binding);
  }
  CHECK(second.binding != third.binding);
}

TEST_CASE("a ticket is good where it was given, and nowhere else", "[tls][tickets][unit]") {
  Certificates folder;
  const auto worker = ContextOf(folder.Issue("worker", kComer));
  const Files files = folder.Issue("ps", {.role = Role::kNode, .names = {"ps:1", "ps:2"}});
  const auto ps = ContextOf(files);
  REQUIRE(Come(*worker, *ps).let_in());

  SECTION("not for another task") {
    const Visit other = Come(*worker, *ps, "ps:2");
    CHECK(other.let_in());
    CHECK_FALSE(other.resumed);
    CHECK(Come(*worker, *ps, "ps:2").resumed);
  }
  SECTION("not in a process that was started again") {
    const auto again = ContextOf(files);
    const Visit other = Come(*worker, *again);
    CHECK(other.let_in());
    CHECK_FALSE(other.resumed);
    CHECK(Come(*worker, *again).resumed);
  }
  SECTION("not for two connections") {
    const auto a = worker->ConnectAgain("ps:1");
    const auto b = worker->ConnectAgain("ps:1");
    const auto c = ps->Accept();
    const auto d = ps->Accept();
    CHECK(Come(**a, **c).resumed);
    const Visit other = Come(**b, **d);
    CHECK(other.let_in());
    CHECK_FALSE(other.resumed);
  }
  SECTION("not for who connects anew, or asks for no task") {
    const auto a = worker->Connect("ps:1");
    const auto b = ps->Accept();
    CHECK_FALSE(Come(**a, **b).resumed);
    CHECK_FALSE(Come(*worker, *ps, "").resumed);
    CHECK_FALSE(Come(*worker, *ps, "").resumed);
  }
}

TEST_CASE("a peer that was revoked since does not come in by its ticket", "[tls][tickets][unit]") {
  Certificates folder;
  Files worker_files = folder.Issue("worker", kComer);
  Files ps_files = folder.Issue("ps", kPs);
  const std::string both = folder.LineOf("ps") + folder.LineOf("worker");

  SECTION("the client") {
    folder.Write("allowed", both);
    ps_files.allowed = folder.path("allowed");
    const auto worker = ContextOf(worker_files);
    const auto ps = ContextOf(ps_files);
    REQUIRE(Come(*worker, *ps).let_in());
    REQUIRE(Come(*worker, *ps).resumed);

    folder.Write("allowed", folder.LineOf("ps"));
    const Visit refused = Come(*worker, *ps);
    folder.Write("allowed", both);
    const Visit again = Come(*worker, *ps);

    CHECK(Says(refused.server, "the certificate of node worker:0"));
    CHECK(Says(refused.server, "it has been revoked"));
    CHECK(Says(refused.client, "it refused this process's certificate: it has been revoked"));
    CHECK(again.let_in());
    CHECK_FALSE(again.resumed);
  }
  SECTION("the server") {
    folder.Write("allowed", both);
    worker_files.allowed = folder.path("allowed");
    const auto worker = ContextOf(worker_files);
    const auto ps = ContextOf(ps_files);
    REQUIRE(Come(*worker, *ps).let_in());
    REQUIRE(Come(*worker, *ps).resumed);

    folder.Write("allowed", folder.LineOf("worker"));
    const Visit refused = Come(*worker, *ps);

    CHECK(Says(refused.client, "the certificate of node ps:1"));
    CHECK(Says(refused.client, "it has been revoked"));
    CHECK_FALSE(refused.server.ok());
  }
}

// By its ticket first, at least once. Returns the visit that was refused.
Visit ComesUntilRefused(Context& worker, Context& ps) {
  int resumed = 0;
  Visit last;
  REQUIRE(Until([&] {
    last = Come(worker, ps);
    resumed += last.resumed ? 1 : 0;
    return !last.let_in();
  }));
  CHECK(resumed > 0);
  return last;
}

TEST_CASE("a peer whose certificate has expired since does not come in by its ticket",
          "[tls][tickets][unit]") {
  Certificates folder;
  const auto soon = std::chrono::system_clock::now() + 2s;
  const tls::Period short_one{soon - 60s, soon};

  SECTION("the client") {
    const auto worker = ContextOf(folder.Issue("worker", kComer, {}, short_one));
    const auto ps = ContextOf(folder.Issue("ps", kPs));
    REQUIRE(Come(*worker, *ps).let_in());
    const Visit last = ComesUntilRefused(*worker, *ps);

    CHECK(Says(last.server, "has expired at"));
    CHECK(Says(last.client, "expired, or not valid yet by its clock"));
  }
  SECTION("the server") {
    const auto worker = ContextOf(folder.Issue("worker", kComer));
    const auto ps = ContextOf(folder.Issue("ps", kPs, {}, short_one));
    REQUIRE(Come(*worker, *ps).let_in());
    const Visit last = ComesUntilRefused(*worker, *ps);

    CHECK(Says(last.client, "has expired at"));
  }
}

TEST_CASE("a peer of an authority that is trusted no more does not come in by its ticket",
          "[tls][tickets][unit]") {
  Certificates folder;
  const tls::Issued next = Certificates::NewAuthority();
  folder.Write("ca.pem", folder.authority().certificate + next.certificate);
  const auto worker = ContextOf(folder.Issue("worker", kComer));
  Certificates other;  // the server's own files
  other.Write("ca.pem", folder.authority().certificate + next.certificate);
  const auto ps = ContextOf(other.IssueBy(next, "ps", kPs));
  REQUIRE(Come(*worker, *ps).let_in());
  REQUIRE(Come(*worker, *ps).resumed);

  other.Write("ca.pem", next.certificate);
  Visit last;
  REQUIRE(Until([&] {
    last = Come(*worker, *ps);
    return !last.let_in();
  }));

  CHECK(Says(last.server, "an authority that is not in this process's tls-ca"));
  other.Write("ca.pem", folder.authority().certificate + next.certificate);
  REQUIRE(Until([&] { return Come(*worker, *ps).let_in(); }));
  CHECK(Come(*worker, *ps).resumed);
}

TEST_CASE("a server that has another certificate since shows it", "[tls][tickets][unit]") {
  Certificates folder;
  const auto worker = ContextOf(folder.Issue("worker", kComer));
  const auto ps = ContextOf(folder.Issue("ps", kPs));
  REQUIRE(Come(*worker, *ps).let_in());
  REQUIRE(Come(*worker, *ps).resumed);

  folder.Issue("ps", {.role = Role::kNode, .names = {"ps:1", "ps:2"}});

  Visit last;
  REQUIRE(Until([&] {
    last = Come(*worker, *ps);
    return last.client_saw == "node ps:1, ps:2";
  }));
  CHECK_FALSE(last.resumed);
}

TEST_CASE("a client keeps so many tickets, the newest ones", "[tls][tickets][unit]") {
  Certificates folder;
  Holder all{.role = Role::kNode, .names = {}};
  const std::size_t tasks = Tickets::kMost + 2;
  for (std::size_t i = 0; i < tasks; ++i) all.names.push_back(fmt::format("ps:{}", i));
  const auto worker = ContextOf(folder.Issue("worker", kComer));
  const auto ps = ContextOf(folder.Issue("ps", all));

  for (const std::string& task : all.names) REQUIRE(Come(*worker, *ps, task).let_in());

  CHECK(Come(*worker, *ps, all.names.back()).resumed);
  CHECK(Come(*worker, *ps, "ps:2").resumed);
  CHECK_FALSE(Come(*worker, *ps, "ps:0").resumed);
}

TEST_CASE("certificates that a ticket would be too large for are shown each time",
          "[tls][tickets][unit]") {
  Certificates folder;
  Holder many{.role = Role::kNode, .names = {}};
  for (int i = 0; i < 3000; ++i) many.names.push_back(fmt::format("worker:{}", i));
  const auto worker = ContextOf(folder.Issue("worker", many));
  const auto ps = ContextOf(folder.Issue("ps", kPs));

  CHECK(Come(*worker, *ps).let_in());
  const Visit again = Come(*worker, *ps);

  CHECK(again.let_in());
  CHECK_FALSE(again.resumed);
}

TEST_CASE("who comes by a key is given no ticket", "[tls][tickets][unit]") {
  Certificates folder;
  const auto ps = ContextOf(folder.Issue("ps", kPs));
  const auto program = Context::ForKeys();
  const auto come = [&](const std::string& key) {
    const auto a = program->Connect(NamedKey{.name = "job-1", .key = key});
    const auto b = ps->Accept([](std::string_view) { return std::optional<std::string>("key"); });
    return Come(**a, **b);
  };

  CHECK(come("key").let_in());
  CHECK_FALSE(come("key").resumed);
  CHECK_FALSE(come("no key").let_in());
}

}  // namespace muster::tls
