// A thread that watches over one member's group: a link to each other member beside the one for
// data, on which it is asked whether it lives (also while its caller computes), says how far it is,
// and says and hears that the group is over.
//
// A member that is killed is noticed at once, one that is stopped or cut off within 4 s
// (net::DuplexLink's pings). Of a member that lives, but does not come, the daemons are told
// (wait_sign.h). Members that wait for each other in different calls hear of it by what each says
// of its own.
//
// Threading: Create() and the destructor by the owner; the rest by the one thread that calls
// operations. Lifetime: outlives the mesh's operations.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/process/group_state.h"
#include "collectives/process/wait_sign.h"
#include "collectives/process/waiter.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/net/duplex_link.h"
#include "common/net/fd.h"

namespace muster::collectives {

class Watch {
 public:
  // What a member has said while this one still formed the group.
  struct EarlyFrame {
    net::FrameHeader header;
    std::vector<std::byte> meta;
  };
  // The group is over for who says it, or it leaves.
  static bool IsLastWord(const EarlyFrame& frame);
  struct Link {
    std::unique_ptr<net::DuplexLink> link;
    std::vector<EarlyFrame> early;
    // Not OK: the member was lost meanwhile, and there is no link any more.
    Status lost = {};
  };
  // Where operations that last are shown to this process's daemon.
  struct Show {
    std::string wait_page = {};  // as in GroupSpec
    Generation generation = {};
  };
  // links[r] is rank r's; without a link at the own rank. `on_over` is called at most once, when
  // the group is over. kResourceExhausted: no descriptor or thread for it.
  static Result<std::unique_ptr<Watch>> Create(int rank, std::vector<std::string> tasks,
                                               std::vector<Link> links, const Show& show,
                                               std::function<void()> on_over);
  // Tells the others that this member leaves, and how far it came.
  ~Watch();

  // The next operation, which is called with what `signature` stands for; its number. Not OK: the
  // group is over, or a member has left.
  Result<std::uint64_t> Begin(std::uint64_t signature);
  void End() { done_.store(begun_.load(std::memory_order_relaxed), std::memory_order_release); }
  // The operation in progress has failed: `status`, for all. The group's own end if that came
  // first. kCancelled and kUnavailable of a link are no news: the watch knows better, and is waited
  // for (a second at most).
  Status Fail(const Status& status);
  // The operation in progress lasts: `call` is what it is, `waiting` whose bytes are missing.
  // `limit`: its deadline, counted from its beginning; 0: none.
  void Lasts(std::string call, Millis limit, std::span<const int> waiting);
  // Ends the group by `why`, for all. From any thread.
  void Abort(const Status& why);
  // Who is waited for, in words.
  std::string Awaited(const std::vector<int>& waiting);

  // `lasts` hears of long waits, and calls Lasts().
  Waiter waiter(TimePoint deadline, const LongWait& lasts) const {
    return {.over = &over_, .wake = wake_caller_.get(), .deadline = deadline, .lasts = &lasts};
  }
  // kOk while the group lives.
  Status failure();

 private:
  struct Lasting {
    std::uint64_t operation = 0;
    TimePoint since;
    Millis limit{0};
    std::string call;
    std::vector<int> waiting;
  };
  Watch(int rank, std::vector<std::string> tasks, std::vector<Link> links, const Show& show,
        std::function<void()> on_over, net::Fd wake_thread, net::Fd wake_caller);
  void Run();
  // What the daemon sees of this member's operation.
  void ShowWait(TimePoint now) MUSTER_REQUIRES(mutex_);
  // What has come from one member.
  void Listen(int rank) MUSTER_REQUIRES(mutex_);
  Status OnFrame(int rank, const net::FrameHeader& header, std::span<const std::byte> meta)
      MUSTER_REQUIRES(mutex_);
  void Say(const GroupState::News& news) MUSTER_REQUIRES(mutex_);
  void SayToAll(const net::FrameHeader& header, std::span<const std::byte> meta)
      MUSTER_REQUIRES(mutex_);
  // After any event: an end is made known here and to the others.
  void Settle() MUSTER_REQUIRES(mutex_);
  Progress progress() const;

  const std::function<void()> on_over_;
  const net::Fd wake_thread_;
  const net::Fd wake_caller_;
  // Written by the caller's thread alone; no lock, an operation may take less than one.
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> done_{0};
  // One for operations with even numbers, one for odd: set before the operation is begun.
  std::array<std::atomic<std::uint64_t>, 2> signatures_{};
  // Operations from this one on cannot end: somebody has left. Checked without a lock.
  std::atomic<std::uint64_t> last_possible_{UINT64_MAX};
  std::atomic<bool> over_{false};
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  Condition known_;  // an end became known
  GroupState state_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<net::DuplexLink>> links_ MUSTER_GUARDED_BY(mutex_);
  const Generation generation_;
  WaitSign sign_ MUSTER_GUARDED_BY(mutex_);
  std::optional<Lasting> lasting_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::collectives
