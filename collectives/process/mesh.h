// A link to each other member, over which all of a round's messages go out and come in at once.
//
// Every message begins with the frame's header of the data plane (common/net/frame.h; kind 16), in
// whose ids stand the group's generation, the operation's number and its signature: members that
// call different operations, or the same with other shapes, see it at the first message.
//
// Threading: one thread. Errors: kUnavailable, a peer's link has ended; kInvalidArgument, a peer
// calls another operation; kDataLoss, a checksum fails; kDeadlineExceeded; kCancelled, the group is
// over (Waiter::over). After any error the links are of no use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/process/waiter.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/net/frame.h"
#include "common/net/spin.h"
#include "common/net/stream.h"

namespace muster::collectives {

inline constexpr net::FrameKind kDataFrame = net::kFirstOfProtocols;

// What a message belongs to.
struct Tag {
  Generation generation = {};
  std::uint64_t operation = 0;
  std::uint64_t signature = 0;
  bool operator==(const Tag&) const = default;
};

struct Outgoing {
  int peer = 0;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int peer = 0;
  std::span<std::byte> into;
};

class Mesh {
 public:
  struct Peer {
    std::shared_ptr<net::Stream> stream;  // null at the own rank
    bool payload_crc = false;
    std::string name;
  };
  // `crowded`: members share processors, so who waits gives its own away instead of looking on.
  Mesh(std::vector<Peer> peers, net::SpinMode spin, net::SpinLimit* limit, bool crowded);

  int size() const { return static_cast<int>(peers_.size()); }
  // Ends all links, for peers that wait too.
  void ShutDown();

  // Sends and receives all of it. At most one message to and one from each peer.
  Status Exchange(const Tag& tag, std::span<const Outgoing> sends,
                  std::span<const Incoming> receives, const Waiter& waiter);
  // A descriptor goes to a peer on this host, with one byte, while nothing else is on its way
  // there. TakeOver() takes one that has come, and waits for none.
  //   kUnavailable: the link does not take it, or has none; kResourceExhausted: no descriptor free.
  Status HandOver(int peer, int descriptor);
  Result<net::Fd> TakeOver(int peer);
  // After an error: the peer that calls something else, or those whose messages had not come or not
  // been taken.
  const std::vector<int>& waiting() const { return waiting_; }

 private:
  using Header = std::array<std::byte, net::kHeaderBytes>;
  struct Sending {
    int peer = 0;
    std::span<const std::byte> bytes;
    Header header;
    std::size_t done = 0;  // of header and bytes
    bool over() const { return done == net::kHeaderBytes + bytes.size(); }
  };
  struct Receiving {
    int peer = 0;
    std::span<std::byte> into;
    Header header;
    std::size_t done = 0;
    std::uint32_t crc = 0;
    bool crc_expected = false;
    bool over() const { return done == net::kHeaderBytes + into.size(); }
  };
  Result<bool> Send(Sending& one);
  Result<bool> Receive(Receiving& one, const Tag& tag);
  Status CheckHeader(Receiving& one, const Tag& tag);
  // Everything that goes now, without waiting. True: something did.
  Result<bool> Advance(const Tag& tag);
  static Status StillInTime(const Waiter& waiter);
  Status Wait(const Waiter& waiter);
  bool AllOver() const;
  // Those whose messages have not come; when all have, those who have not taken theirs.
  std::vector<int> Missing() const;

  std::vector<Peer> peers_;
  net::Spinner spinner_;
  const bool crowded_;
  // Kept between calls for their memory.
  std::vector<Sending> sending_;
  std::vector<Receiving> receiving_;
  std::vector<int> waiting_;
};

}  // namespace muster::collectives
