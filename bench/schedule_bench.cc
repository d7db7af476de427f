// `muster-bench schedule`: what closures cost between a driver and executors in other processes,
// beside a bare ping-pong over a Unix socket in the same run.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/core/closure_dispatcher.h"
#include "dispatch/driver.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/schedule_api.h"
#include "bench/schedule_bytes.h"
#include "bench/schedule_peer.h"
#include "bench/subcommands.h"
#include "common/process/child.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr const char* kScheduleMethod =
    "The driver in this process, executors in others, one host. throughput: empty closures whose "
    "futures are dropped at once, schedule of all and one join; all kinds take turns with the bare "
    "ping-pong, printed "
    "are "
    "median, least and most of the rounds. latency: one schedule and fetch at a time, the median "
    "of a "
    "round; blocking: nobody spins; spinning: driver and executor look for 50 us before they "
    "block. "
    "api: the same by ClusterCoordinator in a program that is submitted to a cluster of daemons, a "
    "job a round; spinning is what it is by default, adaptive. "
    "ping_pong: 64 bytes there and back between two processes over a Unix socket pair, blocking or "
    "spinning in the same way. cpu: processor time of driver and executors per closure, from the "
    "kernel. dispatcher_alone: schedule, hand-out and result in one thread without links. memory: "
    "resident bytes that 262,144 queued closures add. bytes: one closure at a time with an "
    "argument, or with a value, of that length, beside memcpy between two warm buffers and the "
    "same bytes over a bare TCP socket, 1 MiB an operation.";

constexpr std::size_t kQueued = 262'144;
constexpr int kLatencySamples = 1'000;
constexpr int kPingPongs = 2'000;

struct ScheduleOptions {
  int rounds = 5;
  int closures = 200'000;
};

Json Print(const std::vector<double>& values, double scale = 1) {
  const Spread spread = SpreadOf(values);
  return {{"median", spread.median * scale},
          {"least", spread.least * scale},
          {"most", spread.most * scale}};
}

// The other side of the ping-pong, and ours; its thread of control ends with the socket.
class PingPong {
 public:
  static Result<std::unique_ptr<PingPong>> Start() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return FromErrno(errno, "socketpair");
    }
    const pid_t pid = ::fork();
    if (pid < 0) return FromErrno(errno, "fork");
    if (pid == 0) {
      ::close(ends[0]);
      Echo(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    return std::unique_ptr<PingPong>(new PingPong(net::Fd(ends[0])));
  }

  // Seconds of one round trip, the median.
  double Measure(bool spin) {
    std::vector<double> seconds;
    std::array<char, 64> message{};
    message[0] = spin ? 's' : 'b';
    for (int i = 0; i < kPingPongs; ++i) {
      const TimePoint start = SteadyClock::now();
      (void)!::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
      if (!ReadAll(fd_.get(), message, spin)) break;
      seconds.push_back(SecondsSince(start));
    }
    return SpreadOf(std::move(seconds)).median;
  }

 private:
  explicit PingPong(net::Fd fd) : fd_(std::move(fd)) {}

  static bool ReadAll(int fd, std::array<char, 64>& message, bool spin) {
    for (std::size_t got = 0; got < message.size();) {
      const TimePoint start = SteadyClock::now();
      ssize_t n = -1;
      while (spin && n < 0 && SteadyClock::now() - start < net::Spinner::kWindow) {
        n = ::recv(fd, message.data() + got, message.size() - got, MSG_DONTWAIT);
      }
      if (n < 0) n = ::recv(fd, message.data() + got, message.size() - got, 0);
      if (n <= 0) return false;
      got += static_cast<std::size_t>(n);
    }
    return true;
  }
  static void Echo(int fd) {
    std::array<char, 64> message{};
    while (ReadAll(fd, message, message[0] == 's')) {
      (void)!::send(fd, message.data(), message.size(), MSG_NOSIGNAL);
    }
  }

  net::Fd fd_;
};

Status ConnectAll(dispatch::Driver& driver,
                  std::span<const std::unique_ptr<SchedulePeer>> executors, net::LinkKind kind) {
  for (std::size_t i = 0; i < executors.size(); ++i) {
    MUSTER_TRY(driver.Connect(fmt::format("worker:{}", i), Incarnation(1), kind,
                              executors[i]->address(kind),
                              SteadyClock::now() + std::chrono::seconds(10)));
  }
  return Ok();
}

class ScheduleBench {
 public:
  explicit ScheduleBench(ScheduleOptions options) : options_(options) {}

  Status Start() {
    MUSTER_TRY_ASSIGN(ping_pong_, PingPong::Start());
    for (int i = 0; i < 2; ++i) {
      MUSTER_TRY_ASSIGN(blocking_.emplace_back(), SchedulePeer::Start(net::SpinMode::kOff));
    }
    spinning_.resize(1);
    MUSTER_TRY_ASSIGN(spinning_[0], SchedulePeer::Start(net::SpinMode::kAlways));
    MUSTER_TRY_ASSIGN(api_, ScheduleApi::Start());
    return Ok();
  }

  Result<Json> Run() {
    Json memory = Memory();
    MUSTER_TRY_ASSIGN(Json bytes, MeasureBytes());
    for (int round = 0; round < options_.rounds; ++round) {
      ping_pong_blocking_.push_back(ping_pong_->Measure(false));
      MUSTER_TRY(Throughput(net::LinkKind::kUnix, unix_));
      MUSTER_TRY(Latency(net::SpinMode::kOff, blocking_[0], latency_blocking_));
      MUSTER_TRY(Throughput(net::LinkKind::kTcp, tcp_));
      ping_pong_spinning_.push_back(ping_pong_->Measure(true));
      MUSTER_TRY(Latency(net::SpinMode::kAlways, spinning_[0], latency_spinning_));
      alone_.push_back(DispatcherAlone());
      if (api_ != nullptr) MUSTER_TRY(api_->Measure(round, options_.closures));
    }
    return Report(std::move(memory), std::move(bytes));
  }

 private:
  struct Throughputs {
    std::vector<double> per_second;
    std::vector<double> driver_user, driver_system, executors;  // seconds a closure
  };

  dispatch::Driver::Options DriverOptions(net::SpinMode spin) {
    dispatch::Driver::Options options;
    options.dispatch.incarnation = ++incarnation_;
    options.identity = {.token = kScheduleKey, .host_id = "bench"};
    options.functions = ScheduleFunctions().hash();
    options.spin = spin;
    return options;
  }

  Status Throughput(net::LinkKind kind, Throughputs& into) {
    dispatch::Driver driver(DriverOptions(net::SpinMode::kOff));
    MUSTER_TRY(ConnectAll(driver, blocking_, kind));
    MUSTER_TRY(ScheduleAll(driver, options_.closures / 10));  // warm
    const double executors = ExecutorSeconds();
    const CpuSeconds before = CpuSeconds::SoFar();
    const TimePoint start = SteadyClock::now();
    MUSTER_TRY(ScheduleAll(driver, options_.closures));
    const double seconds = SecondsSince(start);
    const CpuSeconds spent = CpuSeconds::SoFar() - before;
    into.per_second.push_back(options_.closures / seconds);
    into.driver_user.push_back(spent.user / options_.closures);
    into.driver_system.push_back(spent.system / options_.closures);
    into.executors.push_back((ExecutorSeconds() - executors) / options_.closures);
    return Ok();
  }

  static Status ScheduleAll(dispatch::Driver& driver, int closures) {
    for (int i = 0; i < closures; ++i) MUSTER_TRY(driver.Schedule(kEmptyFunction, {}).status());
    return driver.Join(SteadyClock::now() + std::chrono::seconds(60));
  }

  double ExecutorSeconds() const {
    double seconds = 0;
    for (const auto& executor : blocking_) seconds += executor->CpuSeconds();
    return seconds;
  }

  Status Latency(net::SpinMode spin, const std::unique_ptr<SchedulePeer>& executor,
                 std::vector<double>& into) {
    dispatch::Driver driver(DriverOptions(spin));
    MUSTER_TRY(ConnectAll(driver, std::span(&executor, 1), net::LinkKind::kUnix));
    std::vector<double> seconds;
    for (int i = 0; i < kLatencySamples; ++i) {
      const TimePoint start = SteadyClock::now();
      MUSTER_TRY_ASSIGN(const dispatch::RemoteValue value, driver.Schedule(kEmptyFunction, {}));
      MUSTER_TRY(driver.Fetch(value).status());
      if (i >= kLatencySamples / 10) seconds.push_back(SecondsSince(start));
    }
    into.push_back(SpreadOf(std::move(seconds)).median);
    return Ok();
  }

  // Seconds a closure.
  static double DispatcherAlone() {
    constexpr int kClosures = 200'000;
    dispatch::ClosureDispatcher dispatcher({.credit = {.least = 256, .most = 256}});
    dispatcher.AddWorker("worker:0", Incarnation(1), 1);
    dispatcher.AddWorker("worker:1", Incarnation(1), 1);
    struct Given {
      dispatch::WorkerHandle worker;
      dispatch::ClosureResult result;
    };
    std::vector<Given> given;
    const TimePoint start = SteadyClock::now();
    for (int scheduled = 0; scheduled < kClosures || !dispatcher.idle();) {
      for (int i = 0; i < 512 && scheduled < kClosures; ++i, ++scheduled) {
        const auto kept = dispatcher.Schedule(kEmptyFunction, {}).result;
        if (kept != dispatch::ResultSlab::kNone) dispatcher.results().Release(kept);
      }
      given.clear();
      dispatcher.Pump(start, [&](dispatch::WorkerHandle worker, const dispatch::Assignment& one) {
        given.push_back({worker, {.closure = one.closure, .attempt = one.attempt}});
      });
      for (const Given& one : given) dispatcher.OnResult(one.worker, one.result, start);
    }
    return SecondsSince(start) / kClosures;
  }

  static std::size_t ResidentBytes() {
    std::ifstream statm("/proc/self/statm");
    std::size_t all = 0;
    std::size_t resident = 0;
    statm >> all >> resident;
    return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }

  Json Memory() {
    const std::array<std::byte, 64> arguments{};
    const std::size_t before = ResidentBytes();
    dispatch::Driver driver(DriverOptions(net::SpinMode::kOff));
    std::vector<dispatch::RemoteValue> values;
    values.reserve(kQueued);
    for (std::size_t i = 0; i < kQueued; ++i) {
      auto value = driver.Schedule(kEmptyFunction, arguments);
      if (value.ok()) values.push_back(*std::move(value));
    }
    return {{"closures", values.size()},
            {"argument_bytes", arguments.size()},
            {"resident_mib",
             static_cast<double>(ResidentBytes() - before) / static_cast<double>(1 << 20)}};
  }

  static Json Report(const Throughputs& of, double round_trips) {
    return {{"closures_per_second", Print(of.per_second)},
            {"per_bare_round_trip", SpreadOf(of.per_second).median / round_trips},
            {"cpu_ns_per_closure",
             {{"driver_user", SpreadOf(of.driver_user).median * 1e9},
              {"driver_system", SpreadOf(of.driver_system).median * 1e9},
              {"executors", SpreadOf(of.executors).median * 1e9}}}};
  }

  // Null: not measured, the daemons are not installed.
  Json ReportApi(double round_trips) const {
    if (api_ == nullptr) return nullptr;
    const Spread rate = SpreadOf(api_->closures_per_second());
    return {{"closures_per_second", Print(api_->closures_per_second())},
            {"per_bare_round_trip", rate.median / round_trips},
            {"of_the_driver_alone", rate.median / SpreadOf(unix_.per_second).median},
            {"schedule_and_fetch_us", Print(api_->latencies(), 1e6)}};
  }

  Json Report(Json memory, Json bytes) const {
    const double blocking = SpreadOf(ping_pong_blocking_).median;
    const double spinning = SpreadOf(ping_pong_spinning_).median;
    return {{"benchmark", "schedule"},
            {"method", kScheduleMethod},
            {"rounds", options_.rounds},
            {"closures", options_.closures},
            {"throughput",
             {{"unix", Report(unix_, 1 / blocking)}, {"tcp", Report(tcp_, 1 / blocking)}}},
            {"latency_us",
             {{"blocking", Print(latency_blocking_, 1e6)},
              {"spinning", Print(latency_spinning_, 1e6)},
              {"ping_pong_blocking", Print(ping_pong_blocking_, 1e6)},
              {"ping_pong_spinning", Print(ping_pong_spinning_, 1e6)},
              {"ratio_blocking", SpreadOf(latency_blocking_).median / blocking},
              {"ratio_spinning", SpreadOf(latency_spinning_).median / spinning}}},
            {"api", ReportApi(1 / blocking)},
            {"dispatcher_alone_ns", Print(alone_, 1e9)},
            {"memory", std::move(memory)},
            {"bytes", std::move(bytes)}};
  }

  const ScheduleOptions options_;
  std::uint16_t incarnation_ = 0;
  std::unique_ptr<PingPong> ping_pong_;
  std::vector<std::unique_ptr<SchedulePeer>> blocking_;
  std::vector<std::unique_ptr<SchedulePeer>> spinning_;
  std::unique_ptr<ScheduleApi> api_;
  Throughputs unix_;
  Throughputs tcp_;
  std::vector<double> latency_blocking_, latency_spinning_;
  std::vector<double> ping_pong_blocking_, ping_pong_spinning_;
  std::vector<double> alone_;
};

}  // namespace

int RunSchedule(int argc, char** argv) {
  CLI::App app{"Closures between a driver and executors", "muster-bench schedule"};
  ScheduleOptions options;
  app.add_option("--rounds", options.rounds, "rounds of all measurements")
      ->check(CLI::Range(1, 100));
  app.add_option("--closures", options.closures, "closures of one round of throughput")
      ->check(CLI::Range(1'000, 10'000'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  ScheduleBench bench(options);
  Status status = bench.Start();
  if (status.ok()) {
    const auto report = bench.Run();
    status = report.status();
    if (report.ok()) std::printf("%s\n", report->dump(2).c_str());
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "muster-bench schedule: %s\n", ToString(status).c_str());
  return 1;
}

}  // namespace muster::bench
