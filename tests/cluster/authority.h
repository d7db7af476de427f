// An authority of `muster certs`, in a folder of its own, and what it issues.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/cluster/harness.h"

namespace muster::testing {

class Authority {
 public:
  Authority();

  // `muster certs ARGUMENTS` in its folder; fails the test (by an exception) where that fails.
  void Certs(std::vector<std::string> arguments) const;
  // Settings of a process that shows this certificate: `name` is --name, or that of a person.
  std::map<std::string, std::string> Environment(const std::string& name) const;
  // Where ca.pem and the others are.
  std::string folder() const { return folder_ / "certs"; }

 private:
  TempFolder folder_;
};

}  // namespace muster::testing
