#include "collectives/process/shared_memory.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <new>
#include <thread>
#include <utility>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/process/crowd.h"
#include "common/base/cpu_pause.h"

namespace muster::collectives {
namespace {

// Looks before a member gives its processor away, and time after which it sleeps.
constexpr int kLooks = 2'000;
constexpr std::chrono::microseconds kAwake{200};
// The end of a group is looked for this often while a member sleeps.
constexpr Millis kSleep{20};

// Threads of several processes: no FUTEX_PRIVATE_FLAG.
void FutexWait(std::atomic<std::uint32_t>& word, std::uint32_t seen, Millis most) {
  const timespec time{.tv_sec = most.count() / 1'000, .tv_nsec = most.count() % 1'000 * 1'000'000};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}
void FutexWakeAll(std::atomic<std::uint32_t>& word) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

// Phases count on and around.
bool Reached(std::uint32_t phase, std::uint32_t wanted) {
  return static_cast<std::int32_t>(phase - wanted) >= 0;
}

}  // namespace

std::size_t SharedMemory::BytesFor(std::size_t members) {
  return members * (sizeof(Line) + 2 * kSlotBytes) + 64;
}

Result<net::Arena> SharedMemory::Make(std::size_t members) {
  return net::Arena::Create(BytesFor(members), /*shared=*/true);
}

Result<SharedMemory> SharedMemory::Map(int rank, std::vector<int> members, net::Arena arena) {
  SharedMemory memory(rank, std::move(members), arena.base());
  memory.arena_ = std::move(arena);
  return memory;
}

Result<SharedMemory> SharedMemory::Map(int rank, std::vector<int> members, net::Fd descriptor) {
  const std::size_t bytes = BytesFor(members.size());
  MUSTER_TRY_ASSIGN(net::PeerArena peer, net::PeerArena::Map(std::move(descriptor), 2 * bytes));
  MUSTER_TRY_ASSIGN(const std::span<std::byte> all, peer.At(0, bytes, 64));
  SharedMemory memory(rank, std::move(members), all.data());
  memory.peer_ = std::move(peer);
  return memory;
}

// Memory of an arena is zero when it is new, which is what a line begins with.
SharedMemory::SharedMemory(int rank, std::vector<int> members, std::byte* base)
    : rank_(rank),
      members_(std::move(members)),
      crowded_(Crowded(static_cast<int>(members_.size()))) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    lines_.push_back(std::launder(reinterpret_cast<Line*>(base)) + r);
    slots_.push_back(base + members_.size() * sizeof(Line) + r * 2 * kSlotBytes);
  }
}

Status SharedMemory::Publish(std::uint64_t signature, const Waiter& waiter) {
  waiting_.clear();
  Line& line = *lines_[static_cast<std::size_t>(rank_)];
  const std::uint32_t phase = ++phase_;
  line.signature[phase & 1].store(signature, std::memory_order_relaxed);
  line.phase.store(phase);
  if (line.sleepers.load() > 0) FutexWakeAll(line.phase);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const Line& other = *lines_[static_cast<std::size_t>(r)];
    if (!Reached(other.phase.load(std::memory_order_acquire), phase)) {
      if (const Status status = Await(r, waiter); !status.ok()) {
        waiting_ = Missing();
        return status;
      }
    }
    if (other.signature[phase & 1].load(std::memory_order_relaxed) != signature) {
      waiting_.push_back(members_[static_cast<std::size_t>(r)]);
      return InvalidArgument("calls something else");
    }
  }
  return Ok();
}

// As a writer and a reader of a seqlock. Stores past the caches are held back, too.
void SharedMemory::GiveUp() {
  lines_[static_cast<std::size_t>(rank_)]->gave_up.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool SharedMemory::AnyGaveUp() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return std::ranges::any_of(
      lines_, [](const Line* line) { return line->gave_up.load(std::memory_order_relaxed) != 0; });
}

std::vector<int> SharedMemory::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < size(); ++r) {
    if (r != rank_ && !Reached(lines_[static_cast<std::size_t>(r)]->phase, phase_)) {
      missing.push_back(members_[static_cast<std::size_t>(r)]);
    }
  }
  return missing;
}

// Looks for a while, then lets others run, then sleeps: where processors are fewer than members,
// who spins keeps the others away.
Status SharedMemory::Await(int rank, const Waiter& waiter) {
  Line& line = *lines_[static_cast<std::size_t>(rank)];
  const auto there = [&] { return Reached(line.phase.load(std::memory_order_acquire), phase_); };
  if (!crowded_) {
    for (int look = 0; look < kLooks; ++look) {
      if (there()) return Ok();
      CpuPause();
    }
  }
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < kAwake) {
    if (there()) return Ok();
    std::this_thread::yield();
  }
  Status status = Ok();
  bool said = false;
  line.sleepers.fetch_add(1);
  while (status.ok()) {
    const std::uint32_t seen = line.phase.load();
    if (Reached(seen, phase_)) break;
    const auto now = std::chrono::steady_clock::now();
    if (!said && now - begun >= Waiter::kPatience) {
      said = true;
      waiter.SayThatItLasts(Missing());
    }
    if (waiter.over->load(std::memory_order_acquire)) {
      status = Cancelled("the group is over");
    } else if (now >= waiter.deadline) {
      status = DeadlineExceeded("waited too long");
    } else {
      FutexWait(line.phase, seen,
                std::clamp(std::chrono::ceil<Millis>(waiter.deadline - now), Millis(1), kSleep));
    }
  }
  line.sleepers.fetch_sub(1);
  return status;
}

}  // namespace muster::collectives
