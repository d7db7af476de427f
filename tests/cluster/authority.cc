#include "tests/cluster/authority.h"

#include <stdexcept>

namespace muster::testing {

Authority::Authority() { Certs({"init"}); }

void Authority::Certs(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), "certs");
  arguments.insert(arguments.end(), {"--dir", folder()});
  const RunResult result = RunProgram("muster", arguments);
  if (result.code != 0) throw std::runtime_error("muster certs: " + result.err);
}

std::map<std::string, std::string> Authority::Environment(const std::string& name) const {
  return {{"MUSTER_TLS_CA", folder() + "/ca.pem"},
          {"MUSTER_TLS_CERT", folder() + "/" + name + ".pem"},
          {"MUSTER_TLS_KEY", folder() + "/" + name + ".key"}};
}

}  // namespace muster::testing
