// `muster-bench connect`: what it takes to connect anew, in the clear and behind TLS.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "bench/subcommands.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConnectMethod =
    "One thread connects, greets and leaves, another one of the same process is the server, on "
    "loopback: from connect() to the server's welcome, three messages of the handshake included. "
    "tcp: in the clear. key: TLS by a job's key. Each runs for a window of time in each of 5 "
    "rounds, both taking turns; a round's figure is its median; printed are median, least and most "
    "of the rounds. ratio: over tcp.";

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

Status ConnectOnce(const std::string& address, const net::Identity& self) {
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  MUSTER_TRY_ASSIGN(net::Fd fd, net::ConnectTcp(address, deadline));
  net::Channel channel(std::move(fd), net::LinkKind::kTcp, address, net::SpinMode::kOff, nullptr);
  MUSTER_TRY(net::GreetServer(channel, self, "bench", net::Subject{}, deadline));
  const bool encrypted = channel.link().stream()->encrypted();
  if (encrypted != (self.tls != nullptr)) return Internal("TLS is on: {}", encrypted);
  return Ok();
}

Result<Json> MeasureConnect(std::chrono::milliseconds window) {
  const std::string token = "a benchmark's token";
  struct Kind {
    std::string name;
    net::Identity self;
  };
  const std::array kinds = {Kind{"tcp", {.token = token}},
                            Kind{"key", {.token = token, .tls = tls::KeyContext::Make()}}};
  MUSTER_TRY_ASSIGN(const auto servers, Servers::Start({kinds[0].self, kinds[1].self}));
  Measurements all;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    all.Add(kinds[i].name,
            [&servers, &kinds, i] { return ConnectOnce(servers->address(i), kinds[i].self); });
  }
  MUSTER_TRY(all.Run(window));

  Json figures = Json::array();
  const double in_the_clear = all.Seconds("tcp").median;
  for (const Kind& kind : kinds) {
    const Spread seconds = all.Seconds(kind.name);
    figures.push_back({{"connect", kind.name},
                       {"us", seconds.median * 1e6},
                       {"least_us", seconds.least * 1e6},
                       {"most_us", seconds.most * 1e6},
                       {"ratio", seconds.median / in_the_clear}});
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
  CLI::App app("Connections: in the clear, and by keys");
  app.add_option("--window-ms", window_ms, "time for one kind in one round")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
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
