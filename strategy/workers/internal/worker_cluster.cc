#include "strategy/workers/internal/worker_cluster.h"

#include <cstdint>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include "common/base/host_port.h"
#include "common/base/number_in.h"
#include "common/cluster/roles.h"
#include "common/cluster/worker_book.h"
#include "common/process/wait_page.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {
namespace {

// Where nobody can listen the others would look for a worker for ever, and two that share an
// address would be two elastic runs that know nothing of each other.
Status CheckAddresses(const std::vector<collectives::GroupMember>& members) {
  std::map<std::string_view, std::string_view> tasks;
  for (const collectives::GroupMember& member : members) {
    const auto parts = SplitHostPort(member.address);
    if (!parts || NumberIn<std::uint16_t>(parts->port).value_or(0) == 0) {
      return InvalidArgument(
          "\"{}\", where {} is to be found, is no address: give host:port, with a port from 1 to "
          "65535 that all workers are told",
          member.address, member.task);
    }
    const auto [other, alone] = tasks.try_emplace(member.address, member.task);
    if (!alone) {
      return InvalidArgument("{} and {} have one address, {}: each needs its own", other->second,
                             member.task, member.address);
    }
  }
  return Ok();
}

}  // namespace

// The chief comes first among the members, however it is numbered; an evaluator is none, and a
// worker alone has no group.
WorkerCluster worker_cluster(ClusterResolver& resolver) {
  WorkerCluster mine;
  const ClusterSpec named = resolver.cluster_spec();
  if (!named) return mine;
  const auto spec = value_of(cluster::ClusterSpec::Create(named.as_map()));
  const std::optional<std::string> type = resolver.task_type();
  const std::optional<int> id = resolver.task_id();
  if (!type.has_value() || type->empty() || !id.has_value()) {
    raise(InvalidArgument(
        "a cluster was given ({}), so you must also specify task_type and task_id: in TF_CONFIG "
        "\"task\": {{\"type\": \"worker\", \"index\": 0}}",
        spec.ToString()));
  }
  if (!spec.HasJob("worker") && !spec.HasJob("chief") && !spec.HasJob("evaluator")) {
    raise(InvalidArgument("{} has no worker, chief or evaluator: nobody trains in it",
                          spec.ToString()));
  }
  const TaskId task{*type, *id};
  raise_unless_ok(cluster::ValidateRoles(spec, task));
  mine.task_type = *type;
  mine.task_id = *id;
  mine.chief = value_of(cluster::IsChief(spec, task));
  if (*type == "evaluator") return mine;
  mine.most = value_of(cluster::WorkerCount(spec, *type));  // not for a parameter server
  mine.rank = value_of(cluster::IdInCluster(spec, task));
  for (const char* const job : {"chief", "worker"}) {
    const auto tasks = spec.jobs().find(job);
    if (tasks == spec.jobs().end()) continue;
    for (const auto& [index, address] : tasks->second) {
      mine.members.push_back({.task = fmt::format("{}:{}", job, index), .address = address});
    }
  }
  if (mine.most == 1) mine.members.clear();
  raise_unless_ok(CheckAddresses(mine.members));
  return mine;
}

std::optional<WorkerCluster> elastic_job(ClusterResolver& resolver,
                                         const Environment& environment) {
  const std::optional<std::string> path = environment(cluster::kWorkerBookVariable);
  if (!path.has_value() || path->empty()) return std::nullopt;
  const cluster::WorkerBook book = value_of(cluster::ReadWorkerBook(*path));
  WorkerCluster mine;
  mine.task_id = resolver.task_id().value_or(-1);
  if (resolver.task_type() != "worker" || !book.addresses.contains(mine.task_id)) {
    raise(InvalidArgument("{} has no {}:{}, which TF_CONFIG says that this process is", *path,
                          resolver.task_type().value_or("task"), mine.task_id));
  }
  mine.rank = mine.task_id;
  mine.chief = mine.rank == book.addresses.begin()->first;
  mine.book = *path;
  mine.job = book.job;
  mine.most = book.most;
  mine.least = book.least;
  for (int place = 0; place < book.places; ++place) {
    const auto known = book.addresses.find(place);
    mine.members.push_back({.task = fmt::format("worker:{}", place),
                            .address = known == book.addresses.end() ? "" : known->second});
  }
  return mine;
}

void refuse_for_good(const Status& why, const Environment& environment) {
  const auto path = environment(process::WaitPage::kVariable);
  if (path.has_value() && !path->empty()) {
    const auto page = process::WaitPage::Open(*path);
    if (page.ok()) (*page)->SetVerdict(process::WaitPage::Verdict::kFinal);
  }
  raise(why);
}

std::optional<WorkerCluster> workers_in_step(ClusterResolver& resolver,
                                             const Environment& environment) {
  if (environment("MUSTER_ROLE").has_value()) return std::nullopt;
  if (const auto elastic = elastic_job(resolver, environment)) {
    refuse_for_good(
        FailedPrecondition("this job was submitted with --workers {}:{}, so its processes come and "
                           "go, and a strategy without devices needs all of them to the end: name "
                           "this process's devices, submit it with --workers N, or use an elastic "
                           "MultiWorkerMirroredStrategy",
                           elastic->least, elastic->most),
        environment);
  }
  const ClusterSpec spec = resolver.cluster_spec();
  const auto tasks = [&](const char* job) {
    const auto found = spec.as_map().find(job);
    return found == spec.as_map().end() ? std::size_t{0} : found->second.size();
  };
  if (tasks("ps") > 0 || tasks("chief") + tasks("worker") < 2) return std::nullopt;
  WorkerCluster cluster = worker_cluster(resolver);
  if (cluster.members.empty()) return std::nullopt;
  return cluster;
}

Result<collectives::WorkersNow> workers_now(const WorkerCluster& cluster) {
  MUSTER_TRY_ASSIGN(const cluster::WorkerBook book, cluster::ReadWorkerBook(cluster.book));
  collectives::WorkersNow now{.addresses = std::vector<std::string>(cluster.members.size()),
                              .ended = book.ended};
  for (const auto& [place, address] : book.addresses) {
    if (place < static_cast<int>(now.addresses.size())) {
      now.addresses[static_cast<std::size_t>(place)] = address;
    }
  }
  return now;
}

}  // namespace muster::internal
