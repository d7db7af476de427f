#include "tests/cluster/hosts.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

namespace muster::testing {
namespace {

constexpr int kFirstNumber = 10;  // Networks::Of(0)

std::string V4Of(int number) { return fmt::format("10.77.0.{}", number); }
std::string V6Of(int number) { return fmt::format("fd77::{:x}", number); }

// In place, since other mounts show this very file; a reader never finds it empty.
void Overwrite(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw std::runtime_error("write " + path);
  const bool whole =
      ::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      ::ftruncate(fd, static_cast<off_t>(text.size())) == 0;
  ::close(fd);
  if (!whole) throw std::runtime_error("write " + path);
}

}  // namespace

std::string Hosts::WhyNot() {
  if (std::string why = Networks::WhyNot(); !why.empty()) return why;
  const std::string failure = FailureOf(
      {"unshare", ::getuid() == 0 ? "-nmu" : "-rnmu", "sh", "-c",
       "mount --make-rprivate / && mount --bind /etc/passwd /etc/hosts && "
       "mount --bind /etc/passwd /etc/resolv.conf && hostname muster-test && ip link set lo up && "
       "ip -6 addr add fd77::1/64 dev lo nodad && nft add table bridge muster"});
  return failure.empty() ? "" : "no hosts to be had here: " + failure;
}

Hosts::Hosts(const std::vector<std::string>& names, Family family)
    : family_(family),
      networks_(static_cast<int>(names.size())),
      last_number_(kFirstNumber + static_cast<int>(names.size())) {
  MustRun({"ip", "addr", "add", V6Of(1) + "/64", "dev", "bridge", "nodad"});
  MustRun({"nft",
           "add table bridge muster; "
           "add chain bridge muster between { type filter hook forward priority 0; }"});
  for (std::size_t i = 0; i < names.size(); ++i) {
    Host& host = hosts_[names[i]];
    host.index = static_cast<int>(i);
    host.number = kFirstNumber + host.index;
    host.names = {names[i]};
  }
  WriteNames();
  Overwrite(folder_ / "resolv.conf", "");
  for (auto& [name, host] : hosts_) {
    const auto ready = std::make_shared<std::atomic<bool>>(false);
    auto holder = process::Child::Start(
        {.argv = {"nsenter", "-t", std::to_string(networks_.pid(host.index)), "-n", "unshare", "-m",
                  "-u", "sh", "-c",
                  "mount --make-rprivate / && mount --bind \"$0/hosts\" /etc/hosts && "
                  "mount --bind \"$0/resolv.conf\" /etc/resolv.conf && hostname \"$1\" && "
                  "echo ready && exec sleep infinity >/dev/null 2>&1",
                  folder_.path(), name},
         .on_line = [ready](auto, const std::string& line) {
           *ready = *ready || line == "ready";
         }});
    if (!holder.ok()) throw std::runtime_error(ToString(holder.status()));
    host.holder = *std::move(holder);
    if (!Eventually(std::chrono::seconds(30), [&] { return ready->load(); })) {
      throw std::runtime_error("the host " + name + " has not come");
    }
    GiveAddresses(host);
  }
}

Hosts::~Hosts() = default;

const Hosts::Host& Hosts::Of(const std::string& host) const {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) throw std::runtime_error("no host " + host);
  return found->second;
}

std::vector<std::string> Hosts::On(const std::string& host) const {
  return {"nsenter", "-t", std::to_string(Of(host).holder->pid()), "-n", "-m", "-u"};
}

std::string Hosts::V4(const std::string& host) const { return V4Of(Of(host).number); }
std::string Hosts::V6(const std::string& host) const { return V6Of(Of(host).number); }

// All that it has, the one of Networks included, makes room for these.
void Hosts::GiveAddresses(const Host& host) const {
  const std::string script = fmt::format(
      "ip addr flush dev eth0 scope global && ip addr add {}/24 dev eth0 && "
      "ip -6 addr add {}/64 dev eth0 nodad",
      V4Of(host.number), V6Of(host.number));
  MustRun({"nsenter", "-t", std::to_string(networks_.pid(host.index)), "-n", "sh", "-c", script});
}

void Hosts::WriteNames() const {
  std::string text = "127.0.0.1 localhost\n::1 localhost\n";
  for (const auto& [first, host] : hosts_) {
    for (const std::string& name : host.names) {
      if (family_ != Family::kV6) text += fmt::format("{} {}\n", V4Of(host.number), name);
      if (family_ != Family::kV4) text += fmt::format("{} {}\n", V6Of(host.number), name);
    }
  }
  Overwrite(folder_ / "hosts", text);
}

void Hosts::Alias(const std::string& host, const std::string& name) {
  (void)Of(host);
  hosts_.at(host).names.push_back(name);
  WriteNames();
}

void Hosts::Readdress(const std::string& host) {
  (void)Of(host);
  hosts_.at(host).number = ++last_number_;
  GiveAddresses(Of(host));
  WriteNames();
}

void Hosts::Cut(const std::string& host) const { networks_.Cut(Of(host).index); }
void Hosts::Mend(const std::string& host) const { networks_.Mend(Of(host).index); }

// By the bridge's ports, whatever the addresses are.
void Hosts::Lose(const std::string& from, const std::string& to) const {
  MustRun({"nft", fmt::format("add rule bridge muster between iifname {} oifname {} drop",
                              Networks::Port(Of(from).index), Networks::Port(Of(to).index))});
}

void Hosts::Part(const std::vector<std::string>& one, const std::vector<std::string>& other) const {
  for (const std::string& here : one) {
    for (const std::string& there : other) {
      Lose(here, there);
      Lose(there, here);
    }
  }
}

void Hosts::LoseNothing() const { MustRun({"nft", "flush chain bridge muster between"}); }

}  // namespace muster::testing
