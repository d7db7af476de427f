// Groups of several hosts, some of which have several members. A host is an IPC namespace:
// processes of two do not share memory or Unix sockets (net::HostId()), and reach each other by
// loopback.
#include <algorithm>
#include <fstream>
#include <map>

#include <fcntl.h>
#include <sched.h>

#include "tests/unit/collectives/process/members.h"

namespace muster::collectives {
namespace {

// Processes that begin while it lives are on a host of their own.
class Host {
 public:
  Host() : before_(::open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC)) {
    is_own_ = before_.valid() && ::unshare(CLONE_NEWIPC) == 0;
  }
  ~Host() {
    if (is_own_) (void)::setns(before_.get(), CLONE_NEWIPC);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  bool is_own() const { return is_own_; }

 private:
  net::Fd before_;
  bool is_own_ = false;
};

// Whether this process may make hosts.
bool MayMakeHosts() {
  if (Host().is_own()) return true;
  WARN("hosts of their own need the right to make IPC namespaces: not tried");
  return false;
}

// body(rank) for each member in a process; hosts[r] is the number of rank r's host.
std::vector<std::unique_ptr<Process>> OnHosts(const std::vector<int>& hosts,
                                              const std::function<std::string(int)>& body) {
  std::vector<std::unique_ptr<Process>> members(hosts.size());
  std::map<int, std::vector<std::size_t>> ranks;
  for (std::size_t r = 0; r < hosts.size(); ++r) ranks[hosts[r]].push_back(r);
  for (const auto& [number, on_it] : ranks) {
    const Host host;
    for (const std::size_t r : on_it) {
      members[r] = std::make_unique<Process>([&body, r] { return body(static_cast<int>(r)); });
    }
  }
  return members;
}

// How many groups' shared memories this process has mapped in which something has been published:
// the first word is the phase of their first member.
int SharedMemories() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("muster-arena") == std::string::npos) continue;
    const auto* phase = reinterpret_cast<const std::uint32_t*>(std::stoull(line, nullptr, 16));
    if (*phase > 0) ++count;
  }
  return count;
}

#define MUSTER_SAY(expression) \
  if (const Status said = (expression); !said.ok()) return ToString(said)

// All operations, of which reductions are of several sizes; what is wrong, or nothing.
std::string TryEverything(Group& group) {
  const int n = group.size();
  const auto own = static_cast<std::size_t>(group.rank());
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{60'000}, std::size_t{1'500'000}}) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>((i % 1000) * static_cast<std::size_t>(n) + own);
    }
    std::vector<std::int64_t> numbers(3, group.rank());
    const ReduceBuffer buffers[] = {
        {DType::kFloat32, {static_cast<std::int64_t>(count)}, values.data(), values.data()},
        {DType::kInt64, {3}, numbers.data(), numbers.data()}};
    MUSTER_SAY(group.AllReduce(Reduction::kSum, buffers));
    for (std::size_t i = 0; i < count; ++i) {
      const auto sum = static_cast<float>((i % 1000) * static_cast<std::size_t>(n * n) +
                                          static_cast<std::size_t>(n * (n - 1) / 2));
      if (values[i] != sum) return fmt::format("{} of {} is {}, not {}", i, count, values[i], sum);
    }
    if (numbers != std::vector<std::int64_t>(3, n * (n - 1) / 2)) return "whole numbers are wrong";
    MUSTER_SAY(group.AllReduce(Reduction::kMean, std::span(buffers).first(1)));
  }
  int told = group.rank() == n - 1 ? 7 : 0;
  MUSTER_SAY(group.Broadcast(std::as_writable_bytes(std::span(&told, 1)), n - 1));
  if (told != 7) return "broadcast";
  const std::int64_t mine[] = {group.rank()};
  const auto all = group.Exchange("test", mine);
  if (!all.ok()) return ToString(all.status());
  for (int r = 0; r < n; ++r) {
    if ((*all)[static_cast<std::size_t>(r)] != std::vector<std::int64_t>{r}) return "exchange";
  }
  MUSTER_SAY(group.Barrier());
  return "";
}
#undef MUSTER_SAY

TEST_CASE("members of several hosts reduce through the memory of each, those that share none, too",
          "[collectives][process][COL-01]") {
  if (!MayMakeHosts()) return;
  const auto hosts = GENERATE(as<std::vector<int>>{}, std::vector<int>{0, 0, 1, 1},
                              std::vector<int>{0, 1, 2, 1, 0, 1}, std::vector<int>{0, 1, 1});
  const Address address(static_cast<int>(hosts.size()));
  const auto members = OnHosts(hosts, [&](int rank) -> std::string {
    auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
    if (!group.ok()) return ToString(group.status());
    const std::string wrong = TryEverything(**group);
    return wrong.empty() ? fmt::format("{} shared", SharedMemories()) : wrong;
  });
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    INFO("rank " << r);
    const bool alone = std::count(hosts.begin(), hosts.end(), hosts[r]) == 1;
    CHECK(members[r]->Told() == (alone ? "0 shared" : "1 shared"));
  }
}

TEST_CASE("a member lost on any of several hosts ends the group for all, who are told its name",
          "[collectives][process][faults]") {
  if (!MayMakeHosts()) return;
  const int victim = GENERATE(range(0, 5));
  const int signal = GENERATE(as<int>{}, SIGKILL, SIGSTOP);
  // The first of a host speaks for it; rank 4 is alone on its own.
  const std::vector<int> hosts = {0, 1, 0, 1, 2};
  const Address address(static_cast<int>(hosts.size()));
  const Steps begun;
  const auto members = OnHosts(hosts, [&](int rank) -> std::string {
    auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
    if (!group.ok()) return ToString(group.status());
    std::vector<float> values(200'000, 1.0f);
    const ReduceBuffer buffer{DType::kFloat32, {200'000}, values.data(), values.data()};
    for (int i = 0;; ++i) {
      const Status status = (*group)->AllReduce(Reduction::kMax, {&buffer, 1});
      if (i == 20) begun.Done();
      if (!status.ok()) return ToString(status);
    }
  });
  for (std::size_t r = 0; r < hosts.size(); ++r) begun.Await();
  members[static_cast<std::size_t>(victim)]->Signal(signal);
  for (int r = 0; r < static_cast<int>(hosts.size()); ++r) {
    if (r == victim) continue;
    const std::string told = members[static_cast<std::size_t>(r)]->Told();
    INFO("rank " << r << " of a group without " << victim << ": " << told);
    CHECK(told.find("UNAVAILABLE: ") == 0);
    CHECK(told.find(fmt::format("worker:{} was lost", victim)) != std::string::npos);
  }
}

TEST_CASE("other shapes on one host of several are an error of every member",
          "[collectives][process]") {
  if (!MayMakeHosts()) return;
  const int odd = GENERATE(range(0, 4));
  const std::vector<int> hosts = {0, 0, 1, 1};
  const Address address(static_cast<int>(hosts.size()));
  const auto members = OnHosts(hosts, [&](int rank) -> std::string {
    auto group = FormGroup(address.Of(rank), address.listeners[static_cast<std::size_t>(rank)]);
    if (!group.ok()) return ToString(group.status());
    std::vector<float> values(10, 1.0f);
    const ReduceBuffer buffer{
        DType::kFloat32, {rank == odd ? 9 : 10}, values.data(), values.data()};
    return ToString((*group)->AllReduce(Reduction::kSum, {&buffer, 1}, Millis(20'000)));
  });
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const std::string told = members[r]->Told();
    INFO("rank " << r << ": " << told);
    CHECK(told.find("INVALID_ARGUMENT: ") == 0);
    CHECK(told.find("Shape mismatch") != std::string::npos);
    CHECK(told.find(fmt::format("worker:{}", odd)) != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::collectives
