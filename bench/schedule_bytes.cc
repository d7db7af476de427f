#include "bench/schedule_bytes.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/driver.h"
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "bench/ps_peer.h"
#include "bench/schedule_peer.h"

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Length {
  const char* name;
  std::size_t bytes;
};
constexpr Length kLengths[] = {{"64 KB", std::size_t{64} << 10},
                               {"1 MB", std::size_t{1} << 20},
                               {"16 MB", std::size_t{16} << 20},
                               {"100 MB", std::size_t{100} << 20}};
constexpr std::chrono::milliseconds kWindow{40};

// A driver with one link, and what it sends.
class BytesDriver {
 public:
  static Result<std::unique_ptr<BytesDriver>> Connect(const SchedulePeer& peer,
                                                      net::LinkKind kind) {
    std::unique_ptr<BytesDriver> driver(new BytesDriver);
    MUSTER_TRY(
        driver->driver_.Connect("worker:0", Incarnation(1), kind, peer.address(kind),
                                std::chrono::steady_clock::now() + std::chrono::seconds(10)));
    return driver;
  }

  Status Arguments(std::span<const std::byte> bytes) {
    MUSTER_TRY_ASSIGN(const dispatch::RemoteValue value, driver_.Schedule(kTakeFunction, bytes));
    return driver_.Fetch(value).status();
  }
  Status Value(std::uint64_t bytes) {
    MUSTER_TRY_ASSIGN(const dispatch::RemoteValue value,
                      driver_.Schedule(kGiveFunction, std::as_bytes(std::span(&bytes, 1))));
    return driver_.Fetch(value).status();
  }

 private:
  static dispatch::Driver::Options DriverOptions() {
    dispatch::Driver::Options options;
    options.dispatch.incarnation = 1;
    options.identity = {.token = kScheduleKey, .host_id = "bench"};
    options.functions = ScheduleFunctions().hash();
    return options;
  }

  dispatch::Driver driver_{DriverOptions()};
};

}  // namespace

Result<Json> MeasureBytes() {
  MUSTER_TRY_ASSIGN(const auto bare, Peer::Start(false));
  // An executor has one driver at a time.
  MUSTER_TRY_ASSIGN(const auto local_peer, SchedulePeer::Start(net::SpinMode::kAlways));
  MUSTER_TRY_ASSIGN(const auto tcp_peer, SchedulePeer::Start(net::SpinMode::kAlways));
  MUSTER_TRY_ASSIGN(const auto local, BytesDriver::Connect(*local_peer, net::LinkKind::kUnix));
  MUSTER_TRY_ASSIGN(const auto tcp, BytesDriver::Connect(*tcp_peer, net::LinkKind::kTcp));

  const std::vector<std::byte> from(kLengths[std::size(kLengths) - 1].bytes, std::byte{1});
  std::vector<std::byte> to(from.size());
  Measurements all;
  for (const Length& size : kLengths) {
    const auto bytes = std::span(from).first(size.bytes);
    const std::string name = size.name;
    all.Add("memcpy " + name, [&to, bytes] {
      std::memcpy(to.data(), bytes.data(), bytes.size());
      return Ok();
    });
    all.Add("socket " + name, [&bare, bytes] { return bare->BarePush(bytes); });
    all.Add("local arguments " + name, [&local, bytes] { return local->Arguments(bytes); });
    all.Add("tcp arguments " + name, [&tcp, bytes] { return tcp->Arguments(bytes); });
    all.Add("local value " + name, [&local, bytes] { return local->Value(bytes.size()); });
    all.Add("tcp value " + name, [&tcp, bytes] { return tcp->Value(bytes.size()); });
  }
  MUSTER_TRY(all.Run(kWindow));

  Json report;
  for (const Length& size : kLengths) {
    Json& of = report[size.name];
    const auto rate = [&](const std::string& what) {
      return static_cast<double>(size.bytes) / 1e9 / all.Seconds(what + " " + size.name).median;
    };
    for (const char* what :
         {"memcpy", "socket", "local arguments", "local value", "tcp arguments", "tcp value"}) {
      of[std::string(what) + " GB/s"] = rate(what);
    }
  }
  return report;
}

}  // namespace muster::bench
