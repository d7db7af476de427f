#include "collectives/torus.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace muster::collectives {
namespace {

// As ranks what a schedule has as places.
void Rename(std::vector<Round>& rounds, const std::vector<int>& rank_at) {
  for (Round& round : rounds) {
    for (auto* transfers : {&round.sends, &round.receives}) {
      for (Transfer& transfer : *transfers) {
        transfer.peer = rank_at[static_cast<std::size_t>(transfer.peer)];
      }
    }
  }
}

}  // namespace

TorusPlan::TorusPlan(const Torus& torus, Reduction reduction, std::span<const ReduceBuffer> buffers)
    : reduction_(reduction) {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!AddsUp(reduction, buffers[i].type)) continue;
    buffers_.push_back(i);
    counts_.push_back(buffers[i].count());
    count_ += counts_.back();
  }
  std::vector<int> rank_at(torus.places.size());
  for (std::size_t rank = 0; rank < torus.places.size(); ++rank) {
    rank_at[static_cast<std::size_t>(torus.places[rank])] = static_cast<int>(rank);
  }
  for (const int place : torus.places) {
    Schedule& schedule = schedules_.emplace_back(TorusSchedule(place, torus.dims, count_));
    Rename(schedule.reduce, rank_at);
    Rename(schedule.spread, rank_at);
  }
}

std::vector<Piece> TorusPlan::PiecesWithin(Range range, Range slice) const {
  const Range common{std::max(range.begin, slice.begin), std::min(range.end, slice.end)};
  if (common.begin >= common.end) return {};
  std::vector<Piece> pieces = PiecesOf(counts_, common);
  for (Piece& piece : pieces) piece.buffer = buffers_[piece.buffer];
  return pieces;
}

// Members' results are where their sums grow. In a round nobody writes what another reads: a member
// sends other elements than it receives. A mean is divided before it is added up, as TPUs do: the
// sum of large numbers would be infinite.
void TorusPlan::Reduce(std::span<const std::span<const ReduceBuffer>> brought, Range slice) const {
  const auto each_receive = [&](std::size_t round, const auto& rounds_of, const auto& receive) {
    for (std::size_t rank = 0; rank < brought.size(); ++rank) {
      for (const Transfer& transfer : rounds_of(schedules_[rank])[round].receives) {
        for (const Piece& piece : PiecesWithin(transfer.range, slice)) {
          const auto peer = static_cast<std::size_t>(transfer.peer);
          receive(brought[rank][piece.buffer], brought[peer][piece.buffer].out, piece.range);
        }
      }
    }
  };
  const auto copy = [](const ReduceBuffer& mine, const void* from, Range range) {
    const std::size_t bytes = SizeOf(mine.type);
    std::memcpy(static_cast<std::byte*>(mine.out) + range.begin * bytes,
                static_cast<const std::byte*>(from) + range.begin * bytes,
                (range.end - range.begin) * bytes);
  };
  const auto each_buffer = [&](const auto& visit) {
    for (const std::span<const ReduceBuffer>& buffers : brought) {
      for (const Piece& piece : PiecesWithin({0, count_}, slice)) {
        visit(buffers[piece.buffer], piece.range);
      }
    }
  };
  each_buffer([&](const ReduceBuffer& mine, Range range) {
    if (mine.in != mine.out) copy(mine, mine.in, range);
  });
  if (reduction_ == Reduction::kMean) {
    each_buffer([&](const ReduceBuffer& mine, Range range) {
      DivideRange(mine.type, mine.out, brought.size(), range.begin, range.end);
    });
  }
  const auto add = [&](const ReduceBuffer& mine, const void* from, Range range) {
    const std::array<const void*, 2> sources = {from, mine.out};
    ReduceRange(WhileAdding(reduction_), mine.type, sources, {&mine.out, 1}, range.begin,
                range.end);
  };
  const auto reduce = [](const Schedule& schedule) -> auto& { return schedule.reduce; };
  for (std::size_t k = 0; k < schedules_[0].reduce.size(); ++k) each_receive(k, reduce, add);
  const auto spread = [](const Schedule& schedule) -> auto& { return schedule.spread; };
  for (std::size_t k = 0; k < schedules_[0].spread.size(); ++k) each_receive(k, spread, copy);
}

}  // namespace muster::collectives
