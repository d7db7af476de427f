// Where members of a group that forms wait for each other: a thread that keeps the links of their
// watches, answers on them, and asks quiet members whether they live, as the watch does later. It
// shows whom this member waits for: to its daemon (process::WaitPage), and in the log.
//
// Threading: any. Await() blocks its caller alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "collectives/process/wait_sign.h"
#include "collectives/process/watch.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/duplex_link.h"
#include "common/net/fd.h"

namespace muster::collectives {

class Lobby {
 public:
  struct Options {
    std::string job;
    Generation generation = {};
    std::vector<std::string> tasks;
    // For display: when the forming ends with an error; 0: never.
    Millis limit{0};
    // As in GroupSpec.
    std::string wait_page = {};
  };
  // kResourceExhausted: no descriptor or thread for it.
  static Result<std::unique_ptr<Lobby>> Create(Options options);
  ~Lobby();

  // A member has come, by a connection of its own or of ours, in the place of another process.
  // `asks`: the other side may read by a handshake's channel until it has heard something.
  void Seat(int rank, std::unique_ptr<net::DuplexLink> link, bool asks);
  // Who is in that place, for another process that comes for it: nobody, one that has still to show
  // that it lives (it has net::DuplexLink's time for that), or one that does.
  enum class Place { kFree, kAsked, kTaken };
  Place Knock(int rank);
  bool Has(int rank);
  // How often a member in that place was lost.
  int losses(int rank);

  // Whom this member waits for, in words; empty: for nobody.
  void WaitsFor(std::string whom);
  Status Say(int rank, net::FrameKind kind, std::uint64_t request, std::span<const std::byte> meta);
  // The next frame of a member, when all have come; nothing: none until the deadline.
  //   kUnavailable: somebody was lost, and had not formed the group before. Names the first one,
  //   because of whom others give up.
  Result<std::optional<Watch::EarlyFrame>> Await(int rank, TimePoint deadline);
  // Until `fd` can be read, or the deadline is over. The same error.
  Status AwaitBytes(int fd, TimePoint deadline);
  // kUnavailable: one of the ranks below `end` was lost.
  Status AnyLost(int end);
  // All who are here hear that the group does not form, and why: else they would see no more than
  // that this member is gone. It is the error of their calls, and they tell it to all others before
  // they go. Returns `why`.
  Status TellAll(const Status& why);

  // Ends the thread. What members have said meanwhile comes along, and who was lost.
  std::vector<Watch::Link> Leave();

 private:
  struct Guest {
    std::unique_ptr<net::DuplexLink> link;
    std::vector<Watch::EarlyFrame> frames;
    Status lost;
    std::uint64_t lost_as = 0;  // how many losses there were then
    int losses = 0;
    bool is_new = true;  // nothing has been read yet
    // Another process has come for the place, and this one has said something since.
    bool knocked = false;
    bool heard = false;
  };
  Lobby(Options options, net::Fd wake);
  void Run();
  void Listen(int rank) MUSTER_REQUIRES(mutex_);
  Status FirstLost() const MUSTER_REQUIRES(mutex_);
  void SayVerdict() MUSTER_REQUIRES(mutex_);
  void Show(TimePoint now) MUSTER_REQUIRES(mutex_);
  void Ring() const;
  void End();
  Guest& guest(int rank) MUSTER_REQUIRES(mutex_) { return guests_[static_cast<std::size_t>(rank)]; }

  const Options options_;
  const net::Fd wake_;
  const TimePoint began_;
  Mutex mutex_;
  Condition changed_;
  bool stop_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<Guest> guests_ MUSTER_GUARDED_BY(mutex_);
  // Links that the thread may still wait on.
  std::vector<std::unique_ptr<net::DuplexLink>> gone_ MUSTER_GUARDED_BY(mutex_);
  std::uint64_t lost_ MUSTER_GUARDED_BY(mutex_) = 0;  // losses in all
  // Why the group does not form, as a member has told all.
  Status verdict_ MUSTER_GUARDED_BY(mutex_);
  std::string waits_for_ MUSTER_GUARDED_BY(mutex_);
  WaitSign sign_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::collectives
