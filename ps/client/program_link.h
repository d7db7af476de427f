// A program's connection to one parameter server: one request at a time, its answer after it.
//
// On a local link tensors pass through an arena of the link's own, so one that is given up takes
// its arena along, and what the server may still do there harms nobody: of blocks that are lent, it
// knows those of the request that was given up.
//
// Threading: one thread. Errors: the session's; an error that the server said leaves the link
// connected, after any other it is closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/spin.h"
#include "ps/client/link_arena.h"
#include "ps/client/server_session.h"
#include "ps/program_wire.h"

namespace muster::ps {

// One shard's part of a read.
struct ReadPart {
  std::uint32_t shard = 0;
  std::uint32_t slot = 0;
  bool rows = false;
  // Local to the shard.
  std::span<const std::int64_t> ids{};
  std::span<std::byte> into{};
  // Not null: it gets so many bytes in memory of their own; `into` is not the caller's then.
  Lent* lend = nullptr;
  std::size_t lent_bytes = 0;
  // The answer.
  ReadMark mark{};

  std::size_t bytes() const { return lend != nullptr ? lent_bytes : into.size(); }
};

class ProgramLink {
 public:
  // What a group of parts should not exceed, if it has more than one.
  static constexpr std::uint64_t kGroupBytes = 64ULL << 20;

  //   kResourceExhausted: no address space for the arena.
  static Result<std::unique_ptr<ProgramLink>> Create(const ServerSession::Target& target,
                                                     const ServerSession::Options& options,
                                                     net::SpinLimit* spin);

  // Connects and opens the program's variables; tries again until `deadline` where `patient`.
  Status Connect(TimePoint deadline, bool patient);
  bool connected() const { return session_->connected(); }
  bool local() const { return session_->local(); }
  const std::string& name() const { return session_->name(); }
  // Once connected.
  SpaceId space() const { return space_; }

  Status Send(ProgramVerb verb, const ProgramIds& ids, std::span<const std::byte> meta,
              std::span<const std::byte> payload, TimePoint deadline);
  // What the server says to Send() and SendWrites(); valid until the next call.
  Result<std::span<const std::byte>> Receive(TimePoint deadline);
  Status SendReads(const ProgramIds& ids, std::span<ReadPart> parts, TimePoint deadline);
  Status ReceiveReads(std::span<ReadPart> parts, TimePoint deadline);
  Status SendWrites(const ProgramIds& ids, std::span<const ShardWrite> parts, TimePoint deadline);

 private:
  explicit ProgramLink(std::shared_ptr<LinkArena> arena) : arena_(std::move(arena)) {}

  Status SendFrame(ProgramVerb verb, const ProgramIds& ids, std::span<const std::byte> meta,
                   std::span<const iovec> payload, TimePoint deadline);
  // The next answering frame's header.
  Result<net::FrameHeader> ReceiveHeader(TimePoint deadline);
  Status ReceiveGroup(const net::FrameHeader& header, std::span<ReadPart>& left,
                      TimePoint deadline);
  // The next bytes of the arena, for this request.
  Result<std::size_t> Reserve(std::size_t bytes);
  // Where the part's values go in the arena.
  Result<std::size_t> PlaceValues(ReadPart& part);
  Status GiveUp(const Status& error);

  // Also of blocks that are lent.
  const std::shared_ptr<LinkArena> arena_;
  std::unique_ptr<ServerSession> session_;
  SpaceId space_;
  std::uint64_t next_request_ = 1;
  ProgramVerb verb_ = ProgramVerb::kOpen;
  // Where the parts of a read stand in the arena.
  std::vector<std::size_t> offsets_;
  // Kept between calls, for their memory.
  std::vector<ReadEntry> reads_;
  std::vector<WriteEntry> writes_;
  std::vector<iovec> parts_;
};

}  // namespace muster::ps
