#include "collectives/process/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "collectives/packing.h"
#include "collectives/process/crowd.h"
#include "common/base/time_left.h"
#include "common/base/words.h"

namespace muster::collectives {
namespace {

std::vector<std::string> TasksOf(const GroupSpec& spec) {
  std::vector<std::string> tasks;
  for (const GroupMember& member : spec.members) tasks.push_back(member.task);
  return tasks;
}

int MembersHere(const std::vector<std::uint64_t>& hosts, int rank) {
  return static_cast<int>(
      std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rank)]));
}

// Those of the links between hosts, where there are several; the same on all members.
AlgorithmCosts CostsOf(const GroupSpec& spec, const std::vector<std::uint64_t>& hosts) {
  if (!spec.costs.has_value()) return {};
  const bool tcp = spec.transport == Transport::kTcp ||
                   MembersHere(hosts, spec.rank) < static_cast<int>(hosts.size());
  return spec.costs->of(tcp ? LinkKind::kTcp : LinkKind::kUnix);
}

enum class Kind : std::uint8_t {
  kAllReduce,
  kExchange,
  kAllGather,
  kBroadcast,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kCommonMemory,
};

// Shapes, lengths and messages of one member are thousands of numbers; more is no length that was
// meant, and no memory is to be had for it.
constexpr std::uint64_t kMostExchanged = std::uint64_t{1} << 22;

Signature Begin(Kind kind) { return Signature().Add(static_cast<std::uint64_t>(kind)); }

std::string Described(std::span<const ReduceBuffer> buffers) {
  return Joined(buffers, 4, [](const ReduceBuffer& buffer) {
    return fmt::format("{}[{}]", muster::NameOf(buffer.type), fmt::join(buffer.shape, ", "));
  });
}

// Whether an error's text tells of this very call: not of one whose words only begin with its
// words.
bool TellsOf(std::string_view text, std::uint64_t operation, const std::string& call) {
  const std::string words = fmt::format("operation {}, {}", operation, call);
  for (std::size_t at = text.find(words); at != std::string_view::npos;
       at = text.find(words, at + 1)) {
    const std::string_view rest = text.substr(at + words.size());
    if (rest.empty() || rest.front() == ';' || rest.front() == ':') return true;
  }
  return false;
}

// Tells the watch of an operation's long waits.
template <class Call>
class Lasting final : public LongWait {
 public:
  Lasting(Watch& watch, const Call& call, Timeout timeout)
      : watch_(watch), call_(call), limit_(timeout.value_or(Millis(0))) {}
  void OnLong(std::span<const int> waiting) const override {
    watch_.Lasts(call_(), limit_, waiting);
  }

 private:
  Watch& watch_;
  const Call& call_;
  const Millis limit_;
};

}  // namespace

Result<std::unique_ptr<Group>> ProcessGroup::Create(const GroupSpec& spec,
                                                    std::vector<Mesh::Peer> data,
                                                    std::vector<Watch::Link> watches,
                                                    std::optional<SharedMemory> memory,
                                                    const std::vector<std::uint64_t>& hosts) {
  std::unique_ptr<ProcessGroup> group(
      new ProcessGroup(spec, std::move(data), std::move(memory), hosts));
  Mesh& mesh = group->mesh_;
  MUSTER_TRY_ASSIGN(group->watch_,
                    Watch::Create(spec.rank, group->tasks_, std::move(watches),
                                  {spec.wait_page, spec.generation}, [&mesh] { mesh.ShutDown(); }));
  return std::unique_ptr<Group>(std::move(group));
}

ProcessGroup::ProcessGroup(const GroupSpec& spec, std::vector<Mesh::Peer> data,
                           std::optional<SharedMemory> memory,
                           const std::vector<std::uint64_t>& hosts)
    : rank_(spec.rank),
      generation_(spec.generation),
      tasks_(TasksOf(spec)),
      spin_limit_(1),
      mesh_(std::move(data), spec.spin, &spin_limit_, Crowded(MembersHere(hosts, rank_))),
      memory_(std::move(memory)),
      by_memory_(memory_ ? std::make_unique<SharedOperations>(*memory_) : nullptr),
      by_mesh_(mesh_, rank_, {.costs = CostsOf(spec, hosts), .hosts = hosts}, by_memory_.get()),
      best_(memory_ && memory_->size() == size() ? *by_memory_
                                                 : static_cast<Operations&>(by_mesh_)) {}

// Takes the operation's number, does `work`, and on failure breaks the group for good. The error
// names the operation, this member's call, and how long it has waited.
template <class Call, class Work>
Status ProcessGroup::Run(const Signature& signature, Timeout timeout, const Call& call,
                         const Work& work) {
  const Result<std::uint64_t> number = watch_->Begin(signature.value());
  if (!number.ok()) return Annotate(number.status(), call());
  TimePoint deadline = TimePoint::max();
  if (timeout.has_value() && timeout->count() > 0) {
    deadline = After(*timeout);
  }
  const Lasting<Call> lasting(*watch_, call, timeout);
  const Operation operation{
      .tag = {.generation = generation_, .operation = *number, .signature = signature.value()},
      .waiter = watch_->waiter(deadline, lasting)};
  std::vector<int> waiting;
  const Status status = work(operation, waiting);
  if (status.ok()) {
    watch_->End();
    return status;
  }
  const std::string mine = call();
  // How long it has waited; empty: only what has a limit knows when it began.
  const auto after = [&]() -> std::string {
    if (deadline == TimePoint::max()) return "";
    const auto waited = std::chrono::steady_clock::now() - (deadline - *timeout);
    return fmt::format(", after {} ms", std::chrono::ceil<Millis>(waited).count());
  };
  const Status failure = watch_->Fail(Explain(status, *number, mine, timeout, after(), waiting));
  // Who notices that a member is lost knows nothing of operations.
  if (Message(failure).find(fmt::format("operation {},", *number)) != std::string::npos) {
    // What another member has told of its call says nothing of this one's.
    if (failure.code() != StatusCode::kInvalidArgument ||
        TellsOf(Message(failure), *number, mine)) {
      return failure;
    }
    return InvalidArgument("{}; {} calls {}{}", Message(failure),
                           tasks_[static_cast<std::size_t>(rank_)], mine, after());
  }
  return Annotate(failure, fmt::format("operation {}, {}{}", *number, mine, after()));
}

Status ProcessGroup::Explain(const Status& status, std::uint64_t operation, const std::string& call,
                             Timeout timeout, std::string_view after,
                             const std::vector<int>& waiting) {
  const std::string what = fmt::format("operation {}, {}", operation, call);
  if (status.code() == StatusCode::kDeadlineExceeded) {
    return DeadlineExceeded(
        "{}: {} waited {} ms for {}", what, tasks_[static_cast<std::size_t>(rank_)],
        timeout.value_or(std::chrono::milliseconds(0)).count(), watch_->Awaited(waiting));
  }
  if (status.code() == StatusCode::kInvalidArgument && !waiting.empty()) {
    return InvalidArgument("Shape mismatch: {} calls {}; {} calls something else{}",
                           tasks_[static_cast<std::size_t>(rank_)], what,
                           tasks_[static_cast<std::size_t>(waiting.front())], after);
  }
  return Annotate(status, what);
}

Status ProcessGroup::AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                               Timeout timeout) {
  Signature signature = Begin(Kind::kAllReduce).Add(static_cast<std::uint64_t>(reduction));
  for (const ReduceBuffer& buffer : buffers) {
    signature.Add(static_cast<std::uint64_t>(buffer.type)).Add(buffer.shape.size());
    for (const std::int64_t size : buffer.shape) signature.Add(static_cast<std::uint64_t>(size));
  }
  const auto call = [&] {
    return fmt::format("all_reduce {} of {}", NameOf(reduction), Described(buffers));
  };
  return Run(signature, timeout, call,
             [&](const Operation& operation, std::vector<int>& waiting) -> Status {
               for (const ReduceBuffer& buffer : buffers) {
                 if (Reducible(buffer.type)) continue;
                 return InvalidArgument("{} has no sum; convert it to a number type",
                                        muster::NameOf(buffer.type));
               }
               const Status status = best_.AllReduce(operation, reduction, buffers);
               if (!status.ok()) waiting = best_.waiting();
               return status;
             });
}

// Lengths first. All see the same ones, so where one is beyond all bounds, all refuse alike.
Result<std::vector<std::vector<std::int64_t>>> ProcessGroup::Exchange(
    std::string_view call, std::span<const std::int64_t> mine, Timeout timeout) {
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::vector<std::int64_t>> all(n);
  const auto work = [&](const Operation& operation, std::vector<int>& waiting) -> Status {
    std::vector<std::uint64_t> lengths(n);
    const std::uint64_t own = mine.size();
    std::vector<std::span<std::byte>> into;
    for (std::uint64_t& length : lengths) {
      into.push_back(std::as_writable_bytes(std::span(&length, 1)));
    }
    Status status = best_.Gather(operation, std::as_bytes(std::span(&own, 1)), into);
    if (status.ok()) {
      for (std::size_t r = 0; r < n; ++r) {
        if (lengths[r] > kMostExchanged) {
          return InvalidArgument("{} brings {} numbers; at most {} are allowed", tasks_[r],
                                 lengths[r], kMostExchanged);
        }
      }
      for (std::size_t r = 0; r < n; ++r) {
        all[r].resize(lengths[r]);
        into[r] = std::as_writable_bytes(std::span(all[r]));
      }
      status = best_.Gather(operation, std::as_bytes(mine), into);
    }
    if (!status.ok()) waiting = best_.waiting();
    return status;
  };
  MUSTER_TRY(Run(
      Begin(Kind::kExchange).Add(call), timeout,
      [&] { return fmt::format("{}: exchange of shapes", call); }, work));
  return all;
}

// One block of one tensor is gathered where it belongs; all else is packed, gathered, unpacked.
Status ProcessGroup::AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) {
  Signature signature = Begin(Kind::kAllGather);
  const auto n = static_cast<std::size_t>(size());
  std::vector<std::size_t> totals(n);
  bool sound = true;
  for (const GatherBuffer& buffer : buffers) {
    signature.Add(buffer.blocks).Add(buffer.block_bytes.size());
    for (const std::size_t bytes : buffer.block_bytes) signature.Add(bytes);
    sound = sound && buffer.block_bytes.size() == n;
    for (std::size_t r = 0; sound && r < n; ++r) totals[r] += buffer.blocks * buffer.block_bytes[r];
  }
  const auto call = [&] { return fmt::format("all_gather of {} tensors", buffers.size()); };
  return Run(signature, timeout, call,
             [&](const Operation& operation, std::vector<int>& waiting) -> Status {
               if (!sound) return InvalidArgument("the lengths of {} members are needed", n);
               const auto own = static_cast<std::size_t>(rank_);
               std::vector<std::span<std::byte>> into(n);
               const bool whole = buffers.size() == 1 && buffers[0].blocks == 1;
               if (!whole)
                 scratch_.resize(std::accumulate(totals.begin(), totals.end(), totals[own]));
               std::byte* at = whole ? static_cast<std::byte*>(buffers[0].out) : scratch_.data();
               for (std::size_t r = 0; r < n; ++r) {
                 into[r] = {at, totals[r]};
                 at += totals[r];
               }
               std::span<const std::byte> mine;
               if (whole) {
                 mine = {static_cast<const std::byte*>(buffers[0].in), totals[own]};
               } else {
                 mine = {at, totals[own]};
                 for (const GatherBuffer& buffer : buffers) {
                   const std::size_t bytes = buffer.blocks * buffer.block_bytes[own];
                   if (bytes > 0) std::memcpy(at, buffer.in, bytes);
                   at += bytes;
                 }
               }
               if (const Status status = best_.Gather(operation, mine, into); !status.ok()) {
                 waiting = best_.waiting();
                 return status;
               }
               if (whole) return Ok();
               std::vector<const std::byte*> from;
               for (const std::span<std::byte> one : into) from.push_back(one.data());
               for (const GatherBuffer& buffer : buffers) {
                 auto* out = static_cast<std::byte*>(buffer.out);
                 for (std::size_t block = 0; block < buffer.blocks; ++block) {
                   for (std::size_t r = 0; r < n; ++r) {
                     const std::size_t bytes = buffer.block_bytes[r];
                     if (bytes == 0) continue;
                     std::memcpy(out, from[r] + block * bytes, bytes);
                     out += bytes;
                   }
                 }
                 for (std::size_t r = 0; r < n; ++r)
                   from[r] += buffer.blocks * buffer.block_bytes[r];
               }
               return Ok();
             });
}

Status ProcessGroup::Broadcast(std::span<std::byte> data, int root, Timeout timeout) {
  const Signature signature =
      Begin(Kind::kBroadcast).Add(static_cast<std::uint64_t>(root)).Add(data.size());
  const auto call = [&] { return fmt::format("broadcast of {} bytes by {}", data.size(), root); };
  return Run(signature, timeout, call,
             [&](const Operation& operation, std::vector<int>& waiting) -> Status {
               if (root < 0 || root >= size()) {
                 return InvalidArgument("root {} in a group of {}", root, size());
               }
               const Status status = best_.Broadcast(operation, data, root);
               if (!status.ok()) waiting = best_.waiting();
               return status;
             });
}

// The signature has all counts: members that were given others find out before data moves.
Status ProcessGroup::ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                                   Timeout timeout) {
  Signature signature = Begin(Kind::kReduceScatter)
                            .Add(static_cast<std::uint64_t>(reduction))
                            .Add(static_cast<std::uint64_t>(buffer.type))
                            .Add(buffer.counts.size());
  for (const std::size_t count : buffer.counts) signature.Add(count);
  const auto call = [&] {
    return fmt::format("reduce_scatter {} of {}[{}]", NameOf(reduction),
                       muster::NameOf(buffer.type), fmt::join(buffer.counts, " + "));
  };
  return Run(
      signature, timeout, call,
      [&](const Operation& operation, std::vector<int>& waiting) -> Status {
        if (!Reducible(buffer.type)) {
          return InvalidArgument("{} has no sum; convert it to a number type",
                                 muster::NameOf(buffer.type));
        }
        if (buffer.counts.size() != static_cast<std::size_t>(size())) {
          return InvalidArgument("{} counts are given for {} members: one for each is needed",
                                 buffer.counts.size(), size());
        }
        std::vector<Range> ranges;
        std::size_t begin = 0;
        for (const std::size_t count : buffer.counts) {
          ranges.push_back({begin, begin + count});
          begin += count;
        }
        const Status status = best_.ReduceScatter(operation, reduction, buffer.type,
                                                  static_cast<const std::byte*>(buffer.in), ranges,
                                                  static_cast<std::byte*>(buffer.out));
        if (!status.ok()) waiting = best_.waiting();
        return status;
      });
}

Status ProcessGroup::AllToAll(std::span<const std::span<const std::byte>> sends,
                              std::span<const std::span<std::byte>> receives, Timeout timeout) {
  const auto call = [] { return std::string("all_to_all"); };
  return Run(Begin(Kind::kAllToAll), timeout, call,
             [&](const Operation& operation, std::vector<int>& waiting) -> Status {
               const auto n = static_cast<std::size_t>(size());
               const auto own = static_cast<std::size_t>(rank_);
               if (sends.size() != n || receives.size() != n) {
                 return InvalidArgument(
                     "{} parts to send and {} to receive are given for {} members: one for each is "
                     "needed",
                     sends.size(), receives.size(), n);
               }
               if (sends[own].size() != receives[own].size()) {
                 return InvalidArgument("{} sends itself {} bytes, and has room for {}",
                                        tasks_[own], sends[own].size(), receives[own].size());
               }
               const Status status = best_.AllToAll(operation, sends, receives);
               if (!status.ok()) waiting = best_.waiting();
               return status;
             });
}

Status ProcessGroup::Barrier(Timeout timeout) {
  return Run(
      Begin(Kind::kBarrier), timeout, [] { return std::string("barrier"); },
      [&](const Operation& operation, std::vector<int>& waiting) -> Status {
        const Status status = best_.Barrier(operation);
        if (!status.ok()) waiting = best_.waiting();
        return status;
      });
}

Result<std::shared_ptr<std::byte>> ProcessGroup::AllocateCommon(std::size_t bytes,
                                                                Timeout timeout) {
  std::shared_ptr<std::byte> mine;
  const auto work = [&](const Operation& operation, std::vector<int>& waiting) -> Status {
    MUSTER_TRY(CommonMemory::Check(bytes, size()));
    Status status = Ok();
    if (memory_.has_value() && memory_->size() == size()) {
      auto memory = MapCommonMemory(operation, bytes);
      status = memory.status();
      if (memory.ok()) {
        mine = std::shared_ptr<std::byte>(*memory, (*memory)->mine());
        by_memory_->Know(*std::move(memory));
      }
    } else {
      MUSTER_TRY_ASSIGN(mine, OrdinaryMemory(bytes));
      status = best_.Barrier(operation);
    }
    if (!status.ok()) waiting = best_.waiting();
    return status;
  };
  MUSTER_TRY(Run(
      Begin(Kind::kCommonMemory).Add(bytes), timeout,
      [&] { return fmt::format("common memory of {} bytes", bytes); }, work));
  return mine;
}

// Rank 0 makes it, and hands it to the others on their Unix sockets, which carry nothing else where
// all operations go through memory.
Result<std::shared_ptr<CommonMemory>> ProcessGroup::MapCommonMemory(const Operation& operation,
                                                                    std::size_t bytes) {
  std::shared_ptr<CommonMemory> memory;
  if (rank_ == 0) {
    MUSTER_TRY_ASSIGN(memory, CommonMemory::Make(rank_, size(), bytes));
    for (int r = 1; r < size(); ++r) MUSTER_TRY(mesh_.HandOver(r, memory->descriptor()));
  }
  MUSTER_TRY(best_.Barrier(operation));
  if (rank_ != 0) {
    MUSTER_TRY_ASSIGN(net::Fd descriptor, mesh_.TakeOver(0));
    MUSTER_TRY_ASSIGN(memory, CommonMemory::Map(rank_, size(), bytes, std::move(descriptor)));
  }
  MUSTER_TRY(best_.Barrier(operation));
  memory->HandedOn();
  return memory;
}

void ProcessGroup::Abort(const Status& why) { watch_->Abort(why); }

}  // namespace muster::collectives
