// A group whose members are threads of one process and read each other's buffers.
//
// all-reduce: member r reduces slice r of N and writes it to every member's result, so each byte is
// read once and written once for each member. Small buffers are left to the last member to come: a
// second meeting would cost more than the work.
//
// Members that lie on a torus (cores of TPUs) go by its schedule instead, from neighbour to
// neighbour: each takes a slice of all of its transfers, and results are those of the schedule,
// whoever does the work. What would be rounded twice (AddsUp()) is reduced as above.
#pragma once

#include <string>
#include <vector>

#include "collectives/group.h"
#include "collectives/meeting_place.h"
#include "collectives/torus.h"

namespace muster::collectives {

// Lifetime: `place` and `torus` outlive it.
class LocalGroup final : public Group {
 public:
  // `torus`: where its `size` members lie; null: nowhere, all are neighbours.
  LocalGroup(MeetingPlace& place, int rank, int size, const Torus* torus = nullptr)
      : place_(place), rank_(rank), size_(size), torus_(torus) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Status AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                   Timeout timeout = {}) override;
  Result<std::vector<std::vector<std::int64_t>>> Exchange(std::string_view call,
                                                          std::span<const std::int64_t> mine,
                                                          Timeout timeout = {}) override;
  Status AllGather(std::span<const GatherBuffer> buffers, Timeout timeout = {}) override;
  // The last member to come does the work of these.
  Status Broadcast(std::span<std::byte> data, int root, Timeout timeout = {}) override;
  Status ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                       Timeout timeout = {}) override;
  Status AllToAll(std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives, Timeout timeout = {}) override;
  Status Barrier(Timeout timeout = {}) override;
  void Abort(const Status&) override {}

  // Up to this many bytes for each member the last to come does all the work.
  static constexpr std::size_t kSmallBytes = std::size_t{32} << 10;

 private:
  MeetingPlace& place_;
  const int rank_;
  const int size_;
  const Torus* const torus_;
};

}  // namespace muster::collectives
