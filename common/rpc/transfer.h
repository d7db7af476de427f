// A file on its way in a call that this end has made: ended when nothing moves for a while, however
// long the whole of it takes. What is large and comes over a slow link only needs its time.
//
// Threading: one thread. Lifetime: as StalledCall.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/rpc/stalled_call.h"

namespace muster::rpc {

// Files travel in pieces of this size: small enough for one to pass a slow link well within
// kStandsStill, since only whole pieces are seen to move.
inline constexpr std::size_t kPieceBytes = 64 << 10;

// The coordinator's own patience is the same.
inline constexpr Millis kStandsStill{60'000};

class Transfer {
 public:
  // `cancel` ends the call. `total_bytes`: of the file; 0: not known yet.
  Transfer(Scheduler& timers, Millis limit, std::function<void()> cancel,
           std::uint64_t total_bytes = 0)
      : limit_(limit), total_bytes_(total_bytes), call_(timers, limit, std::move(cancel)) {}

  void SetTotal(std::uint64_t bytes) { total_bytes_ = bytes; }
  // The peer is to send or to take a piece, or to answer.
  void Waits() { call_.Waits(); }
  // It has: so many bytes.
  void Went(std::uint64_t bytes) {
    call_.Went();
    bytes_ += bytes;
  }

  // What to say of a call that has ended so.
  //   kUnavailable: nothing moved; says for how long, and how far it had come. Or the peer has
  //   gone; says how far, too.  Others as they are.
  Status Explain(const Status& ended) const;

 private:
  const Millis limit_;
  std::uint64_t total_bytes_;
  std::uint64_t bytes_ = 0;
  StalledCall call_;
};

}  // namespace muster::rpc
