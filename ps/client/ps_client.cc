#include "ps/client/ps_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/limits.h"
#include "common/net/arena.h"
#include "muster/v1/common.pb.h"
#include "ps/client/server_link.h"
#include "ps/client/variables.h"

namespace muster::ps {
namespace {

class PsClientImpl final : public PsClient {
 public:
  PsClientImpl(VariableMap variables, net::Arena arena, Options options)
      : variables_(std::move(variables)),
        arena_(std::move(arena)),
        options_(std::move(options)),
        spin_(UsableProcessors()) {}

  Status Open(const v1::JobPlan& plan);

  std::span<float> Value(std::uint32_t variable) override;
  std::span<float> Gradient(std::uint32_t variable) override;
  Status PullDense(std::span<const std::uint32_t> variables, ClosureId closure) override;
  Result<std::span<float>> PullRows(std::uint32_t variable, std::span<const std::int64_t> ids,
                                    ClosureId closure) override;
  Result<std::span<float>> RowGradientBuffer(std::uint32_t variable, std::size_t n) override;
  Status Push(ClosureId closure, Attempt attempt, std::span<const std::uint32_t> dense,
              std::span<const RowGradient> rows) override;
  Status Assign(std::uint32_t variable, std::span<const float> value) override;
  LinkBytes bytes() const override;

 private:
  // One link and the call that is being made on it.
  struct Server {
    std::unique_ptr<ServerLink> link;
    Call call;
    Status status;
  };

  void Begin(Verb verb, ClosureId closure = {}, Attempt attempt = {});
  void AddDense(const VariableRef& variable, std::span<float> whole);
  Status AddRowGradient(const RowGradient& gradient);
  // Makes the calls: all are sent before the first answer is awaited.
  Status Execute();
  Status CallAll();
  // After a call: no server may read later what the next call writes. One that was given up (it
  // was stopped, say) may still have its request before it.
  Status LeaveAbandoned();
  Status CheckCount(const VariableRef& variable, std::size_t rows) const;

  VariableMap variables_;
  net::Arena arena_;
  const Options options_;
  net::SpinLimit spin_;
  std::vector<Server> servers_;
  // Not OK: the arena could not be renewed, nothing may be sent from it.
  Status arena_status_;
};

// One link to each server that the plan names, all within one deadline.
Status PsClientImpl::Open(const v1::JobPlan& plan) {
  MUSTER_TRY(variables_.Allocate(arena_));
  const TimePoint deadline = std::chrono::steady_clock::now() + options_.timeout;
  for (const std::uint32_t index : variables_.servers()) {
    const auto address = std::ranges::find(plan.ps(), index, &v1::PsAddress::index);
    if (address == plan.ps().end()) {
      return InvalidArgument("the plan places shards on ps:{} and does not say where that is",
                             index);
    }
    const ServerLink::Target target{.index = index,
                                    .tcp_address = address->data().tcp_address(),
                                    .unix_path = address->data().unix_path(),
                                    .host_id = address->data().host_id()};
    const WireSubject job{.job = JobNumber(plan.job_number()), .view = ViewId(plan.view())};
    const ServerSession::Options session{.key = options_.key,
                                         .tls = options_.tls,
                                         .role = RoleOf(kModelRole, plan.job_id()),
                                         .subject = SubjectOf(job),
                                         .link = options_.link,
                                         .host_id = options_.host_id,
                                         .ping_after = options_.ping_after,
                                         .ping_limit = options_.ping_limit,
                                         .spin = options_.spin};
    servers_.push_back({.link = std::make_unique<ServerLink>(target, job, session, arena_, &spin_),
                        .call = {},
                        .status = {}});
    MUSTER_TRY(servers_.back().link->Connect(deadline));
  }
  return Ok();
}

std::span<float> PsClientImpl::Value(std::uint32_t variable) {
  const auto found = variables_.FindDense(variable);
  return found.ok() ? (*found)->value : std::span<float>();
}

std::span<float> PsClientImpl::Gradient(std::uint32_t variable) {
  const auto found = variables_.FindDense(variable);
  return found.ok() ? (*found)->gradient : std::span<float>();
}

void PsClientImpl::Begin(Verb verb, ClosureId closure, Attempt attempt) {
  for (Server& server : servers_) {
    server.call.verb = verb;
    server.call.closure = closure;
    server.call.attempt = attempt;
    server.call.entries.clear();
  }
}

void PsClientImpl::AddDense(const VariableRef& variable, std::span<float> whole) {
  const auto row = static_cast<std::size_t>(variable.row_elements);
  for (const ShardRef& shard : variable.shards) {
    servers_[shard.server].call.entries.push_back(
        {.shard = shard.wire,
         .access = WireAccess::kDense,
         .ids = {},
         .values = whole.subspan(static_cast<std::size_t>(shard.row_offset) * row,
                                 static_cast<std::size_t>(shard.rows) * row)});
  }
}

Status PsClientImpl::PullDense(std::span<const std::uint32_t> variables, ClosureId closure) {
  Begin(Verb::kPullDense, closure);
  for (const std::uint32_t id : variables) {
    MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindDense(id));
    AddDense(*variable, variable->value);
  }
  return Execute();
}

Status PsClientImpl::CheckCount(const VariableRef& variable, std::size_t rows) const {
  if (rows <= variable.capacity) return Ok();
  return ResourceExhausted(
      "variable {}: {} rows in one request, at most {}: make ids unique, or the "
      "batch smaller",
      variable.name, rows, variable.capacity);
}

Result<std::span<float>> PsClientImpl::PullRows(std::uint32_t id, std::span<const std::int64_t> ids,
                                                ClosureId closure) {
  MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindEmbedding(id));
  MUSTER_TRY(CheckCount(*variable, ids.size()));
  const std::span<std::int64_t> local = variable->pull.ids.first(ids.size());
  MUSTER_TRY_ASSIGN(const RowSplit split, SplitRows(*variable, ids, local));
  const auto row = static_cast<std::size_t>(variable->row_elements);
  const std::span<float> out = variable->pull.rows.first(ids.size() * row);
  const std::span<float> into = split.order.empty() ? out : variable->pull.sorted.first(out.size());

  Begin(Verb::kPullRows, closure);
  for (const RowSplit::Segment& segment : split.segments) {
    if (segment.count == 0) continue;
    servers_[segment.shard->server].call.entries.push_back(
        {.shard = segment.shard->wire,
         .access = WireAccess::kRows,
         .ids = local.subspan(segment.first, segment.count),
         .values = into.subspan(segment.first * row, segment.count * row)});
  }
  MUSTER_TRY(Execute());
  for (std::size_t i = 0; i < split.order.size(); ++i) {
    std::memcpy(out.data() + split.order[i] * row, into.data() + i * row, row * sizeof(float));
  }
  return out;
}

Result<std::span<float>> PsClientImpl::RowGradientBuffer(std::uint32_t id, std::size_t n) {
  MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindEmbedding(id));
  MUSTER_TRY(CheckCount(*variable, n));
  return variable->push.rows.first(n * static_cast<std::size_t>(variable->row_elements));
}

// Brings the rows into the shards' order where they are not in it yet, and lists each shard's part.
Status PsClientImpl::AddRowGradient(const RowGradient& gradient) {
  MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindEmbedding(gradient.variable));
  MUSTER_TRY(CheckCount(*variable, gradient.ids.size()));
  const auto row = static_cast<std::size_t>(variable->row_elements);
  const std::size_t count = gradient.ids.size();
  if (gradient.rows.size() != count * row ||
      (count > 0 && gradient.rows.data() != variable->push.rows.data())) {
    return InvalidArgument(
        "variable {}: the gradient of {} rows must be {} values in the buffer "
        "that RowGradientBuffer() gave; {} given",
        variable->name, count, count * row, gradient.rows.size());
  }
  const std::span<std::int64_t> local = variable->push.ids.first(count);
  MUSTER_TRY_ASSIGN(const RowSplit split, SplitRows(*variable, gradient.ids, local));
  std::span<float> rows = variable->push.rows.first(count * row);
  if (!split.order.empty()) {
    const std::span<float> sorted = variable->push.sorted.first(count * row);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(sorted.data() + i * row, rows.data() + split.order[i] * row, row * sizeof(float));
    }
    rows = sorted;
  }
  // A shard without ids gets the closure's mark all the same.
  for (const RowSplit::Segment& segment : split.segments) {
    servers_[segment.shard->server].call.entries.push_back(
        {.shard = segment.shard->wire,
         .access = WireAccess::kRows,
         .ids = local.subspan(segment.first, segment.count),
         .values = rows.subspan(segment.first * row, segment.count * row)});
  }
  return Ok();
}

Status PsClientImpl::Push(ClosureId closure, Attempt attempt, std::span<const std::uint32_t> dense,
                          std::span<const RowGradient> rows) {
  Begin(Verb::kPush, closure, attempt);
  for (const std::uint32_t id : dense) {
    MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindDense(id));
    AddDense(*variable, variable->gradient);
  }
  for (const RowGradient& gradient : rows) MUSTER_TRY(AddRowGradient(gradient));
  return Execute();
}

Status PsClientImpl::Assign(std::uint32_t id, std::span<const float> value) {
  MUSTER_TRY_ASSIGN(const VariableRef* variable, variables_.FindDense(id));
  if (value.size() != variable->value.size()) {
    return InvalidArgument("variable {}: {} values assigned, it has {}", variable->name,
                           value.size(), variable->value.size());
  }
  if (value.data() != variable->value.data()) {
    std::memmove(variable->value.data(), value.data(), value.size_bytes());
  }
  Begin(Verb::kAssign);
  AddDense(*variable, variable->value);
  return Execute();
}

Status PsClientImpl::Execute() {
  MUSTER_TRY(arena_status_);
  const Status status = CallAll();
  arena_status_ = LeaveAbandoned();
  return status.ok() ? arena_status_ : status;
}

Status PsClientImpl::LeaveAbandoned() {
  bool abandoned = false;
  for (Server& server : servers_) abandoned = server.link->TakeAbandoned() || abandoned;
  if (!abandoned) return Ok();
  for (Server& server : servers_) server.link->CloseLocal();
  return arena_.Renew();
}

// One round to all servers: a link that broke is made again once, and the first error is kept, but
// that the view is over outranks it.
Status PsClientImpl::CallAll() {
  std::uint64_t bytes = 0;
  for (const Server& server : servers_) {
    for (const CallEntry& entry : server.call.entries) bytes += entry.values.size_bytes();
  }
  const TimePoint deadline = std::chrono::steady_clock::now() + options_.timeout + TimeFor(bytes);
  const auto make = [deadline](Server& server) {
    ServerLink& link = *server.link;
    server.status = link.connected() ? Ok() : link.ConnectOnce(deadline);
    if (server.status.ok()) server.status = link.Send(server.call, deadline);
  };
  for (Server& server : servers_) {
    server.status = Ok();
    if (!server.call.entries.empty()) make(server);
  }
  Status first;
  for (Server& server : servers_) {
    if (server.call.entries.empty()) continue;
    if (server.status.ok()) server.status = server.link->Receive(server.call, deadline);
    // The connection broke: once more on a new one. Whatever the server had done before, repeating
    // a request does no harm.
    const bool again =
        !server.link->connected() && (server.status.code() == StatusCode::kUnavailable ||
                                      server.status.code() == StatusCode::kDataLoss);
    if (again) {
      make(server);
      if (server.status.ok()) server.status = server.link->Receive(server.call, deadline);
    }
    const bool over = server.status.code() == StatusCode::kAborted;
    if (first.ok() || (over && first.code() != StatusCode::kAborted)) first = server.status;
  }
  return first;
}

LinkBytes PsClientImpl::bytes() const {
  LinkBytes all;
  for (const Server& server : servers_) {
    all.tcp += server.link->bytes().tcp;
    all.local += server.link->bytes().local;
  }
  return all;
}

}  // namespace

Result<std::unique_ptr<PsClient>> PsClient::Connect(const v1::JobPlan& plan, Options options) {
  MUSTER_TRY_ASSIGN(VariableMap variables, VariableMap::Create(plan));
  const bool shared =
      options.link != LinkMode::kTcp &&
      std::ranges::any_of(plan.ps(), [&options](const v1::PsAddress& ps) {
        return !ps.data().unix_path().empty() && ps.data().host_id() == options.host_id;
      });
  MUSTER_TRY_ASSIGN(net::Arena arena, net::Arena::Create(variables.arena_bytes(), shared));
  auto client =
      std::make_unique<PsClientImpl>(std::move(variables), std::move(arena), std::move(options));
  MUSTER_TRY(client->Open(plan));
  return std::unique_ptr<PsClient>(std::move(client));
}

}  // namespace muster::ps
