#include "tests/cluster/networks.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include "tests/cluster/harness.h"

namespace muster::testing {
namespace {

std::string NetworkOf(const std::string& pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + pid + "/ns/net", error).string();
}

// A network of this thread's own; a user without rights has them in a user namespace of its own.
bool Enter() {
  if (::unshare(CLONE_NEWNET) == 0) return true;
  const auto uid = ::getuid();
  const auto gid = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << fmt::format("0 {} 1", uid);
  std::ofstream("/proc/self/gid_map") << fmt::format("0 {} 1", gid);
  return true;
}

}  // namespace

std::string FailureOf(const std::vector<std::string>& argv) {
  std::string output;
  auto child = process::Child::Start(
      {.argv = argv, .on_line = [&](auto, const std::string& line) { output += line + "\n"; }});
  if (!child.ok()) return ToString(child.status());
  const auto exit = (*child)->Wait(std::chrono::seconds(30));
  if (!exit.ok()) return ToString(exit.status());
  child->reset();  // its last line has come
  return exit->ok() ? "" : fmt::format("{}: {} {}", argv.front(), exit->ToString(), output);
}

void MustRun(const std::vector<std::string>& argv) {
  const std::string failure = FailureOf(argv);
  if (!failure.empty()) throw std::runtime_error(failure);
}

std::string Networks::WhyNot() {
  // All that is needed, in a network that ends with the command.
  const std::string failure = FailureOf(
      {"unshare", ::getuid() == 0 ? "-n" : "-rn", "sh", "-c",
       "ip link set lo up && ip link add bridge type bridge && ip link add host0 type veth peer "
       "name eth0 && ip link set host0 master bridge && ip link set host0 type bridge_slave "
       "isolated on && command -v nsenter"});
  return failure.empty() ? "" : "no networks to cut here: " + failure;
}

Networks::Networks(int hosts) {
  if (!Enter()) throw std::runtime_error(fmt::format("unshare: {}", std::strerror(errno)));
  MustRun({"ip", "link", "set", "lo", "up"});
  MustRun({"ip", "link", "add", "bridge", "type", "bridge"});
  MustRun({"ip", "addr", "add", Own() + "/24", "dev", "bridge"});
  MustRun({"ip", "link", "set", "bridge", "up"});
  MustRun({"ip", "link", "add", "apart", "type", "bridge"});
  MustRun({"ip", "link", "set", "apart", "up"});
  for (int host = 0; host < hosts; ++host) {
    auto holder = process::Child::Start({.argv = {"unshare", "-n", "sleep", "infinity"}});
    if (!holder.ok()) throw std::runtime_error(ToString(holder.status()));
    holders_.push_back(*std::move(holder));
    const std::string pid = std::to_string(holders_.back()->pid());
    if (!Eventually(std::chrono::seconds(30), [&] {
          const std::string other = NetworkOf(pid);
          return !other.empty() && other != NetworkOf("thread-self");
        })) {
      throw std::runtime_error("a network of a host's own has not come");
    }
    MustRun(
        {"ip", "link", "add", Port(host), "type", "veth", "peer", "name", "eth0", "netns", pid});
    const auto there = [&](std::vector<std::string> command) {
      command.insert(command.begin(), {"nsenter", "-t", pid, "-n"});
      MustRun(command);
    };
    there({"ip", "link", "set", "lo", "up"});
    there({"ip", "addr", "add", Of(host) + "/24", "dev", "eth0"});
    there({"ip", "link", "set", "eth0", "up"});
    MustRun({"ip", "link", "set", Port(host), "up"});
    Mend(host);
  }
}

Networks::~Networks() = default;

std::string Networks::TfConfig(int host, int workers) {
  std::string addresses;
  for (int i = 0; i < workers; ++i) {
    addresses += fmt::format("{}\"{}:4711\"", i == 0 ? "" : ",", Of(i));
  }
  return fmt::format(R"({{"cluster":{{"worker":[{}]}},"task":{{"type":"worker","index":{}}}}})",
                     addresses, host);
}

// The link stays up and leads nowhere: neither side is told.
void Networks::Cut(int host) const { MustRun({"ip", "link", "set", Port(host), "nomaster"}); }
void Networks::Mend(int host) const {
  MustRun({"ip", "link", "set", Port(host), "master", "bridge"});
  MustRun({"ip", "link", "set", Port(host), "type", "bridge_slave", "isolated", "off"});
}

std::string Networks::Limit(int host, int megabits) const {
  return FailureOf({"tc", "qdisc", "add", "dev", Port(host), "root", "tbf", "rate",
                    fmt::format("{}mbit", megabits), "burst", "64kb", "latency", "100ms"});
}

void Networks::SetApart(const std::vector<int>& hosts) const {
  for (const int host : hosts) MustRun({"ip", "link", "set", Port(host), "master", "apart"});
}

void Networks::KeepApart(const std::vector<int>& hosts) const {
  for (const int host : hosts) {
    MustRun({"ip", "link", "set", Port(host), "type", "bridge_slave", "isolated", "on"});
  }
}

}  // namespace muster::testing
