// A group whose members are the replicas of several processes: each process has as many of them, as
// threads, and the processes are a group among themselves. What the replicas of a process bring is
// put together first, so that between processes it travels once for all of them.
//
// Rank: process * replicas + replica. Of float32 and float64 the replicas' sums are added up
// between processes; narrower types and means of integers are gathered and summed at once, since
// they would be rounded twice.
//
// Threading and errors: as Group; an error of the group between processes is everybody's.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "collectives/group.h"
#include "collectives/local_group.h"

namespace muster::collectives {

// What the replicas of one process reduce with those of the others: brought[r] is what replica r of
// this process brings, and gets. All processes bring as many.
//   kInvalidArgument, for all: replicas bring different shapes or types.
Status ReduceJointly(Group& between, Reduction reduction,
                     std::span<const std::span<const ReduceBuffer>> brought, Timeout timeout);

class JointGroup final : public Group {
 public:
  // `place` is where the `replicas` of this process meet; `between` has a member for each process.
  // Both outlive it.
  JointGroup(MeetingPlace& place, int replica, int replicas, Group& between)
      : place_(place), replica_(replica), replicas_(replicas), between_(between) {}

  int rank() const override { return between_.rank() * replicas_ + replica_; }
  int size() const override { return between_.size() * replicas_; }
  Status AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                   Timeout timeout = {}) override;
  Result<std::vector<std::vector<std::int64_t>>> Exchange(std::string_view call,
                                                          std::span<const std::int64_t> mine,
                                                          Timeout timeout = {}) override;
  Status AllGather(std::span<const GatherBuffer> buffers, Timeout timeout = {}) override;
  Status Broadcast(std::span<std::byte> data, int root, Timeout timeout = {}) override;
  Status ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                       Timeout timeout = {}) override;
  Status AllToAll(std::span<const std::span<const std::byte>> sends,
                  std::span<const std::span<std::byte>> receives, Timeout timeout = {}) override;
  Status Barrier(Timeout timeout = {}) override;
  Status Health() const override { return between_.Health(); }
  void Abort(const Status& why) override { between_.Abort(why); }

 private:
  MeetingPlace& place_;
  const int replica_;
  const int replicas_;
  Group& between_;
};

}  // namespace muster::collectives
