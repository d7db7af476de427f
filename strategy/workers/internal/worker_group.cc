#include "strategy/workers/internal/worker_group.h"

#include <array>

#include <fmt/format.h>

#include "collectives/costs_file.h"
#include "collectives/process/form_group.h"
#include "collectives/queued_group.h"
#include "common/base/words.h"
#include "common/cluster/job_key.h"
#include "common/net/listen_at.h"
#include "common/process/wait_page.h"
#include "common/telemetry/log.h"
#include "strategy/base/internal/raise.h"

namespace muster::internal {

using collectives::GatherBuffer;
using collectives::Reduction;
using collectives::Timeout;

Status WorkerGroup::AllReduce(Reduction reduction,
                              std::span<const collectives::ReduceBuffer> buffers, Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->AllReduce(reduction, buffers, Within(timeout)));
}

Result<std::vector<std::vector<std::int64_t>>> WorkerGroup::Exchange(
    std::string_view call, std::span<const std::int64_t> mine, Timeout timeout) {
  const MutexLock lock(mutex_);
  auto all = group_->Exchange(call, mine, Within(timeout));
  (void)Noted(all.status());
  return all;
}

Result<std::shared_ptr<std::byte>> WorkerGroup::AllocateCommon(std::size_t bytes, Timeout timeout) {
  const MutexLock lock(mutex_);
  auto memory = group_->AllocateCommon(bytes, Within(timeout));
  (void)Noted(memory.status());
  return memory;
}

Status WorkerGroup::AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->AllGather(buffers, Within(timeout)));
}

Status WorkerGroup::Broadcast(std::span<std::byte> data, int root, Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->Broadcast(data, root, Within(timeout)));
}

Status WorkerGroup::ReduceScatter(Reduction reduction, const collectives::ScatterBuffer& buffer,
                                  Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->ReduceScatter(reduction, buffer, Within(timeout)));
}

Status WorkerGroup::AllToAll(std::span<const std::span<const std::byte>> sends,
                             std::span<const std::span<std::byte>> receives, Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->AllToAll(sends, receives, Within(timeout)));
}

Status WorkerGroup::Barrier(Timeout timeout) {
  const MutexLock lock(mutex_);
  return Noted(group_->Barrier(Within(timeout)));
}

namespace {

// Workers may wait for a place on a busy cluster, but not beyond what a clock can add up.
constexpr auto kAsLongAsItTakes = std::chrono::hours(24 * 365);

}  // namespace

std::string wait_page_of(const Environment& environment) {
  return environment(process::WaitPage::kVariable).value_or("");
}

std::optional<collectives::LinkCosts> link_costs_of(const Environment& environment) {
  return value_of(collectives::CostsFrom(environment));
}

GroupSecret secret_of(const WorkerCluster& cluster, const std::string& given,
                      const Environment& environment) {
  GroupSecret secret{.key = given, .tls = nullptr};
  const std::string told = environment(cluster::kJobKeyVariable).value_or("");
  if (environment(cluster::kJobTlsVariable).value_or("") == "1") {
    secret.tls = tls::KeyContext::Make();
  }
  if (!secret.key.empty()) return secret;
  if (!told.empty()) {
    secret.key = told;
  } else if (!cluster.job.empty()) {
    secret.key = "elastic job " + cluster.job;
  } else {
    secret.key = "multi_worker_mirrored";
    secret.of_addresses = true;
    for (const collectives::GroupMember& member : cluster.members) {
      secret.key += fmt::format(" {} {}", member.task, member.address);
    }
  }
  return secret;
}

namespace {

// Whether all have a card by which their sums may go.
bool CheckReplicas(collectives::Group& group, const WorkerCluster& cluster,
                   const JoinOptions& options) {
  const std::array<std::int64_t, 2> mine{options.replicas, options.with_cards != nullptr ? 1 : 0};
  const auto all = group.Exchange("replicas of each worker", mine);
  raise_unless_ok(all.status());
  bool cards = true;
  for (std::size_t r = 0; r < all->size(); ++r) {
    cards = cards && (*all)[r].size() > 1 && (*all)[r][1] == 1;
    if ((*all)[r][0] == all->front()[0]) continue;
    raise(InvalidArgument("{} has {} devices, {} {}: every worker needs as many",
                          cluster.members[r].task, (*all)[r][0], cluster.members[0].task,
                          all->front()[0]));
  }
  return cards;
}

}  // namespace

// Returns when all workers have come, have as many replicas each, and know whether all have cards
// for NCCL. Each hears of the same error where they do not agree.
std::shared_ptr<collectives::Group> join_workers(const WorkerCluster& cluster,
                                                 const JoinOptions& options) {
  if (cluster.members.empty()) return nullptr;
  const auto& own = cluster.members[static_cast<std::size_t>(cluster.rank)];
  std::unique_ptr<collectives::Group> formed;
  {
    const net::Listener listener = value_of(net::ListenAt(own.address));
    log::Info("{} of {} workers waits for the others at {}", own.task, cluster.members.size(),
              listener.address);
    auto group = collectives::FormGroup({.job = "multi_worker_mirrored",
                                         .rank = cluster.rank,
                                         .members = cluster.members,
                                         .key = options.secret.key,
                                         .tls = options.secret.tls,
                                         .form_within = options.within.value_or(kAsLongAsItTakes),
                                         .costs = options.costs,
                                         .wait_page = options.wait_page},
                                        listener);
    if (group.status().code() == StatusCode::kDeadlineExceeded) {
      raise(FailedPrecondition("Timeout waiting for the cluster: {}", Message(group.status())));
    }
    // Another cluster makes another key.
    if (options.secret.of_addresses && group.status().code() == StatusCode::kUnauthenticated) {
      std::vector<std::string> given;
      for (const auto& member : cluster.members) {
        given.push_back(fmt::format("{} at {}", member.task, member.address));
      }
      raise(InvalidArgument(
          "another worker was given another cluster than {}, to which belong {}: all need the "
          "same, letter by letter ({})",
          own.task, Joined(given), Message(group.status())));
    }
    formed = value_of(std::move(group));
  }
  // Nobody leaves the constructor, and comes for another group, before all have closed the listener
  // of this one.
  auto joined = std::make_shared<collectives::QueuedGroup>(
      std::make_shared<WorkerGroup>(std::move(formed), options.call_within));
  if (CheckReplicas(*joined, cluster, options)) {
    options.with_cards(*joined);
  } else if (options.with_cards != nullptr) {
    log::Warning(
        "sums between workers go through host memory, not by NCCL: not all workers have cards that "
        "it can use");
  }
  return joined;
}

}  // namespace muster::internal
