#include "collectives/joint_group.h"

#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "collectives/kernels.h"
#include "collectives/packing.h"
#include "collectives/together.h"
#include "common/base/time_left.h"

namespace muster::collectives {
namespace {

using Bytes = std::vector<std::byte>;
using Brought = std::span<const std::span<const ReduceBuffer>>;

// All replicas' `in` of buffer b.
std::vector<const void*> SourcesOf(Brought brought, std::size_t b) {
  std::vector<const void*> sources;
  for (const std::span<const ReduceBuffer> buffers : brought) sources.push_back(buffers[b].in);
  return sources;
}

// What one process refuses ends the group: the others wait for it.
Status Refused(Group& between, Status why) {
  if (!why.ok()) between.Abort(why);
  return why;
}

// Everybody's elements, summed at once.
Status ReduceGathered(Group& between, Reduction reduction, Brought brought, std::size_t b,
                      Timeout timeout) {
  const ReduceBuffer& buffer = brought[0][b];
  const std::size_t bytes = buffer.count() * SizeOf(buffer.type);
  Bytes mine(bytes * brought.size());
  for (std::size_t r = 0; r < brought.size() && bytes > 0; ++r) {
    std::memcpy(mine.data() + r * bytes, brought[r][b].in, bytes);
  }
  const auto processes = static_cast<std::size_t>(between.size());
  Bytes everybody(mine.size() * processes);
  const GatherBuffer gather{.in = mine.data(),
                            .out = everybody.data(),
                            .blocks = 1,
                            .block_bytes = std::vector<std::size_t>(processes, mine.size())};
  MUSTER_TRY(between.AllGather({&gather, 1}, timeout));
  std::vector<const void*> sources;
  for (std::size_t r = 0; r < brought.size() * processes; ++r) {
    sources.push_back(everybody.data() + r * bytes);
  }
  std::vector<void*> results;
  for (const std::span<const ReduceBuffer> buffers : brought) results.push_back(buffers[b].out);
  ReduceRange(reduction, buffer.type, sources, results, 0, buffer.count());
  return Ok();
}

}  // namespace

// What would be rounded twice goes buffer by buffer, all else in one call of the group.
Status ReduceJointly(Group& between, Reduction reduction,
                     std::span<const std::span<const ReduceBuffer>> brought, Timeout timeout) {
  MUSTER_TRY(Refused(between, CheckSame(brought)));
  const TimeLeft left(timeout);
  const std::span<const ReduceBuffer> buffers = brought[0];
  const std::size_t members = brought.size() * static_cast<std::size_t>(between.size());
  // The replicas' sums go into replica 0's result, from there between processes, and to the
  // other replicas.
  std::vector<ReduceBuffer> sums;
  std::vector<std::size_t> which;
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const ReduceBuffer& first = buffers[b];
    if (!AddsUp(reduction, first.type)) {
      MUSTER_TRY(ReduceGathered(between, reduction, brought, b, left()));
      continue;
    }
    void* const out = first.out;
    ReduceRange(WhileAdding(reduction), first.type, SourcesOf(brought, b), {&out, 1}, 0,
                first.count());
    sums.push_back({.type = first.type, .shape = first.shape, .in = out, .out = out});
    which.push_back(b);
  }
  if (sums.empty() && !buffers.empty()) return Ok();
  MUSTER_TRY(between.AllReduce(WhileAdding(reduction), sums, left()));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::size_t count = sums[i].count();
    if (reduction == Reduction::kMean) {
      DivideRange(sums[i].type, sums[i].out, members, 0, count);
    }
    for (std::size_t r = 1; r < brought.size() && count > 0; ++r) {
      std::memcpy(brought[r][which[i]].out, sums[i].out, count * SizeOf(sums[i].type));
    }
  }
  return Ok();
}

Status JointGroup::AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                             Timeout timeout) {
  if (replicas_ == 1) return between_.AllReduce(reduction, buffers, timeout);
  struct Mine {
    std::span<const ReduceBuffer> buffers;
    TimeLeft left;
    Status status;
  } mine{buffers, TimeLeft(timeout), Ok()};
  const auto work = [&](std::span<Mine* const> all) -> Status {
    std::vector<std::span<const ReduceBuffer>> brought;
    for (const Mine* call : all) brought.push_back(call->buffers);
    return ReduceJointly(between_, reduction, brought, TimeLeft::OfFirst(all)());
  };
  return Together(place_, replica_, fmt::format("all_reduce {}", NameOf(reduction)), mine, timeout,
                  work);
}

Result<std::vector<std::vector<std::int64_t>>> JointGroup::Exchange(
    std::string_view call, std::span<const std::int64_t> mine, Timeout timeout) {
  struct Call {
    std::span<const std::int64_t> mine;
    std::vector<std::vector<std::int64_t>> all;
    TimeLeft left;
    Status status;
  } brought{mine, {}, TimeLeft(timeout), Ok()};
  const auto work = [&](std::span<Call* const> here) -> Status {
    // For each replica its length, then its numbers.
    std::vector<std::int64_t> packed;
    for (const Call* one : here) {
      packed.push_back(static_cast<std::int64_t>(one->mine.size()));
      packed.insert(packed.end(), one->mine.begin(), one->mine.end());
    }
    MUSTER_TRY_ASSIGN(const auto processes,
                      between_.Exchange(call, packed, TimeLeft::OfFirst(here)()));
    std::vector<std::vector<std::int64_t>> all;
    for (const std::vector<std::int64_t>& process : processes) {
      for (std::size_t at = 0; at < process.size();) {
        const auto length = static_cast<std::size_t>(process[at]);
        if (length > process.size() - at - 1) return Internal("{}: shapes that do not fit", call);
        const auto begin = process.begin() + static_cast<std::ptrdiff_t>(at) + 1;
        all.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
        at += 1 + length;
      }
    }
    for (Call* one : here) one->all = all;
    return Ok();
  };
  MUSTER_TRY(Together(place_, replica_, fmt::format("{}: exchange of shapes", call), brought,
                      timeout, work));
  return std::move(brought.all);
}

// Replica 0 packs what the replicas of this process bring, gathers it between the processes, and
// copies the whole to the other replicas.
Status JointGroup::AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) {
  struct Call {
    std::span<const GatherBuffer> buffers;
    TimeLeft left;
    Status status;
  } mine{buffers, TimeLeft(timeout), Ok()};
  const auto replicas = static_cast<std::size_t>(replicas_);
  const auto first = static_cast<std::size_t>(between_.rank()) * replicas;
  const auto work = [&](std::span<Call* const> here) -> Status {
    const TimeLeft left = TimeLeft::OfFirst(here);
    std::vector<std::span<const GatherBuffer>> brought;
    for (const Call* one : here) brought.push_back(one->buffers);
    MUSTER_TRY(Refused(between_, CheckSame(brought, size())));
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      const std::vector<std::size_t>& lengths = here[0]->buffers[b].block_bytes;
      const std::size_t blocks = here[0]->buffers[b].blocks;
      // A block of a process is that of its replicas, one after another.
      GatherBuffer joined;
      joined.out = here[0]->buffers[b].out;
      joined.blocks = blocks;
      for (std::size_t r = 0; r < lengths.size(); r += replicas) {
        joined.block_bytes.push_back(std::accumulate(
            lengths.begin() + static_cast<std::ptrdiff_t>(r),
            lengths.begin() + static_cast<std::ptrdiff_t>(r + replicas), std::size_t{0}));
      }
      Bytes packed(joined.block_bytes[static_cast<std::size_t>(between_.rank())] * blocks);
      std::byte* at = packed.data();
      for (std::size_t block = 0; block < blocks; ++block) {
        for (std::size_t r = 0; r < replicas; ++r) {
          const std::size_t bytes = lengths[first + r];
          if (bytes == 0) continue;
          const auto* in = static_cast<const std::byte*>(here[r]->buffers[b].in);
          std::memcpy(at, in + block * bytes, bytes);
          at += bytes;
        }
      }
      joined.in = packed.data();
      MUSTER_TRY(between_.AllGather({&joined, 1}, left()));
      const std::size_t all =
          blocks * std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
      for (std::size_t r = 1; r < replicas && all > 0; ++r) {
        std::memcpy(here[r]->buffers[b].out, joined.out, all);
      }
    }
    return Ok();
  };
  return Together(place_, replica_, "data of all_gather", mine, timeout, work);
}

Status JointGroup::Broadcast(std::span<std::byte> data, int root, Timeout timeout) {
  struct Call {
    std::span<std::byte> data;
    TimeLeft left;
    Status status;
  } mine{data, TimeLeft(timeout), Ok()};
  const auto work = [&](std::span<Call* const> here) -> Status {
    MUSTER_TRY(Refused(between_, CheckRoot(root, size())));
    const auto speaker = static_cast<std::size_t>(root % replicas_);
    const std::span<std::byte> from = here[speaker]->data;
    for (const Call* one : here) {
      if (one->data.size() == from.size()) continue;
      return Refused(between_, InvalidArgument("Shape mismatch in broadcast: {} and {} bytes",
                                               one->data.size(), from.size()));
    }
    MUSTER_TRY(between_.Broadcast(from, root / replicas_, TimeLeft::OfFirst(here)()));
    for (Call* one : here) {
      if (one != here[speaker] && !from.empty()) {
        std::memcpy(one->data.data(), from.data(), from.size());
      }
    }
    return Ok();
  };
  return Together(place_, replica_, fmt::format("broadcast of {}", root), mine, timeout, work);
}

// Everything is summed, and the own part taken: between processes that is what would travel anyway,
// as far as their replicas need all parts.
Status JointGroup::ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                                 Timeout timeout) {
  const std::size_t count =
      std::accumulate(buffer.counts.begin(), buffer.counts.end(), std::size_t{0});
  const std::size_t bytes = SizeOf(ResultType(reduction, buffer.type));
  Bytes all(count * bytes);
  struct Call {
    const std::vector<std::size_t>& counts;
    ReduceBuffer whole;
    TimeLeft left;
    Status status;
  } mine{buffer.counts,
         {.type = buffer.type,
          .shape = {static_cast<std::int64_t>(count)},
          .in = buffer.in,
          .out = all.data()},
         TimeLeft(timeout),
         Ok()};
  const auto work = [&](std::span<Call* const> here) -> Status {
    std::vector<std::span<const ReduceBuffer>> brought;
    for (const Call* one : here) {
      if (one->counts.size() != static_cast<std::size_t>(size()) ||
          one->counts != here[0]->counts) {
        return Refused(between_,
                       InvalidArgument("Shape mismatch in reduce_scatter: replicas bring other "
                                       "counts, or not {} of them",
                                       size()));
      }
      brought.emplace_back(&one->whole, 1);
    }
    return ReduceJointly(between_, reduction, brought, TimeLeft::OfFirst(here)());
  };
  MUSTER_TRY(Together(place_, replica_, fmt::format("reduce_scatter {}", NameOf(reduction)), mine,
                      timeout, work));
  const auto own = static_cast<std::size_t>(rank());
  const std::size_t before =
      std::accumulate(buffer.counts.begin(),
                      buffer.counts.begin() + static_cast<std::ptrdiff_t>(own), std::size_t{0});
  if (buffer.counts[own] > 0) {
    std::memcpy(buffer.out, all.data() + before * bytes, buffer.counts[own] * bytes);
  }
  return Ok();
}

// Each process sends each other one message: what its replicas have for the replicas there, by
// receiver and then by sender.
Status JointGroup::AllToAll(std::span<const std::span<const std::byte>> sends,
                            std::span<const std::span<std::byte>> receives, Timeout timeout) {
  struct Call {
    std::span<const std::span<const std::byte>> sends;
    std::span<const std::span<std::byte>> receives;
    TimeLeft left;
    Status status;
  } mine{sends, receives, TimeLeft(timeout), Ok()};
  const auto replicas = static_cast<std::size_t>(replicas_);
  const auto first = static_cast<std::size_t>(between_.rank()) * replicas;
  const auto work = [&](std::span<Call* const> here) -> Status {
    // The processes look at what travels between them.
    MUSTER_TRY(Refused(between_, CheckParts(here, first, static_cast<std::size_t>(size()))));
    const auto processes = static_cast<std::size_t>(between_.size());
    // To each process, in the order of its replicas, what each replica here sends.
    std::vector<Bytes> out(processes), in(processes);
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (std::size_t p = 0; p < processes; ++p) {
      std::size_t length = 0;
      for (std::size_t to = p * replicas; to < (p + 1) * replicas; ++to) {
        for (const Call* one : here) {
          out[p].insert(out[p].end(), one->sends[to].begin(), one->sends[to].end());
          length += one->receives[to].size();
        }
      }
      in[p].resize(length);
      send.emplace_back(out[p]);
      receive.emplace_back(in[p]);
    }
    MUSTER_TRY(between_.AllToAll(send, receive, TimeLeft::OfFirst(here)()));
    for (std::size_t p = 0; p < processes; ++p) {
      const std::byte* at = in[p].data();
      for (Call* to : here) {
        for (std::size_t from = p * replicas; from < (p + 1) * replicas; ++from) {
          const std::span<std::byte> into = to->receives[from];
          if (!into.empty()) std::memcpy(into.data(), at, into.size());
          at += into.size();
        }
      }
    }
    return Ok();
  };
  return Together(place_, replica_, "all_to_all", mine, timeout, work);
}

Status JointGroup::Barrier(Timeout timeout) {
  struct Call {
    TimeLeft left;
    Status status;
  } mine{TimeLeft(timeout), Ok()};
  return Together(place_, replica_, "barrier", mine, timeout, [&](std::span<Call* const> here) {
    return between_.Barrier(TimeLeft::OfFirst(here)());
  });
}

}  // namespace muster::collectives
