// Where a connection's requests find their bytes: memory to receive into and to send from, and on a
// local link the client's arena, of which only so much stays resident here.
//
// Threading: its connection's thread. Lifetime: context and channel outlive it; spans it gives end
// with EndRequest().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/channel.h"
#include "common/net/stage_pool.h"
#include "ps/server/reclaimer.h"

namespace muster::ps {

struct ServerContext;

inline std::span<const std::int64_t> AsIds(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::int64_t*>(bytes.data()), bytes.size() / sizeof(std::int64_t)};
}

class RequestMemory {
 public:
  RequestMemory(ServerContext& context, net::Channel& channel)
      : context_(context), channel_(channel) {}

  void SetArena(net::PeerArena arena) { arena_.emplace(std::move(arena)); }
  void DropArena() { arena_.reset(); }
  // Tensor bytes are in an arena, not in frames.
  bool local() const { return arena_.has_value(); }

  // Memory of this connection for a small transfer, of the stage pool for a large one; one piece at
  // a time. What the request has is used again where it is large enough.
  //   kUnavailable: other transfers have the room just now.
  Result<std::span<std::byte>> Stage(std::uint64_t bytes);
  // Room for what LocalIds() copies of each entry, one after another. Waited for once: a wait for
  // each could last longer than the client does.
  template <class Entry>
  Status StageIds(std::span<const Entry> entries) {
    std::uint64_t most = 0;
    for (const Entry& entry : entries) most = std::max(most, entry.ids);
    return StageMost(most);
  }
  // The request has waited for something else: it waits the less for room.
  void CountWait(Millis time) { waited_ += time; }
  // Its waits so far, and those of earlier requests of its call.
  Millis waited() const { return waited_; }
  // Ids, copied out of the arena into Stage(): a peer must not change them once they are checked.
  Result<std::span<const std::int64_t>> LocalIds(std::uint64_t offset, std::uint64_t ids);
  // Bytes in the arena, while `use` works on them; the pages that stay resident are bounded.
  Status WithArena(std::uint64_t offset, std::uint64_t bytes, std::size_t align,
                   absl::FunctionRef<Status(std::span<std::byte>)> use);
  // The same until EndRequest().
  Result<std::span<std::byte>> InArena(std::uint64_t offset, std::uint64_t bytes,
                                       std::size_t align);

  // Gives staging back. `more`: the call goes on with the next request, which waits the less.
  void EndRequest(bool more = false) {
    lease_.reset();
    guards_.clear();
    if (!more) waited_ = Millis(0);
  }
  // After an answer that arena pages served: keeps to what may stay resident.
  void Release() {
    if (arena_ && arena_->resident() > ResidentLimit()) arena_->Release();
  }

 private:
  Status StageMost(std::uint64_t ids);
  // What may stay resident of this connection's arena.
  std::uint64_t ResidentLimit() const;

  ServerContext& context_;
  net::Channel& channel_;
  std::optional<net::PeerArena> arena_;
  std::vector<std::byte> small_;
  std::optional<net::StagePool::Lease> lease_;
  std::vector<std::unique_ptr<Reclaimer::Guard>> guards_;
  Millis waited_{0};
};

}  // namespace muster::ps
