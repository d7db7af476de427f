#include "collectives/process/mesh.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/base/crc32c.h"
#include "common/net/socket.h"
#include "common/net/socket_calls.h"

namespace muster::collectives {
namespace {

// The header's ids.
struct WireTag {
  std::uint64_t generation = 0;
  std::uint64_t operation = 0;
  std::uint64_t signature = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(WireTag) == sizeof(net::FrameIds));

constexpr net::FrameLimits kLimits{.meta_bytes = 0, .payload_bytes = 1ULL << 40};

// How long a member looks that gives its processor away between looks.
constexpr std::chrono::nanoseconds kYielding = std::chrono::microseconds(200);

bool Gone(int error) { return error == EPIPE || error == ECONNRESET; }

Status Broken(const Mesh::Peer& peer, std::string_view what) {
  const Status failure = peer.stream->failure();
  return Annotate(failure.ok() ? FromErrno(errno, what) : failure, peer.name);
}

}  // namespace

Mesh::Mesh(std::vector<Peer> peers, net::SpinMode spin, net::SpinLimit* limit, bool crowded)
    : peers_(std::move(peers)), spinner_(spin, limit), crowded_(crowded) {}

void Mesh::ShutDown() {
  for (const Peer& peer : peers_) {
    if (peer.stream != nullptr) peer.stream->ShutDown();
  }
}

Status Mesh::HandOver(int peer, int descriptor) {
  const Peer& to = peers_[static_cast<std::size_t>(peer)];
  std::byte ride{1};
  iovec part{&ride, 1};
  if (to.stream->SendWith({&part, 1}, descriptor) == 1) return Ok();
  return Broken(to, "hand a descriptor over");
}

Result<net::Fd> Mesh::TakeOver(int peer) {
  const Peer& from = peers_[static_cast<std::size_t>(peer)];
  std::byte ride{};
  net::Fd taken;
  const ssize_t got =
      from.stream->ReceiveWith({&ride, 1}, [&](net::Fd fd) { taken = std::move(fd); });
  if (got < 0) return Broken(from, "take a descriptor over");
  // The kernel leaves out what finds no free number here.
  if (got == 1 && !taken.valid()) {
    return ResourceExhausted("no descriptor is free for memory of {}; see ulimit -n", from.name);
  }
  if (got == 1) return taken;
  return Unavailable("{} has ended its link", from.name);
}

// Sends and receives move as their sockets let them, none waits for another. What a failed exchange
// waited for stays in waiting_, until the next one begins.
Status Mesh::Exchange(const Tag& tag, std::span<const Outgoing> sends,
                      std::span<const Incoming> receives, const Waiter& waiter) {
  sending_.clear();
  receiving_.clear();
  waiting_.clear();
  const auto ids = std::bit_cast<net::FrameIds>(
      WireTag{tag.generation.value(), tag.operation, tag.signature, 0});
  for (const Outgoing& send : sends) {
    Sending& one = sending_.emplace_back();
    one.peer = send.peer;
    one.bytes = send.bytes;
    net::FrameHeader header{.kind = kDataFrame, .ids = ids, .payload_bytes = send.bytes.size()};
    if (peers_[static_cast<std::size_t>(send.peer)].payload_crc) {
      header.flags = net::kFlagPayloadCrc;
      header.payload_crc = Crc32c(send.bytes);
    }
    net::EncodeHeader(header, one.header);
  }
  for (const Incoming& receive : receives) {
    Receiving& one = receiving_.emplace_back();
    one.peer = receive.peer;
    one.into = receive.into;
  }
  Status status = Ok();
  while (status.ok() && !AllOver()) {
    const Result<bool> moved = Advance(tag);
    status = moved.status();
    if (status.ok() && !*moved) {
      status = Wait(waiter);
    } else if (status.ok() && !AllOver()) {
      status = StillInTime(waiter);  // bytes that trickle are no reason to stay
    }
  }
  // Unless it is known who calls something else.
  if (!status.ok() && waiting_.empty()) waiting_ = Missing();
  return status;
}

bool Mesh::AllOver() const {
  return std::all_of(receiving_.begin(), receiving_.end(), [](auto& one) { return one.over(); }) &&
         std::all_of(sending_.begin(), sending_.end(), [](auto& one) { return one.over(); });
}

std::vector<int> Mesh::Missing() const {
  std::vector<int> missing;
  for (const Receiving& one : receiving_) {
    if (!one.over()) missing.push_back(one.peer);
  }
  if (!missing.empty()) return missing;
  for (const Sending& one : sending_) {
    if (!one.over()) missing.push_back(one.peer);
  }
  return missing;
}

Result<bool> Mesh::Advance(const Tag& tag) {
  bool moved = false;
  for (Sending& one : sending_) {
    if (one.over()) continue;
    MUSTER_TRY_ASSIGN(const bool sent, Send(one));
    moved = moved || sent;
  }
  for (Receiving& one : receiving_) {
    if (one.over()) continue;
    MUSTER_TRY_ASSIGN(const bool received, Receive(one, tag));
    moved = moved || received;
  }
  return moved;
}

Result<bool> Mesh::Send(Sending& one) {
  const Peer& peer = peers_[static_cast<std::size_t>(one.peer)];
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  std::size_t at = one.done;
  if (at < net::kHeaderBytes) {
    parts[count++] = {one.header.data() + at, net::kHeaderBytes - at};
    at = net::kHeaderBytes;
  }
  const std::size_t from = at - net::kHeaderBytes;
  if (from < one.bytes.size()) {
    parts[count++] = {const_cast<std::byte*>(one.bytes.data()) + from,
                      std::min(one.bytes.size() - from, net::kBytesPerOperation)};
  }
  const ssize_t sent = peer.stream->Send({parts.data(), count});
  if (sent < 0) {
    if (net::WouldBlock(errno)) return false;
    if (Gone(errno)) return Unavailable("{} has closed its link", peer.name);
    return Broken(peer, "send");
  }
  one.done += static_cast<std::size_t>(sent);
  return true;
}

// One read of what there is, header and payload together. False: nothing was there. The checksum
// runs along, so that a long payload is not read twice.
Result<bool> Mesh::Receive(Receiving& one, const Tag& tag) {
  const Peer& peer = peers_[static_cast<std::size_t>(one.peer)];
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  const bool in_header = one.done < net::kHeaderBytes;
  const std::size_t from = in_header ? 0 : one.done - net::kHeaderBytes;
  if (in_header) parts[count++] = {one.header.data() + one.done, net::kHeaderBytes - one.done};
  if (from < one.into.size()) {
    parts[count++] = {one.into.data() + from,
                      std::min(one.into.size() - from, net::kBytesPerOperation)};
  }
  const ssize_t got = peer.stream->Receive(std::span<const iovec>(parts.data(), count));
  if (got < 0) {
    if (net::WouldBlock(errno)) return false;
    if (Gone(errno)) return Unavailable("{} has closed its link", peer.name);
    return Broken(peer, "read");
  }
  if (got == 0) return Unavailable("{} has closed its link", peer.name);
  const std::size_t before = one.done;
  one.done += static_cast<std::size_t>(got);
  if (in_header && one.done >= net::kHeaderBytes) MUSTER_TRY(CheckHeader(one, tag));
  if (one.crc_expected && one.done > net::kHeaderBytes) {
    const std::size_t begin = std::max(before, net::kHeaderBytes) - net::kHeaderBytes;
    one.crc = Crc32c(one.into.subspan(begin, one.done - net::kHeaderBytes - begin), one.crc);
  }
  if (one.over() && one.crc_expected) {
    MUSTER_TRY_ASSIGN(const net::FrameHeader header, net::DecodeHeader(one.header, kLimits));
    if (header.payload_crc != one.crc) {
      return DataLoss("{}: a checksum of {} bytes fails", peer.name, one.into.size());
    }
  }
  return true;
}

Status Mesh::CheckHeader(Receiving& one, const Tag& tag) {
  const std::string& name = peers_[static_cast<std::size_t>(one.peer)].name;
  auto header = net::DecodeHeader(one.header, kLimits);
  if (!header.ok()) return Annotate(header.status(), name);
  const auto theirs = std::bit_cast<WireTag>(header->ids);
  const Generation generation(theirs.generation);
  if (header->kind != kDataFrame || generation != tag.generation) {
    return DataLoss("{}: a frame of kind {} and generation {}, where generation {} has data", name,
                    header->kind, generation, tag.generation);
  }
  if (theirs.operation != tag.operation || theirs.signature != tag.signature ||
      header->payload_bytes != one.into.size()) {
    waiting_.push_back(one.peer);
    return InvalidArgument("{} calls something else", name);
  }
  one.crc_expected = (header->flags & net::kFlagPayloadCrc) != 0;
  return Ok();
}

Status Mesh::StillInTime(const Waiter& waiter) {
  if (waiter.over->load(std::memory_order_acquire)) return Cancelled("the group is over");
  if (std::chrono::steady_clock::now() < waiter.deadline) return Ok();
  return DeadlineExceeded("waited too long");
}

// Until one of the links can go on. First it looks for a while: waking up costs more than a small
// message takes. Where members outnumber processors it lets another run after each look.
Status Mesh::Wait(const Waiter& waiter) {
  std::vector<pollfd> entries;
  entries.reserve(sending_.size() + receiving_.size() + 1);
  for (const Sending& one : sending_) {
    if (one.over()) continue;
    entries.push_back({peers_[static_cast<std::size_t>(one.peer)].stream->fd(), POLLOUT, 0});
  }
  for (const Receiving& one : receiving_) {
    if (one.over()) continue;
    entries.push_back({peers_[static_cast<std::size_t>(one.peer)].stream->fd(), POLLIN, 0});
  }
  entries.push_back({waiter.wake, POLLIN, 0});
  const auto ready = [&](int timeout) {
    return ::poll(entries.data(), entries.size(), timeout) > 0;
  };
  if (spinner_.Begin()) {
    // A turn of everybody else's lasts longer than a look.
    const auto window = crowded_ ? kYielding : net::Spinner::kWindow;
    const auto until = std::chrono::steady_clock::now() + window;
    bool found = ready(0);
    while (!found && std::chrono::steady_clock::now() < until) {
      if (crowded_) std::this_thread::yield();
      found = ready(0);
    }
    spinner_.End(found);
    if (found && !waiter.over->load(std::memory_order_acquire)) return Ok();
  }
  if (waiter.over->load(std::memory_order_acquire)) return Cancelled("the group is over");
  const auto now = std::chrono::steady_clock::now();
  if (ready(net::PollTimeout(std::min(waiter.deadline, now + Waiter::kPatience)))) return Ok();
  waiter.SayThatItLasts(Missing());
  return ready(net::PollTimeout(waiter.deadline)) ? Ok() : StillInTime(waiter);
}

}  // namespace muster::collectives
