#include "collectives/queued_group.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace muster::collectives {

QueuedGroup::QueuedGroup(std::shared_ptr<Group> group, std::size_t most_in_flight)
    : group_(std::move(group)), most_(std::max<std::size_t>(1, most_in_flight)) {}

QueuedGroup::~QueuedGroup() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Pending QueuedGroup::Start(StartedCall call) {
  Pending pending;
  bool queued = false;
  {
    const MutexLock lock(mutex_);
    while (begun_.size() >= most_) changed_.wait(mutex_);
    // First, as that may fail: what is in the queue is waited for.
    queued = HasThread();
    if (queued) {
      begun_.push_back({.ticket = tickets_++, .call = std::move(call), .pending = pending});
    }
  }
  // Without a thread nothing was ever begun that it would have to wait for.
  if (!queued) return Pending::Ended(call(*group_));
  changed_.notify_all();
  return pending;
}

bool QueuedGroup::HasThread() {
  if (thread_.joinable()) return true;
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
    return false;
  }
  used_.store(true, std::memory_order_release);
  return true;
}

void QueuedGroup::AwaitTurn(std::uint64_t ticket) {
  while (turn_ != ticket) changed_.wait(mutex_);
}

QueuedGroup::Turn::Turn(QueuedGroup& queue) {
  if (!queue.used_.load(std::memory_order_acquire)) return;
  queue_ = &queue;
  const MutexLock lock(queue.mutex_);
  queue.AwaitTurn(queue.tickets_++);
}

QueuedGroup::Turn::~Turn() {
  if (queue_ == nullptr) return;
  {
    const MutexLock lock(queue_->mutex_);
    ++queue_->turn_;
  }
  queue_->changed_.notify_all();
}

void QueuedGroup::Run() {
  while (true) {
    StartedCall call;
    Pending pending;
    {
      const MutexLock lock(mutex_);
      while (begun_.empty() && !closed_) changed_.wait(mutex_);
      if (begun_.empty()) return;
      AwaitTurn(begun_.front().ticket);
      call = std::move(begun_.front().call);
      pending = begun_.front().pending;
    }
    const Status status = call(*group_);
    // What it has kept is let go of before anybody hears that it has ended.
    call = nullptr;
    pending.End(status);
    {
      const MutexLock lock(mutex_);
      begun_.pop_front();
      ++turn_;
    }
    changed_.notify_all();
  }
}

Status QueuedGroup::AllReduce(Reduction reduction, std::span<const ReduceBuffer> buffers,
                              Timeout timeout) {
  const Turn turn(*this);
  return group_->AllReduce(reduction, buffers, timeout);
}

Result<std::vector<std::vector<std::int64_t>>> QueuedGroup::Exchange(
    std::string_view call, std::span<const std::int64_t> mine, Timeout timeout) {
  const Turn turn(*this);
  return group_->Exchange(call, mine, timeout);
}

Status QueuedGroup::AllGather(std::span<const GatherBuffer> buffers, Timeout timeout) {
  const Turn turn(*this);
  return group_->AllGather(buffers, timeout);
}

Status QueuedGroup::Broadcast(std::span<std::byte> data, int root, Timeout timeout) {
  const Turn turn(*this);
  return group_->Broadcast(data, root, timeout);
}

Status QueuedGroup::ReduceScatter(Reduction reduction, const ScatterBuffer& buffer,
                                  Timeout timeout) {
  const Turn turn(*this);
  return group_->ReduceScatter(reduction, buffer, timeout);
}

Status QueuedGroup::AllToAll(std::span<const std::span<const std::byte>> sends,
                             std::span<const std::span<std::byte>> receives, Timeout timeout) {
  const Turn turn(*this);
  return group_->AllToAll(sends, receives, timeout);
}

Status QueuedGroup::Barrier(Timeout timeout) {
  const Turn turn(*this);
  return group_->Barrier(timeout);
}

Result<std::shared_ptr<std::byte>> QueuedGroup::AllocateCommon(std::size_t bytes, Timeout timeout) {
  const Turn turn(*this);
  return group_->AllocateCommon(bytes, timeout);
}

}  // namespace muster::collectives
