#include "collectives/process/mesh_operations.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "collectives/packing.h"

namespace muster::collectives {
namespace {

// Buffers below this size travel together with their neighbours of the same type, up to kPack.
constexpr std::size_t kAlone = std::size_t{128} << 10;
constexpr std::size_t kPack = std::size_t{1} << 20;
// More than this is reduced piece by piece, so that what has come is still in a cache when it is
// added, and what waits to be added has a bound.
constexpr std::size_t kSegment = std::size_t{4} << 20;

std::size_t Length(Range range) { return range.end - range.begin; }

}  // namespace

MeshOperations::MeshOperations(Mesh& mesh, int rank, Options options, SharedOperations* on_host)
    : mesh_(mesh),
      rank_(rank),
      options_(std::move(options)),
      on_host_(on_host),
      speakers_(mesh.size()) {
  const std::set<std::uint64_t> different(options_.hosts.begin(), options_.hosts.end());
  if (different.size() <= 1 || different.size() == options_.hosts.size()) return;
  speakers_ = static_cast<int>(different.size());
  for (const std::uint64_t host : options_.hosts) {
    hosts_.push_back(static_cast<int>(std::distance(different.begin(), different.find(host))));
  }
}

std::span<std::byte> MeshOperations::Scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return {scratch_.data(), bytes};
}

// Small neighbours are copied together, reduced as one, and copied apart again.
Status MeshOperations::AllReduce(const Operation& operation, Reduction reduction,
                                 std::span<const ReduceBuffer> buffers) {
  const auto bytes = [](const ReduceBuffer& buffer) {
    return buffer.count() * SizeOf(buffer.type);
  };
  for (std::size_t i = 0; i < buffers.size();) {
    const DType type = buffers[i].type;
    std::size_t last = i;
    std::size_t count = 0;
    while (last < buffers.size() && buffers[last].type == type && bytes(buffers[last]) < kAlone &&
           count * SizeOf(type) < kPack) {
      count += buffers[last++].count();
    }
    if (last <= i + 1) {
      MUSTER_TRY(ReduceFlat(operation, reduction, type,
                            static_cast<const std::byte*>(buffers[i].in),
                            static_cast<std::byte*>(buffers[i].out), buffers[i].count()));
      ++i;
      continue;
    }
    const std::size_t element = SizeOf(type);
    const std::size_t result = SizeOf(ResultType(reduction, type));
    packed_.resize(count * (element + result));
    std::byte* const in = packed_.data() + count * result;
    std::size_t at = 0;
    for (std::size_t b = i; b < last; ++b) {
      if (bytes(buffers[b]) > 0) std::memcpy(in + at, buffers[b].in, bytes(buffers[b]));
      at += bytes(buffers[b]);
    }
    MUSTER_TRY(ReduceFlat(operation, reduction, type, in, packed_.data(), count));
    at = 0;
    for (; i < last; ++i) {
      const std::size_t length = buffers[i].count() * result;
      if (length > 0) std::memcpy(buffers[i].out, packed_.data() + at, length);
      at += length;
    }
  }
  // Also when there was nothing to add: all have to come.
  const bool nothing = std::all_of(buffers.begin(), buffers.end(),
                                   [&](const ReduceBuffer& buffer) { return bytes(buffer) == 0; });
  return nothing ? Barrier(operation) : Ok();
}

Status MeshOperations::ReduceFlat(const Operation& operation, Reduction reduction, DType type,
                                  const std::byte* in, std::byte* out, std::size_t count) {
  const std::size_t element = SizeOf(type);
  const std::size_t result = SizeOf(ResultType(reduction, type));
  const std::size_t most = kSegment / std::max(element, result);
  for (std::size_t at = 0; at < count; at += most) {
    const std::size_t part = std::min(most, count - at);
    const bool by_hosts = AddsUp(reduction, type) && !hosts_.empty();
    const Algorithm algorithm = Choose(by_hosts ? speakers_ : size(), part * element,
                                       !AddsUp(reduction, type), options_.costs);
    if (by_hosts && on_host_ != nullptr) {
      MUSTER_TRY(ReduceByHost(operation, reduction, type, in + at * element, out + at * result,
                              part, algorithm));
      continue;
    }
    const Schedule schedule = by_hosts ? HierarchicalSchedule(algorithm, rank_, hosts_, part)
                                       : AllReduceSchedule(algorithm, rank_, size(), part);
    const bool direct = !by_hosts && algorithm == Algorithm::kDirect;
    MUSTER_TRY(direct ? RunDirect(operation, reduction, type, in + at * element, out + at * result,
                                  schedule)
                      : RunRounds(operation, reduction, type, in + at * element, out + at * result,
                                  part, schedule));
  }
  return Ok();
}

Status MeshOperations::ReduceByHost(const Operation& operation, Reduction reduction, DType type,
                                    const std::byte* in, std::byte* out, std::size_t count,
                                    Algorithm between_hosts) {
  const auto on_host = [&](Status status) {
    failed_on_host_ = !status.ok();
    return status;
  };
  const ReduceBuffer whole{type, {static_cast<std::int64_t>(count)}, in, out};
  MUSTER_TRY(on_host(on_host_->AllReduce(operation, WhileAdding(reduction), {&whole, 1})));
  MUSTER_TRY(RunRounds(operation, reduction, type, out, out, count,
                       BetweenHostsSchedule(between_hosts, rank_, hosts_, count)));
  // The lowest rank of the host has it, and is the memory's first.
  return on_host(on_host_->Broadcast(operation, {out, count * SizeOf(type)}, 0));
}

Status MeshOperations::ReduceScatter(const Operation& operation, Reduction reduction, DType type,
                                     const std::byte* in, std::span<const Range> ranges,
                                     std::byte* out) {
  // Also when there is nothing to add: all have to come.
  const bool nothing = std::all_of(ranges.begin(), ranges.end(),
                                   [](const Range& range) { return Length(range) == 0; });
  return nothing ? Barrier(operation) : DirectReduce(operation, reduction, type, in, ranges, out);
}

Status MeshOperations::DirectReduce(const Operation& operation, Reduction reduction, DType type,
                                    const std::byte* in, std::span<const Range> ranges,
                                    std::byte* out) {
  const std::size_t element = SizeOf(type);
  const Range own = ranges[static_cast<std::size_t>(rank_)];
  const std::size_t bytes = Length(own) * element;
  const std::span<std::byte> scratch = Scratch(bytes * static_cast<std::size_t>(size()));
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  sends_.clear();
  receives_.clear();
  for (int step = 0; step < size(); ++step) {
    // Not all to the same member at the same time.
    const int r = (rank_ + step) % size();
    const auto index = static_cast<std::size_t>(r);
    if (r == rank_) {
      sources[index] = in + own.begin * element;
      continue;
    }
    sources[index] = scratch.data() + index * bytes;
    if (Length(ranges[index]) > 0) {
      sends_.push_back({r, {in + ranges[index].begin * element, Length(ranges[index]) * element}});
    }
    if (bytes > 0) receives_.push_back({r, scratch.subspan(index * bytes, bytes)});
  }
  MUSTER_TRY(mesh_.Exchange(operation.tag, sends_, receives_, operation.waiter));
  void* const to = out;
  ReduceRange(reduction, type, sources, {&to, 1}, 0, Length(own));
  return Ok();
}

Status MeshOperations::RunDirect(const Operation& operation, Reduction reduction, DType type,
                                 const std::byte* in, std::byte* out, const Schedule& schedule) {
  const std::size_t result = SizeOf(ResultType(reduction, type));
  std::vector<Range> ranges(static_cast<std::size_t>(size()));
  ranges[static_cast<std::size_t>(rank_)] = schedule.owned;
  for (const Round& round : schedule.reduce) {
    for (const Transfer& send : round.sends) {
      ranges[static_cast<std::size_t>(send.peer)] = send.range;
    }
  }
  MUSTER_TRY(
      DirectReduce(operation, reduction, type, in, ranges, out + schedule.owned.begin * result));
  return SpreadRounds(operation, result, out, schedule.spread);
}

Status MeshOperations::RunRounds(const Operation& operation, Reduction reduction, DType type,
                                 const std::byte* in, std::byte* out, std::size_t count,
                                 const Schedule& schedule) {
  const std::size_t element = SizeOf(type);
  if (in != out && count > 0) std::memcpy(out, in, count * element);
  for (const Round& round : schedule.reduce) {
    MUSTER_TRY(ReduceRound(operation, WhileAdding(reduction), type, out, round));
  }
  if (reduction == Reduction::kMean && Length(schedule.owned) > 0) {
    DivideRange(type, out, static_cast<std::size_t>(size()), schedule.owned.begin,
                schedule.owned.end);
  }
  return SpreadRounds(operation, element, out, schedule.spread);
}

// What comes is added to this member's own, all in rank order.
Status MeshOperations::ReduceRound(const Operation& operation, Reduction reduction, DType type,
                                   std::byte* data, const Round& round) {
  const std::size_t element = SizeOf(type);
  std::size_t bytes = 0;
  for (const Transfer& receive : round.receives) bytes += Length(receive.range) * element;
  std::span<std::byte> scratch = Scratch(bytes);
  sends_.clear();
  receives_.clear();
  for (const Transfer& send : round.sends) {
    sends_.push_back(
        {send.peer, {data + send.range.begin * element, Length(send.range) * element}});
  }
  for (const Transfer& receive : round.receives) {
    receives_.push_back({receive.peer, scratch.first(Length(receive.range) * element)});
    scratch = scratch.subspan(Length(receive.range) * element);
  }
  MUSTER_TRY(mesh_.Exchange(operation.tag, sends_, receives_, operation.waiter));
  if (round.receives.empty()) return Ok();
  const Range range = round.receives.front().range;
  std::vector<std::pair<int, const void*>> brought = {{rank_, data + range.begin * element}};
  for (const Incoming& one : receives_) brought.emplace_back(one.peer, one.into.data());
  std::sort(brought.begin(), brought.end());
  std::vector<const void*> sources;
  for (const auto& [peer, bytes_of] : brought) sources.push_back(bytes_of);
  void* const to = data + range.begin * element;
  ReduceRange(reduction, type, sources, {&to, 1}, 0, Length(range));
  return Ok();
}

Status MeshOperations::SpreadRounds(const Operation& operation, std::size_t element,
                                    std::byte* data, std::span<const Round> rounds) {
  for (const Round& round : rounds) {
    sends_.clear();
    receives_.clear();
    for (const Transfer& send : round.sends) {
      sends_.push_back(
          {send.peer, {data + send.range.begin * element, Length(send.range) * element}});
    }
    for (const Transfer& receive : round.receives) {
      receives_.push_back(
          {receive.peer, {data + receive.range.begin * element, Length(receive.range) * element}});
    }
    MUSTER_TRY(mesh_.Exchange(operation.tag, sends_, receives_, operation.waiter));
  }
  return Ok();
}

Status MeshOperations::Gather(const Operation& operation, std::span<const std::byte> mine,
                              std::span<const std::span<std::byte>> into) {
  sends_.clear();
  receives_.clear();
  for (int step = 1; step < size(); ++step) {
    const int r = (rank_ + step) % size();
    // Empty ones too: all have to come.
    sends_.push_back({r, mine});
    receives_.push_back({r, into[static_cast<std::size_t>(r)]});
  }
  MUSTER_TRY(mesh_.Exchange(operation.tag, sends_, receives_, operation.waiter));
  const std::span<std::byte> own = into[static_cast<std::size_t>(rank_)];
  if (!own.empty() && own.data() != mine.data()) std::memcpy(own.data(), mine.data(), own.size());
  return Ok();
}

Status MeshOperations::Broadcast(const Operation& operation, std::span<std::byte> data, int root) {
  if (data.empty()) return Barrier(operation);
  MUSTER_TRY(
      SpreadRounds(operation, 1, data.data(), BroadcastRounds(rank_, size(), root, data.size())));
  return Ok();
}

Status MeshOperations::AllToAll(const Operation& operation,
                                std::span<const std::span<const std::byte>> sends,
                                std::span<const std::span<std::byte>> receives) {
  sends_.clear();
  receives_.clear();
  for (int step = 1; step < size(); ++step) {
    const int r = (rank_ + step) % size();
    sends_.push_back({r, sends[static_cast<std::size_t>(r)]});
    receives_.push_back({r, receives[static_cast<std::size_t>(r)]});
  }
  MUSTER_TRY(mesh_.Exchange(operation.tag, sends_, receives_, operation.waiter));
  const std::span<const std::byte> own = sends[static_cast<std::size_t>(rank_)];
  if (!own.empty()) {
    std::memcpy(receives[static_cast<std::size_t>(rank_)].data(), own.data(), own.size());
  }
  return Ok();
}

// Each speaks to those at distances 1, 2, 4, ...: who has heard of all of them has heard of all.
Status MeshOperations::Barrier(const Operation& operation) {
  for (int distance = 1; distance < size(); distance *= 2) {
    const Outgoing send{(rank_ + distance) % size(), {}};
    const Incoming receive{(rank_ - distance + size()) % size(), {}};
    MUSTER_TRY(mesh_.Exchange(operation.tag, {&send, 1}, {&receive, 1}, operation.waiter));
  }
  return Ok();
}

}  // namespace muster::collectives
