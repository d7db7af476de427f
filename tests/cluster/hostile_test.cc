// Strangers at every port that the processes of a cluster listen at: garbage, halves of frames,
// lengths of 4 GB, and a thousand connections that say nothing.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "common/net/frame.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

constexpr int kSilent = 1000;
// What a process may have more of after another round. Measured are 1 MiB in the clear from the
// third round on, and behind TLS from the seventh; 1 KiB for each stranger that comes to one of its
// three ports would be 3 MiB, in every round.
constexpr std::int64_t kSlackKib = 2 * 1024;
constexpr int kMostRounds = 15;
constexpr int kSlackDescriptors = 8;

int OpenDescriptors(int pid) {
  int count = 0;
  std::error_code gone;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    ++count;
  }
  return count;
}

std::int64_t MemoryKib(int pid) {
  const std::string text = ReadAll("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = text.find("VmRSS:");
  return at == std::string::npos ? 0 : std::stoll(text.substr(at + 6));
}

// Ports of IPv4 at which a process listens.
std::set<int> PortsOf(int pid) {
  std::set<std::string> sockets;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  std::istringstream table(ReadAll("/proc/net/tcp"));
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
        inode;
    const bool listens = state == "0A";
    if (listens && sockets.contains(inode)) {
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
    }
  }
  return ports;
}

// Begins a connection and does not wait for it: some ports accept nobody at the moment.
net::Fd Knock(int port) {
  net::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  (void)::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  return fd;
}

// As much as is taken without a pause of half a second.
void Say(int port, std::span<const std::byte> bytes) {
  const net::Fd fd = Knock(port);
  while (!bytes.empty()) {
    pollfd room{fd.get(), POLLOUT, 0};
    if (::poll(&room, 1, 500) <= 0 || (room.revents & (POLLERR | POLLHUP)) != 0) return;
    const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

std::vector<std::vector<std::byte>> Nonsense() {
  const auto of = [](std::initializer_list<int> values) {
    std::vector<std::byte> bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
  };
  const auto text = [](std::string_view words) {
    const auto bytes = std::as_bytes(std::span(words));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  std::vector<std::byte> huge(net::kHeaderBytes);
  net::EncodeHeader({.kind = net::kHello, .meta_bytes = 0xffffffff, .payload_bytes = 1ULL << 32},
                    std::span(huge).first<net::kHeaderBytes>());
  return {std::vector<std::byte>(1'000'000, std::byte{'x'}),
          huge,
          {huge.begin(), huge.begin() + net::kHeaderBytes / 2},
          // TLS: half of a record of 16 KiB; a ClientHello of 16 MiB.
          of({0x16, 3, 1, 0x40, 0}),
          of({0x16, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff}),
          // HTTP: a preface and a frame of 16 MiB; half of a request; a header of 4 GB.
          text(std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + "\xff\xff\xff"),
          text("GET /metrics HTTP/1.1\r\nX: "),
          text("POST / HTTP/1.1\r\nContent-Length: 4294967296\r\n\r\n")};
}

void Molest(int port) {
  // Shells often allow no more than 1024.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
  std::vector<net::Fd> silent;
  for (int i = 0; i < kSilent; ++i) silent.push_back(Knock(port));
  for (const std::vector<std::byte>& bytes : Nonsense()) {
    for (int i = 0; i < 3; ++i) Say(port, bytes);
  }
}

struct Use {
  int descriptors = 0;
  std::int64_t kib = 0;
};

// All daemons and executors of the cluster that listen somewhere, by what they are.
std::map<int, std::string> Listening(const Cluster& cluster) {
  std::map<int, std::string> found;
  for (const std::string& process : ProcessesOf(cluster.state())) {
    const int pid = std::stoi(process);
    if (process.find("muster-") != std::string::npos && !PortsOf(pid).empty()) {
      found[pid] = process.substr(0, 100);
    }
  }
  return found;
}

void StrangersAtEveryPort(const Cluster::Options& options) {
  Cluster cluster(options);
  const TempFolder servers_folder, group_folder;
  const SumJob with_servers(servers_folder, 1500, 10, 60, 40);
  const SumJob in_step(group_folder, 1500, 10, 60, 40);
  ReplaceInFile(in_step.file, "  kind: parameter_server\n", "  kind: multi_worker_mirrored\n");
  ReplaceInFile(in_step.file, "  partitioner: {kind: fixed, num_shards: 2}\n", "  workers: 2\n");
  const std::string servers = cluster.Submit(with_servers.file, "servers");
  const std::string group = cluster.Submit(in_step.file, "group");
  REQUIRE(cluster.WaitForStep(servers, 20, seconds(120)));
  REQUIRE(cluster.WaitForStep(group, 20, seconds(120)));
  const std::map<int, std::string> processes = Listening(cluster);
  // The coordinator, two parameter servers, two workers, and the executors of the group.
  REQUIRE(processes.size() >= 7);
  std::map<int, Use> before;
  std::set<int> ports;
  for (const auto& [pid, name] : processes) {
    before[pid] = {.descriptors = OpenDescriptors(pid), .kib = MemoryKib(pid)};
    ports.merge(PortsOf(pid));
  }
  // gRPC and admin of five daemons, data of two, the group's two.
  CHECK(ports.size() >= 14);

  // Those that let go of all descriptors they had more of.
  const auto settle = [&] {
    for (const auto& [pid, name] : processes) {
      CAPTURE(name, before[pid].descriptors);
      // Executors end with their job.
      const bool may_end = name.find("muster-executor") != std::string::npos;
      CHECK(Eventually(seconds(60), [&, pid = pid] {
        const int open = OpenDescriptors(pid);
        return open == 0 ? may_end : open <= before[pid].descriptors + kSlackDescriptors;
      }));
    }
  };

  // The first rounds fill pools and caches; after some no process may grow.
  std::string growth = "?";
  for (int round = 0; round < kMostRounds && !growth.empty(); ++round) {
    for (const int port : ports) Molest(port);
    settle();
    growth.clear();
    for (const auto& [pid, name] : processes) {
      const std::int64_t now = MemoryKib(pid);
      if (now > before[pid].kib + kSlackKib) {
        growth += fmt::format("{}: from {} to {} KiB\n", name, before[pid].kib, now);
      }
      before[pid].kib = now;
    }
  }
  CAPTURE(growth);
  CHECK(growth.empty());
  with_servers.Hurry();
  in_step.Hurry();
  REQUIRE(cluster.Wait(servers, seconds(240)) == 0);
  REQUIRE(cluster.Wait(group, seconds(240)) == 0);
  const std::string file = servers_folder / "w";
  REQUIRE(cluster.Muster({"checkpoints", "export", servers, "-o", file}).code == 0);
  CHECK(ReadSafetensors(file).at("w") == with_servers.expected);
  // And others can begin.
  const SumJob after(servers_folder, 100, 10, 1, 0);
  CHECK(cluster.Wait(cluster.Submit(after.file, "after"), seconds(60)) == 0);
}

TEST_CASE("strangers at every port disturb no job and leave nothing behind", "[cluster]") {
  StrangersAtEveryPort({.ps = 2, .workers = 2, .environment = {{"MUSTER_LINK", "tcp"}}});
}

TEST_CASE("behind TLS strangers at every port disturb no job and leave nothing behind",
          "[cluster]") {
  const TempFolder folder;
  const std::string certs = folder / "certs";
  REQUIRE(RunProgram("muster", {"certs", "init", "--dir", certs}).code == 0);
  REQUIRE(RunProgram("muster", {"certs", "issue", "--dir", certs, "--name", "nodes", "--host",
                                "127.0.0.1", "--node", "chief:0", "--node", "ps:0", "--node",
                                "ps:1", "--node", "worker:0", "--node", "worker:1"})
              .code == 0);
  StrangersAtEveryPort({.ps = 2,
                        .workers = 2,
                        .environment = {{"MUSTER_LINK", "tcp"},
                                        {"MUSTER_TLS_CA", certs + "/ca.pem"},
                                        {"MUSTER_TLS_CERT", certs + "/nodes.pem"},
                                        {"MUSTER_TLS_KEY", certs + "/nodes.key"}}});
}

}  // namespace
}  // namespace muster::testing
