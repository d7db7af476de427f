// A model job's connection to one parameter server: a call's frames out, its answers in.
//
// Threading: one thread. Lifetime: arena and spin limit outlive it.
// Errors name the server ("ps:1 (127.0.0.1:4711)").
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/frame.h"
#include "ps/client/server_session.h"
#include "ps/wire.h"

namespace muster::ps {

// One shard's part of a call, in this process's memory (the arena's, on a local link).
struct CallEntry {
  std::uint32_t shard = 0;
  WireAccess access = WireAccess::kDense;
  std::span<const std::int64_t> ids;
  // Filled by a pull, sent by a push.
  std::span<float> values;
  // The answer: a version, or a WireOutcome.
  std::uint64_t result = 0;
};

struct Call {
  Verb verb = Verb::kPullDense;
  ClosureId closure{};
  Attempt attempt{};
  std::vector<CallEntry> entries;
};

class ServerLink {
 public:
  using Target = ServerSession::Target;

  // The session's subject is `job`. Arena and spin limit outlive it.
  ServerLink(Target target, WireSubject job, ServerSession::Options session,
             const net::Arena& arena, net::SpinLimit* spin);

  // As the session's.
  Status Connect(TimePoint deadline) { return session_.Connect(deadline); }
  Status ConnectOnce(TimePoint deadline) { return session_.ConnectOnce(deadline); }
  bool connected() const { return session_.connected(); }
  // Lets go of a local link: the server forgets the arena.
  void CloseLocal() {
    if (session_.local()) session_.Close();
  }
  // Whether, since it was asked last, a local link was given up with a request in it that its
  // server may still be reading from the arena.
  bool TakeAbandoned() { return std::exchange(abandoned_, false); }

  // Send() what goes of the call before an answer must be read, then Receive() the answers into the
  // entries, which sends the rest. An error that the server said leaves the link connected; after
  // any other it is closed.
  Status Send(Call& call, TimePoint deadline);
  Status Receive(Call& call, TimePoint deadline);

  LinkBytes bytes() const { return bytes_; }

 private:
  // Entries that went in one frame.
  struct Frame {
    std::uint64_t request = 0;
    std::span<CallEntry> entries;
    // Others of the call follow.
    bool more = false;
  };

  std::span<CallEntry> NextFrame(const Call& call, std::span<CallEntry> left) const;
  Status SendFrame(const Call& call, const Frame& frame, TimePoint deadline);
  // The next frames. `unanswered`: entries of those that went before.
  Status SendAhead(const Call& call, std::size_t unanswered, TimePoint deadline);
  Status ReceiveFrame(const Call& call, const Frame& frame, TimePoint deadline);
  // One answering frame for the first of `left`; removes them.
  Status ReceiveAnswer(const Call& call, const net::FrameHeader& header, std::span<CallEntry>& left,
                       TimePoint deadline);
  void Count(std::uint64_t bytes);
  // Closes for an error in the middle of a request; returns it, with the request named where it was
  // waited for in vain.
  Status GiveUp(const Call& call, std::uint64_t request, const Status& error);

  const WireSubject job_;
  const net::Arena& arena_;
  ServerSession session_;
  std::uint64_t next_request_ = 1;
  std::vector<Frame> sent_;
  // What has not been sent of the call.
  std::span<CallEntry> left_;
  LinkBytes bytes_;
  bool abandoned_ = false;
  // Kept between calls, for their memory.
  std::vector<WireEntry> table_;
  std::vector<iovec> parts_;
};

}  // namespace muster::ps
