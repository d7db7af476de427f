#include "collectives/local_group.h"

#include <cstring>
#include <memory>

#include <fmt/ranges.h>

#include "collectives/packing.h"
#include "collectives/together.h"

namespace muster::collectives {
namespace {

// One member's part of an all-reduce; lives until all have done theirs.
struct ReduceCall {
  Reduction reduction;
  std::span<const ReduceBuffer> buffers;
  // Set at the meeting: all members' calls, in rank order, and how their sums go.
  std::vector<ReduceCall*> all = {};
  std::shared_ptr<const TorusPlan> torus = nullptr;
  bool done = false;
  Status status = Ok();
};

// Reduces elements `range` of all buffers laid end to end, for all members; those that go by the
// torus are left out.
void ReduceSlice(const std::vector<ReduceCall*>& all, Range range) {
  const auto& buffers = all[0]->buffers;
  std::vector<std::size_t> counts;
  counts.reserve(buffers.size());
  for (const ReduceBuffer& buffer : buffers) counts.push_back(buffer.count());
  std::vector<const void*> sources(all.size());
  std::vector<void*> destinations(all.size());
  for (const Piece& piece : PiecesOf(counts, range)) {
    const DType type = buffers[piece.buffer].type;
    if (all[0]->torus != nullptr && AddsUp(all[0]->reduction, type)) continue;
    for (std::size_t r = 0; r < all.size(); ++r) {
      sources[r] = all[r]->buffers[piece.buffer].in;
      destinations[r] = all[r]->buffers[piece.buffer].out;
    }
    ReduceRange(all[0]->reduction, type, sources, destinations, piece.range.begin, piece.range.end);
  }
}

// Part `part` of `parts` of the work of a reduction.
void ReducePart(const std::vector<ReduceCall*>& all, std::size_t part, std::size_t parts) {
  std::size_t elements = 0;
  for (const ReduceBuffer& buffer : all[0]->buffers) elements += buffer.count();
  ReduceSlice(all, SliceOf(elements, part, parts));
  const TorusPlan* const torus = all[0]->torus.get();
  if (torus == nullptr) return;
  std::vector<std::span<const ReduceBuffer>> brought;
  for (const ReduceCall* call : all) brought.push_back(call->buffers);
  torus->Reduce(brought, SliceOf(torus->count(), part, parts));
}

}  // namespace

Status LocalGroup::AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                             Timeout timeout) {
  ReduceCall mine{.reduction = reduction, .buffers = buffers};
  std::size_t bytes = 0;
  for (const ReduceBuffer& buffer : buffers) bytes += buffer.count() * SizeOf(buffer.type);
  const auto joint = [&](std::vector<void*>& arguments) {
    const std::vector<ReduceCall*> all = AddressesOf<ReduceCall>(arguments);
    std::vector<std::span<const ReduceBuffer>> brought;
    for (const ReduceCall* call : all) brought.push_back(call->buffers);
    const Status status = CheckSame(brought);
    if (status.ok() && torus_ != nullptr) {
      const auto plan = std::make_shared<const TorusPlan>(*torus_, reduction, buffers);
      for (ReduceCall* call : all) call->torus = plan;
    }
    const bool small = status.ok() && bytes <= kSmallBytes;
    if (small) ReducePart(all, 0, 1);
    for (ReduceCall* call : all) {
      call->status = Own(status);
      call->done = small;
      if (status.ok() && !small) call->all = all;
    }
  };
  place_.Meet(rank_, fmt::format("all_reduce {}", NameOf(reduction)), &mine, joint, timeout);
  if (!mine.status.ok() || mine.done) return mine.status;
  ReducePart(mine.all, static_cast<std::size_t>(rank_), static_cast<std::size_t>(size_));
  // Nobody may go on, and free or change its buffers, before all slices are in place.
  place_.Meet(rank_, "end of all_reduce", &mine, [](std::vector<void*>&) {}, {});
  return Ok();
}

Result<std::vector<std::vector<std::int64_t>>> LocalGroup::Exchange(
    std::string_view call, std::span<const std::int64_t> mine, Timeout timeout) {
  struct Call {
    std::span<const std::int64_t> mine;
    std::vector<std::vector<std::int64_t>> all;
  } brought{mine, {}};
  place_.Meet(
      rank_, fmt::format("{}: exchange of shapes", call), &brought,
      [](std::vector<void*>& arguments) {
        const Arrivals<Call> calls(arguments);
        std::vector<std::vector<std::int64_t>> all;
        for (const Call& one : calls) all.emplace_back(one.mine.begin(), one.mine.end());
        for (Call& one : calls) one.all = all;
      },
      timeout);
  return std::move(brought.all);
}

// Everybody shows its buffers, copies from all of them, and stays until all have copied.
Status LocalGroup::AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) {
  struct Call {
    std::span<const GatherBuffer> buffers;
    std::vector<Call*> all;
    Status status;
  } mine{buffers, {}, Ok()};
  place_.Meet(
      rank_, "data of all_gather", &mine,
      [](std::vector<void*>& arguments) {
        const std::vector<Call*> all = AddressesOf<Call>(arguments);
        std::vector<std::span<const GatherBuffer>> brought;
        for (const Call* one : all) brought.push_back(one->buffers);
        const Status status = CheckSame(brought, static_cast<int>(all.size()));
        for (Call* one : all) {
          one->all = all;
          one->status = Own(status);
        }
      },
      timeout);
  if (!mine.status.ok()) return mine.status;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    auto* out = static_cast<std::byte*>(buffers[i].out);
    for (std::size_t block = 0; block < buffers[i].blocks; ++block) {
      for (std::size_t r = 0; r < mine.all.size(); ++r) {
        const std::size_t bytes = buffers[i].block_bytes[r];
        if (bytes == 0) continue;
        std::memcpy(out, static_cast<const std::byte*>(mine.all[r]->buffers[i].in) + block * bytes,
                    bytes);
        out += bytes;
      }
    }
  }
  place_.Meet(rank_, "end of all_gather", &mine, [](std::vector<void*>&) {}, {});
  return Ok();
}

Status LocalGroup::Broadcast(std::span<std::byte> data, int root, Timeout timeout) {
  struct Call {
    std::span<std::byte> data;
    Status status;
  };
  Call mine{data, Ok()};
  return Together(place_, rank_, fmt::format("broadcast of {}", root), mine, timeout,
                  [root](const std::vector<Call*>& all) -> Status {
                    MUSTER_TRY(CheckRoot(root, static_cast<int>(all.size())));
                    const std::span<std::byte> from = all[static_cast<std::size_t>(root)]->data;
                    for (std::size_t r = 0; r < all.size(); ++r) {
                      if (all[r]->data.size() == from.size()) continue;
                      return InvalidArgument(
                          "Shape mismatch in broadcast: {} bytes on replica {}, {} on "
                          "replica {}",
                          all[r]->data.size(), r, from.size(), root);
                    }
                    for (Call* one : all) {
                      if (one->data.data() != from.data() && !from.empty()) {
                        std::memcpy(one->data.data(), from.data(), from.size());
                      }
                    }
                    return Ok();
                  });
}

// The last to come reduces everybody's part, while the others wait.
Status LocalGroup::ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                                 Timeout timeout) {
  struct Call {
    const ScatterBuffer* buffer;
    Status status;
  };
  Call mine{&buffer, Ok()};
  return Together(
      place_, rank_, fmt::format("reduce_scatter {}", NameOf(reduction)), mine, timeout,
      [reduction](const std::vector<Call*>& all) -> Status {
        const ScatterBuffer& first = *all[0]->buffer;
        if (!Reducible(first.type)) {
          return InvalidArgument("reduce_scatter: {} has no sum; convert it to a number type",
                                 muster::NameOf(first.type));
        }
        std::vector<const void*> sources;
        for (const Call* one : all) {
          if (one->buffer->counts != first.counts || one->buffer->type != first.type ||
              first.counts.size() != all.size()) {
            return InvalidArgument("Shape mismatch in reduce_scatter: replicas bring other counts");
          }
          sources.push_back(one->buffer->in);
        }
        std::size_t begin = 0;
        for (std::size_t r = 0; r < all.size(); ++r) {
          std::vector<const void*> parts;
          for (const void* source : sources) {
            parts.push_back(static_cast<const std::byte*>(source) + begin * SizeOf(first.type));
          }
          void* const out = all[r]->buffer->out;
          ReduceRange(reduction, first.type, parts, {&out, 1}, 0, first.counts[r]);
          begin += first.counts[r];
        }
        return Ok();
      });
}

Status LocalGroup::AllToAll(std::span<const std::span<const std::byte>> sends,
                            std::span<const std::span<std::byte>> receives, Timeout timeout) {
  struct Call {
    std::span<const std::span<const std::byte>> sends;
    std::span<const std::span<std::byte>> receives;
    Status status;
  };
  Call mine{sends, receives, Ok()};
  return Together(place_, rank_, "all_to_all", mine, timeout,
                  [](const std::vector<Call*>& all) -> Status {
                    MUSTER_TRY(CheckParts(std::span<Call* const>(all), 0, all.size()));
                    for (std::size_t to = 0; to < all.size(); ++to) {
                      for (std::size_t from = 0; from < all.size(); ++from) {
                        const std::span<const std::byte> bytes = all[from]->sends[to];
                        if (!bytes.empty())
                          std::memcpy(all[to]->receives[from].data(), bytes.data(), bytes.size());
                      }
                    }
                    return Ok();
                  });
}

Status LocalGroup::Barrier(Timeout timeout) {
  place_.Meet(rank_, "barrier", nullptr, [](std::vector<void*>&) {}, timeout);
  return Ok();
}

}  // namespace muster::collectives
