// The requests of one connection of a program, whose variables they concern alone.
//
// Threading: its connection's thread. Lifetime: context, channel and memory outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/net/channel.h"
#include "ps/program_space.h"
#include "ps/program_wire.h"
#include "ps/server/request_memory.h"

namespace muster::ps {

struct ServerContext;

class ProgramRequests {
 public:
  ProgramRequests(ServerContext& context, net::Channel& channel, RequestMemory& memory,
                  std::shared_ptr<ProgramSpace> space)
      : context_(context), channel_(channel), memory_(memory), space_(std::move(space)) {}

  // Answers one request, whatever it asks. OK: the stream stands between two frames. An error ends
  // the connection.
  Status Serve(const net::FrameHeader& frame);

 private:
  // The request itself; its error is the client's answer.
  Status Execute(const net::FrameHeader& frame);
  Status Create(const net::FrameHeader& frame);
  Status Delete();
  Status Lookup();
  Status Attach();
  Status ReadLocal(std::span<const ReadEntry> entries);
  Status ReadTcp(const net::FrameHeader& frame, std::span<const ReadEntry> entries);
  // Reads the first entries, as many as one answering frame carries, into `values`; removes their
  // ids.
  Status SendGroup(const net::FrameHeader& frame, std::span<const ReadEntry> group,
                   std::span<const std::byte>& ids, std::span<std::byte> values, bool more);
  Status Write(const net::FrameHeader& frame);
  // What the entries say, with their ids and values where they are now.
  Result<std::vector<ShardWrite>> LocalWrites(std::span<const WriteEntry> entries);
  Result<std::vector<ShardWrite>> TcpWrites(const net::FrameHeader& frame,
                                            std::span<const WriteEntry> entries);
  // All of the frame's payload, and where there is to be room for more.
  Result<std::span<std::byte>> Receive(std::uint64_t bytes, std::uint64_t more = 0);
  template <class Message>
  Result<Message> ParseMeta() const;
  template <class T>
  void Answer(std::span<const T> numbers);
  TimePoint TransferDeadline(std::uint64_t bytes = 0) const;

  ServerContext& context_;
  net::Channel& channel_;
  RequestMemory& memory_;
  const std::shared_ptr<ProgramSpace> space_;
  // The current request's answer, unless it has been sent, or cannot be: the stream is broken.
  std::vector<std::byte> answer_;
  bool answered_ = false;
  Status broken_;
};

}  // namespace muster::ps
