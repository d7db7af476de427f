#include "services/executor/seats.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "collectives/costs_file.h"
#include "collectives/process/form_group.h"
#include "common/base/environment.h"
#include "common/base/forming_time.h"
#include "common/base/host_port.h"
#include "common/process/wait_page.h"
#include "muster/v1/cluster.pb.h"

namespace muster::executor {

Result<std::unique_ptr<Seats>> Seats::Open(const v1::StartExecutor& start) {
  const std::string& bound = start.program().listen_host();
  const std::string host = bound.empty() ? "127.0.0.1" : bound;
  MUSTER_TRY_ASSIGN(net::Listener listener, net::ListenTcp(JoinHostPort(host, 0)));
  MUSTER_TRY_ASSIGN(const auto costs, collectives::CostsFrom(ProcessEnvironment()));
  return std::unique_ptr<Seats>(new Seats(start, std::move(listener), costs));
}

Seats::Seats(const v1::StartExecutor& start, net::Listener listener,
             std::optional<collectives::LinkCosts> costs)
    : name_(fmt::format("job {} view {}", start.plan().job_id(), start.plan().view())),
      key_(start.program().key()),
      tls_(start.program().tls() ? tls::KeyContext::Make() : nullptr),
      executor_(start.program().incarnation()),
      wait_page_(ProcessEnvironment()(process::WaitPage::kVariable).value_or("")),
      costs_(costs),
      listener_(std::move(listener)) {}

// Generations only rise: one that is not newer than the last is over. Where a member was lost, what
// still waits in older groups is ended first.
Status Seats::Form(const v1::JoinGroup& request) {
  const Generation generation(request.generation());
  // A rank beyond the members may be beyond int, too.
  const bool among = request.rank() < static_cast<std::uint32_t>(request.members_size());
  const int rank = among ? static_cast<int>(request.rank()) : 0;
  if (!among || Incarnation(request.members(rank).executor()) != executor_) {
    return Aborted("generation {} of {} does not mean executor {}", generation, name_, executor_);
  }
  {
    const MutexLock lock(mutex_);
    if (generation <= newest_.generation) {
      return Aborted("generation {} of {} is over: generation {} has formed", generation, name_,
                     newest_.generation);
    }
    if (request.lost()) {
      AbortAll(Unavailable("a member of {} was lost: generation {} forms", name_, generation));
    }
  }
  Seat seat{.generation = generation, .rank = rank, .group = nullptr};
  if (request.members_size() > 1) {
    // All members are asked at the same time, and none of them waits for a step: what is left is a
    // handshake for each pair.
    const auto size = static_cast<std::size_t>(request.members_size());
    collectives::GroupSpec spec{.job = name_,
                                .generation = generation,
                                .rank = rank,
                                .members = {},
                                .key = key_,
                                .tls = tls_,
                                .form_within = TimeToForm(size),
                                .costs = costs_,
                                .wait_page = wait_page_};
    for (const v1::GroupMember& member : request.members()) {
      spec.members.push_back(
          {.task = fmt::format("{}:{}", member.task().type(), member.task().index()),
           .address = member.address()});
    }
    auto group = collectives::FormGroup(spec, listener_);
    if (!group.ok()) return Unavailable("{}", Message(group.status()));
    seat.group = *std::move(group);
  }
  const MutexLock lock(mutex_);
  newest_ = std::move(seat);
  formed_.push_back(newest_.group);
  changed_.notify_all();
  return Ok();
}

void Seats::AbortAll(const Status& why) {
  std::erase_if(formed_, [](const auto& one) { return one.expired(); });
  for (const auto& one : formed_) {
    if (const auto group = one.lock()) group->Abort(why);
  }
}

Result<Seats::Seat> Seats::Newer(Generation than, TimePoint deadline) {
  const MutexLock lock(mutex_);
  while (!stop_ && newest_.generation <= than) {
    if (changed_.wait_until(mutex_, deadline)) continue;
    return Unavailable("{} has no group of workers newer than generation {}", name_, than);
  }
  if (stop_) return Unavailable("{} ends here", name_);
  return newest_;
}

std::optional<Seats::Seat> Seats::Newer(Generation than) {
  const MutexLock lock(mutex_);
  while (!stop_ && newest_.generation <= than) changed_.wait(mutex_);
  if (stop_) return std::nullopt;
  return newest_;
}

bool Seats::HasNewer(Generation than) {
  const MutexLock lock(mutex_);
  return newest_.generation > than;
}

void Seats::Stop() {
  const MutexLock lock(mutex_);
  stop_ = true;
  AbortAll(Unavailable("{} ends here", name_));
  changed_.notify_all();
}

}  // namespace muster::executor
