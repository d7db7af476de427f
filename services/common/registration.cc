#include "services/common/registration.h"

#include <fstream>
#include <random>

#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/version.h"

namespace muster::services {

v1::Register MakeRegistration(const DaemonConfig& config, const Endpoint& grpc) {
  v1::Register registration;
  registration.mutable_task()->set_type(config.task.type);
  registration.mutable_task()->set_index(static_cast<std::uint32_t>(config.task.index));
  std::random_device random;
  registration.set_boot_id(
      fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random()));
  registration.set_pid(static_cast<std::uint32_t>(::getpid()));
  registration.set_hostname(HostName());
  registration.set_grpc_address(grpc.ToString());
  registration.set_version(std::string(Version()));
  registration.set_insecure_network(config.insecure_network);
  return registration;
}

std::uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace muster::services
