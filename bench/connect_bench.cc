// `muster-bench connect`: what it takes to connect anew, in the clear and behind TLS, and how much
// of that a ticket saves.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <stdlib.h>

#include "bench/measure.h"
#include "bench/subcommands.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"
#include "common/tls/authority.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::system_clock;

constexpr const char* kConnectMethod =
    "One thread connects, greets and leaves, another one of the same process is the server, on "
    "loopback: from connect() to the server's welcome, three messages of the handshake included. "
    "tcp: in the clear. key: TLS by a job's key. certificates: TLS, both sides show theirs (EC "
    "P-256, one authority). ticket: the same two, by the ticket of the connection before. Each "
    "runs for a window of time in each of 5 rounds, all taking turns; a round's figure is its "
    "median; printed are median, least and most of the rounds. ratio: over certificates.";

// A folder with an authority and the certificates of two nodes; goes with the object.
class Folder {
 public:
  static Result<std::unique_ptr<Folder>> Make() {
    std::unique_ptr<Folder> made(new Folder);
    made->path_ = (std::filesystem::temp_directory_path() / "muster-bench-XXXXXX").string();
    if (::mkdtemp(made->path_.data()) == nullptr) return FromErrno(errno, "make " + made->path_);
    const auto now = system_clock::now();
    const tls::Period period{now - std::chrono::minutes(1), now + std::chrono::hours(1)};
    MUSTER_TRY_ASSIGN(made->authority_, tls::MakeAuthority("muster-bench", period));
    made->Write("ca.pem", made->authority_.certificate);
    MUSTER_TRY_ASSIGN(made->server_, made->Issue("ps:0", period));
    MUSTER_TRY_ASSIGN(made->client_, made->Issue("worker:0", period));
    return made;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const tls::Files& server() const { return server_; }
  const tls::Files& client() const { return client_; }

 private:
  Folder() = default;
  void Write(const std::string& name, const std::string& text) const {
    const std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
  }
  Result<tls::Files> Issue(const std::string& task, const tls::Period& period) {
    const tls::Holder holder{.role = tls::Role::kNode, .names = {task}};
    MUSTER_TRY_ASSIGN(const tls::Issued issued,
                      tls::Issue(authority_, {.holder = holder, .period = period}));
    Write(task + ".pem", issued.certificate);
    Write(task + ".key", issued.key);
    return tls::Files{.ca = path_ + "/ca.pem",
                      .certificate = path_ + "/" + task + ".pem",
                      .key = path_ + "/" + task + ".key"};
  }

  std::string path_;
  tls::Issued authority_;
  tls::Files server_;
  tls::Files client_;
};

// Servers of one thread, one for each kind of connection: each welcomes who comes, until the
// client leaves.
class Servers {
 public:
  static Result<std::unique_ptr<Servers>> Start(std::vector<net::Identity> identities) {
    std::unique_ptr<Servers> made(new Servers);
    for (std::size_t i = 0; i < identities.size(); ++i) {
      MUSTER_TRY_ASSIGN(net::Listener one, net::ListenTcp("127.0.0.1:0"));
      made->listeners_.push_back(std::move(one));
    }
    made->thread_ = std::jthread(
        [one = made.get(), identities = std::move(identities)](const std::stop_token& stop) {
          while (!stop.stop_requested()) one->WelcomeOne(identities);
        });
    return made;
  }

  const std::string& address(std::size_t i) const { return listeners_[i].address; }

 private:
  Servers() = default;
  void WelcomeOne(const std::vector<net::Identity>& identities) {
    auto accepted = net::Accept(listeners_, -1, Millis(100));
    if (!accepted.ok() || !accepted->fd.valid()) return;
    net::Channel channel(std::move(accepted->fd), net::LinkKind::kTcp, accepted->peer,
                         net::SpinMode::kOff, nullptr);
    const auto welcomed =
        net::WelcomeClient(channel, identities[accepted->listener], channel.After(Millis(5'000)),
                           [](const net::Hello&) { return Ok(); });
    // Its goodbye.
    if (welcomed.ok()) (void)channel.ReadFrame(channel.After(Millis(5'000)));
  }

  std::vector<net::Listener> listeners_;
  std::jthread thread_;
};

Status ConnectOnce(const std::string& address, const net::Identity& self, bool wants_ticket) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  MUSTER_TRY_ASSIGN(net::Fd fd, net::ConnectTcp(address, deadline));
  net::Channel channel(std::move(fd), net::LinkKind::kTcp, address, net::SpinMode::kOff, nullptr);
  MUSTER_TRY(net::GreetServer(channel, self, "bench", net::Subject{}, deadline));
  net::Stream* const stream = channel.link().stream();
  if (stream->encrypted() && wants_ticket != stream->session().resumed()) {
    return Internal("{} by a ticket", wants_ticket ? "not let in" : "let in");
  }
  return Ok();
}

Result<Json> MeasureConnect(std::chrono::milliseconds window) {
  MUSTER_TRY_ASSIGN(const auto folder, Folder::Make());
  MUSTER_TRY_ASSIGN(const auto server_tls, tls::Context::FromFiles(folder->server()));
  MUSTER_TRY_ASSIGN(const auto client_tls, tls::Context::FromFiles(folder->client()));
  const auto keys = tls::Context::ForKeys();
  const std::string token = "a benchmark's token";
  MUSTER_TRY_ASSIGN(const auto servers, Servers::Start({{.token = token},
                                                        {.token = token, .tls = keys},
                                                        {.token = token, .tls = server_tls}}));
  struct Kind {
    std::string name;
    std::size_t server;
    net::Identity self;
    bool by_ticket = false;
  };
  const std::array kinds = {
      Kind{"tcp", 0, {.token = token}}, Kind{"key", 1, {.token = token, .tls = keys}},
      // Who asks for no task is given no ticket.
      Kind{"certificates", 2, {.token = token, .tls = client_tls}},
      Kind{"ticket", 2, {.token = token, .tls = client_tls, .server_task = "ps:0"}, true}};
  MUSTER_TRY(ConnectOnce(servers->address(2), kinds[3].self, false));
  Measurements all;
  for (const Kind& kind : kinds) {
    all.Add(kind.name, [&servers, &kind] {
      return ConnectOnce(servers->address(kind.server), kind.self, kind.by_ticket);
    });
  }
  MUSTER_TRY(all.Run(window));

  Json figures = Json::array();
  const double whole = all.Seconds("certificates").median;
  for (const Kind& kind : kinds) {
    const Spread seconds = all.Seconds(kind.name);
    figures.push_back({{"connect", kind.name},
                       {"us", seconds.median * 1e6},
                       {"least_us", seconds.least * 1e6},
                       {"most_us", seconds.most * 1e6},
                       {"ratio", seconds.median / whole}});
  }
  return Json{{"benchmark", "connect"},
              {"cores", std::thread::hardware_concurrency()},
              {"rounds", kRounds},
              {"window_ms", window.count()},
              {"figures", std::move(figures)},
              {"method", kConnectMethod}};
}

}  // namespace

int RunConnect(int argc, char** argv) {
  int window_ms = 200;
  CLI::App app("Connections: in the clear, by keys, by certificates, by tickets");
  app.add_option("--window-ms", window_ms, "time for one kind in one round")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 64;
  }
  const Result<Json> result = MeasureConnect(std::chrono::milliseconds(window_ms));
  if (!result.ok()) {
    std::fprintf(stderr, "muster-bench: %s\n", ToString(result.status()).c_str());
    return 1;
  }
  std::printf("%s\n", result->dump(2).c_str());
  return 0;
}

}  // namespace muster::bench
