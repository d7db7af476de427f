// Hosts of a test, on one machine: each has a network, mounts and a host name of its own, and all
// find each other by name. What lies between two of them can be cut, in both directions or in one,
// and a host can get other addresses, as one that moves does.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/process/child.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/networks.h"

namespace muster::testing {

// As Networks: from its making on the calling thread, and what it starts, is in a network of its
// own, for good. Threading: that thread alone.
class Hosts {
 public:
  // Which addresses stand in everybody's /etc/hosts. Nothing else resolves a name there.
  enum class Family { kV4, kV6, kBoth };

  // Why this machine cannot have them; empty: it can.
  static std::string WhyNot();

  explicit Hosts(const std::vector<std::string>& names, Family family = Family::kV4);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // Goes before a command that is to run on that host.
  std::vector<std::string> On(const std::string& host) const;
  // Its addresses now.
  std::string V4(const std::string& host) const;
  std::string V6(const std::string& host) const;

  // Another name by which all find that host.
  void Alias(const std::string& host, const std::string& name);
  // The host has other addresses from now on, never those that anybody had before.
  void Readdress(const std::string& host);

  // Nothing comes to this host or from it any more, in silence; and again.
  void Cut(const std::string& host) const;
  void Mend(const std::string& host) const;
  // What `from` sends to `to` does not come, in silence.
  void Lose(const std::string& from, const std::string& to) const;
  // Nothing between the two sides, in either direction.
  void Part(const std::vector<std::string>& one, const std::vector<std::string>& other) const;
  // Ends all of Lose() and Part().
  void LoseNothing() const;

 private:
  struct Host {
    int index = 0;   // of networks_
    int number = 0;  // the last part of its addresses
    std::vector<std::string> names = {};
    std::unique_ptr<process::Child> holder = {};
  };

  const Host& Of(const std::string& host) const;
  void GiveAddresses(const Host& host) const;
  void WriteNames() const;

  const Family family_;
  const TempFolder folder_;
  const Networks networks_;
  std::map<std::string, Host> hosts_;
  int last_number_ = 0;
};

}  // namespace muster::testing
