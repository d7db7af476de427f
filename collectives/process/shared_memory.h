// Memory that the members on one host share, all of a group or those that it has there: what each
// brings lies in slots that all can read, so that no byte of a reduction passes through a socket.
//
// Phases: in each, a member writes into its own slot, publishes, and waits until all have; then
// what they wrote may be read until the member publishes the phase after next, since slots are
// double. So a phase costs one wait, and nobody waits for the slowest reader.
//
// Layout: for each member a line of its own (phase, signature of the operation, who sleeps, what is
// as short as kBriefBytes: it comes with the word that says that it is there, and whether it has
// given up), then its two slots of kSlotBytes.
//
// Threading: one thread. Errors of waits: kDeadlineExceeded; kInvalidArgument, a member calls
// another operation; kCancelled, the group is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/process/waiter.h"
#include "common/base/status.h"
#include "common/net/arena.h"

namespace muster::collectives {

class SharedMemory {
 public:
  // Size of one slot.
  static constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
  static constexpr std::size_t kBriefBytes = 16;

  // By the first of `members` on a host; the others map its descriptor.
  static Result<net::Arena> Make(std::size_t members);
  // members[i] is the group's rank of the host's i-th member, of whom this is the one at `rank`.
  // `arena` when this member made it, else its descriptor.
  static Result<SharedMemory> Map(int rank, std::vector<int> members, net::Arena arena);
  static Result<SharedMemory> Map(int rank, std::vector<int> members, net::Fd descriptor);

  // Among the members on this host.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(lines_.size()); }

  // Where this member writes up to `bytes` for the phase to come. All members of a phase say as
  // many for what one of them writes.
  std::span<std::byte> mine(std::size_t bytes = kSlotBytes) {
    return slot(rank_, phase_ + 1, bytes);
  }
  // Publishes it and waits for all others to publish the same phase of the same operation.
  Status Publish(std::uint64_t signature, const Waiter& waiter);
  // What a member wrote for the phase that was published last; until the next but one.
  std::span<const std::byte> theirs(int rank, std::size_t bytes = kSlotBytes) const {
    return slot(rank, phase_, bytes);
  }
  // After an error behind which others may still read what is this member's outside of the slots:
  // it may change from now on, and who has read it finds out by AnyGaveUp().
  void GiveUp();
  // Whether any member has, as far as what this one has read until now is concerned.
  bool AnyGaveUp() const;
  // After an error: who has not come, by the group's ranks.
  const std::vector<int>& waiting() const { return waiting_; }

 private:
  struct alignas(64) Line {
    std::atomic<std::uint32_t> phase;
    std::atomic<std::uint32_t> sleepers;
    // One for phases with even numbers, one for odd.
    std::atomic<std::uint64_t> signature[2];
    std::byte brief[2][kBriefBytes];
    std::atomic<std::uint32_t> gave_up;  // 1: it has
  };
  static_assert(sizeof(Line) == 64);
  SharedMemory(int rank, std::vector<int> members, std::byte* base);
  std::span<std::byte> slot(int rank, std::uint32_t phase, std::size_t bytes) const {
    const auto r = static_cast<std::size_t>(rank);
    if (bytes <= kBriefBytes) return lines_[r]->brief[phase & 1];
    return {slots_[r] + (phase & 1) * kSlotBytes, kSlotBytes};
  }
  Status Await(int rank, const Waiter& waiter);
  // Who has not published the phase that was published here last.
  std::vector<int> Missing() const;
  static std::size_t BytesFor(std::size_t members);

  int rank_;
  std::vector<int> members_;
  net::Arena arena_;
  net::PeerArena peer_;
  std::vector<Line*> lines_;
  std::vector<std::byte*> slots_;
  // The phase that was published last.
  std::uint32_t phase_ = 0;
  // More members than processors: a member that spins keeps another from coming.
  bool crowded_;
  std::vector<int> waiting_;
};

}  // namespace muster::collectives
