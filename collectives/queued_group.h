// A group of processes with a queue in front of it: calls are begun (Start()) and carried out one
// after another by a thread of the queue, while the caller goes on.
//
// Order: a call that is made takes its turn behind all that were begun before it. A call's time
// limit counts from its turn on. Errors: those of the group, which the first one ends: what was
// begun behind it gets the same, and so does the next call where nobody has waited for it.
// Cost: a program that never starts a call has no thread, and pays a load for each of its calls.
// Where no thread can be had a call that is begun is made at once.
//
// Threading: as the group that it stands before; a started call makes no call of this object.
// Lifetime: the destructor returns when all that was begun has ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/group.h"
#include "common/base/mutex.h"

namespace muster::collectives {

class QueuedGroup final : public Group {
 public:
  // What was begun keeps its buffers: who begins more waits until one of them has ended.
  static constexpr std::size_t kMostInFlight = 64;

  explicit QueuedGroup(std::shared_ptr<Group> group, std::size_t most_in_flight = kMostInFlight);
  ~QueuedGroup() override;
  QueuedGroup(const QueuedGroup&) = delete;
  QueuedGroup& operator=(const QueuedGroup&) = delete;

  Pending Start(StartedCall call) override;

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string name_of(int member) const override { return group_->name_of(member); }
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
  Result<std::shared_ptr<std::byte>> AllocateCommon(std::size_t bytes,
                                                    Timeout timeout = {}) override;
  Status Health() const override { return group_->Health(); }
  // Ends what waits, begun or called, at once.
  void Abort(const Status& why) override { group_->Abort(why); }

 private:
  struct Begun {
    std::uint64_t ticket = 0;
    StartedCall call;
    Pending pending;
  };
  // A caller's turn, behind what was begun before, until it ends.
  class Turn {
   public:
    explicit Turn(QueuedGroup& queue);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    QueuedGroup* queue_ = nullptr;  // null: nothing was ever begun
  };
  // False: the system gives none.
  bool HasThread() MUSTER_REQUIRES(mutex_);
  void AwaitTurn(std::uint64_t ticket) MUSTER_REQUIRES(mutex_);
  void Run();

  const std::shared_ptr<Group> group_;
  const std::size_t most_;
  std::atomic<bool> used_{false};  // something was begun
  Mutex mutex_;
  Condition changed_;
  std::uint64_t tickets_ MUSTER_GUARDED_BY(mutex_) = 0;  // given
  std::uint64_t turn_ MUSTER_GUARDED_BY(mutex_) = 0;     // whose it is
  std::deque<Begun> begun_ MUSTER_GUARDED_BY(mutex_);    // the first one goes on
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // made by the first Start()
};

}  // namespace muster::collectives
