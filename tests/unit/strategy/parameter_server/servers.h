// Parameter servers and workers in this process, for tests of what a driver's strategy does.
#pragma once

#include <memory>
#include <utility>

#include "strategy/cluster/internal/cluster_link.h"
#include "strategy/muster.h"
#include "strategy/parameter_server/internal/connection.h"
#include "tests/unit/ps/client/program_cluster.h"
#include "tests/unit/strategy/errors.h"
//
#include "tests/support/catch.h"

namespace muster::testing {

// This process is the driver; its closures run on threads, so that globals are theirs, too.
class Servers {
 public:
  explicit Servers(std::uint32_t servers = 2, int workers = 2)
      : Servers(servers, local_cluster(workers)) {}
  Servers(std::uint32_t servers, std::shared_ptr<internal::ClusterLink> to_workers)
      : cluster(servers), link(std::move(to_workers)) {
    const ps::ProgramClient::Options options = cluster.Options();
    connection = internal::PsConnection::OpenAsDriver({.servers = cluster.Servers(),
                                                       .job_id = options.job_id,
                                                       .key = options.key,
                                                       .epoch = options.epoch,
                                                       .incarnation = options.incarnation,
                                                       .host_id = options.host_id},
                                                      link);
  }

  ps::testing::ProgramCluster cluster;
  std::shared_ptr<internal::ClusterLink> link;
  std::shared_ptr<internal::PsConnection> connection;
};

// Whether `body` throws an error whose text has `part` in it.
inline bool says(const std::string& part, const std::function<void()>& body) {
  const auto error = error_of(body);
  return error && error->message().find(part) != std::string::npos;
}

inline std::string device_of_server(int task) {
  return "/job:ps/replica:0/task:" + std::to_string(task) + "/device:CPU:0";
}

}  // namespace muster::testing
