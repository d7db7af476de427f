#include "common/net/duplex_link.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "common/base/crc32c.h"
#include "common/net/socket.h"
#include "common/net/socket_calls.h"

namespace muster::net {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{64} << 10;
// So much is read at a time from a peer that sends on and on: its leader has other links.
constexpr std::size_t kMostAtOnce = std::size_t{16} << 20;
// More would come from a peer that means harm.
constexpr std::size_t kMostDescriptors = 4;

bool WouldWait(int error) { return WouldBlock(error) || error == EINTR; }

void Append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

DuplexLink::DuplexLink(Fd fd, LinkKind kind, std::string peer, Options options, const Clock& clock)
    : DuplexLink(std::make_shared<Stream>(std::move(fd)), kind, std::move(peer), options, clock) {}

DuplexLink::DuplexLink(std::shared_ptr<Stream> stream, LinkKind kind, std::string peer,
                       Options options, const Clock& clock)
    : stream_(std::move(stream)),
      kind_(kind),
      peer_(std::move(peer)),
      options_(options),
      clock_(clock),
      in_(kFirstBuffer),
      heard_(clock.Now()) {
  if (kind_ != LinkKind::kUnix) return;
  // The kernel's own is 208 KiB, and each side sleeps once for so many bytes.
  const int bytes = static_cast<int>(kBytesPerOperation);
  (void)::setsockopt(stream_->fd(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

// Copies what is small and holds on to the rest until it is sent. A frame is taken whole or not at
// all; one alone may be larger than the bound.
Status DuplexLink::Queue(FrameHeader header, std::span<const std::byte> meta,
                         std::span<const KeptBytes> payload, Fd descriptor) {
  header.meta_bytes = static_cast<std::uint32_t>(meta.size());
  header.meta_crc = meta.empty() ? 0 : Crc32c(meta);
  header.payload_bytes = 0;
  header.payload_crc = 0;
  for (const KeptBytes& part : payload) {
    header.payload_bytes += part.size();
    if (options_.payload_crc) header.payload_crc = Crc32c(part, header.payload_crc);
  }
  if (options_.payload_crc && header.payload_bytes > 0) header.flags |= kFlagPayloadCrc;
  std::array<std::byte, kHeaderBytes> raw;
  EncodeHeader(header, raw);

  const MutexLock lock(out_mutex_);
  if (shut_down_) return Unavailable("{}: the link is closed", peer_);
  const bool ping = header.kind == kPing;
  if (ping && ping_unsent_ > 0) return Ok();  // one is on its way
  const std::size_t more = raw.size() + meta.size() + header.payload_bytes;
  const std::size_t waiting = out_.size() - sent_ + held_bytes_;
  if (waiting > 0 && !ping && waiting + more > options_.most_unsent) {
    return ResourceExhausted("{}: {} bytes wait to be sent, limit {}: it reads nothing", peer_,
                             waiting, options_.most_unsent);
  }
  if (descriptor.valid()) attached_.push_back({out_.size(), std::move(descriptor)});
  Append(out_, raw);
  Append(out_, meta);
  for (const KeptBytes& part : payload) {
    if (part.worth_holding()) {
      held_.push_back({out_.size(), part});
      held_bytes_ += part.size();
    } else {
      Append(out_, part);
    }
  }
  unsent_.store(waiting + more, std::memory_order_release);
  if (ping) ping_unsent_ = waiting + more;
  return Ok();
}

// Sends what waits until there is nothing left or the socket is full. A descriptor begins a call of
// its own, since it rides on the first byte.
Result<bool> DuplexLink::Flush() {
  const MutexLock lock(out_mutex_);
  while (sent_ < out_.size() || !held_.empty()) {
    const bool from_held = !held_.empty() && held_.front().at == sent_;
    std::span<const std::byte> next;
    int riding = -1;
    if (from_held) {
      next = held_.front().bytes;
    } else {
      std::size_t until = held_.empty() ? out_.size() : held_.front().at;
      if (!attached_.empty() && attached_.front().at == sent_) {
        riding = attached_.front().descriptor.get();
        if (attached_.size() > 1) until = std::min(until, attached_[1].at);
      } else if (!attached_.empty()) {
        until = std::min(until, attached_.front().at);
      }
      next = std::span(out_).subspan(sent_, until - sent_);
    }
    next = next.first(std::min(next.size(), kBytesPerOperation));
    iovec part{.iov_base = const_cast<std::byte*>(next.data()), .iov_len = next.size()};
    const ssize_t n = stream_->SendWith({&part, 1}, riding);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && WouldWait(errno)) break;
    if (n < 0) return stream_->Broken(errno, "write", peer_);
    if (riding >= 0) attached_.pop_front();
    Sent(static_cast<std::size_t>(n), from_held);
  }
  const bool all = sent_ == out_.size() && held_.empty();
  if (all || sent_ > out_.size() / 2) {
    for (Attached& one : attached_) one.at -= sent_;
    for (Held& one : held_) one.at -= sent_;
    out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(sent_));
    sent_ = 0;
    // What one large frame took is given back.
    if (all && out_.capacity() > 16 * kFirstBuffer) out_.shrink_to_fit();
  }
  unsent_.store(out_.size() - sent_ + held_bytes_, std::memory_order_release);
  return all;
}

void DuplexLink::Sent(std::size_t bytes, bool from_held) {
  if (ping_unsent_ > 0) {
    ping_unsent_ -= std::min(ping_unsent_, bytes);
    ping_moved_ = clock_.Now();
  }
  if (!from_held) {
    sent_ += bytes;
    return;
  }
  held_bytes_ -= bytes;
  KeptBytes& first = held_.front().bytes;
  if (bytes == first.size()) {
    held_.pop_front();
  } else {
    first = first.Part(first.view().subspan(bytes));
  }
}

void DuplexLink::ShutDown() {
  {
    const MutexLock lock(out_mutex_);
    shut_down_ = true;
  }
  stream_->ShutDown();
}

// What is left is in the socket, where the next wait sees it; but TLS may have taken it from there.
Result<std::size_t> DuplexLink::Receive(Handler handler) {
  std::size_t handled = 0;
  for (std::size_t read = 0; read < kMostAtOnce || stream_->encrypted();) {
    const std::span<std::byte> room = Room();
    MUSTER_TRY_ASSIGN(const std::size_t got, ReadInto(room));
    if (got == 0) return handled;
    read += got;
    heard_ = clock_.Now();
    for (;;) {
      MUSTER_TRY_ASSIGN(const bool whole, HandleOne(handler));
      if (!whole) break;
      ++handled;
    }
    if (got < room.size()) return handled;
  }
  return handled;
}

std::span<std::byte> DuplexLink::Room() {
  if (long_) {
    return {long_->payload.get() + long_->got, std::min(long_->left(), kBytesPerOperation)};
  }
  if (begin_ == end_) begin_ = end_ = 0;
  return std::span(in_).subspan(end_, std::min(in_.size() - end_, kBytesPerOperation));
}

// Reads what is there into Room(); 0: nothing.
Result<std::size_t> DuplexLink::ReadInto(std::span<std::byte> room) {
  const ssize_t n =
      kind_ == LinkKind::kTcp ? stream_->Receive(room) : stream_->ReceiveWith(room, [this](Fd fd) {
        if (descriptors_.size() < kMostDescriptors) descriptors_.push_back(std::move(fd));
      });
  if (n > 0) {
    (long_ ? long_->got : end_) += static_cast<std::size_t>(n);
    return static_cast<std::size_t>(n);
  }
  if (n == 0) return Closed();
  if (WouldWait(errno)) return std::size_t{0};
  return stream_->Broken(errno, "read", peer_);
}

Status DuplexLink::Closed() const {
  if (begin_ == end_ && !long_) return Unavailable("{} closed the connection", peer_);
  return DataLoss("{} closed the connection inside a frame, {} bytes of which came", peer_,
                  long_ ? kHeaderBytes + long_->meta.size() + long_->got : end_ - begin_);
}

// Room for a frame of `wanted` bytes. The peer chose that number: memory grows with what has come.
void DuplexLink::MakeRoom(std::size_t wanted) {
  if (begin_ > 0) {
    std::memmove(in_.data(), in_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (wanted > in_.size() && end_ == in_.size()) in_.resize(std::min(wanted, 2 * in_.size()));
}

// The first whole frame of what was read. False: there is none yet, but room for it.
Result<bool> DuplexLink::HandleOne(Handler handler) {
  if (long_) {
    if (long_->left() > 0) return false;
    const Long whole = *std::exchange(long_, std::nullopt);
    const std::span<const std::byte> payload(whole.payload.get(), whole.got);
    MUSTER_TRY(Handle(whole.header, whole.meta, {payload, whole.payload}, handler));
    return true;
  }
  const std::span<const std::byte> have(in_.data() + begin_, end_ - begin_);
  if (have.size() < kHeaderBytes) {
    MakeRoom(kHeaderBytes);
    return false;
  }
  auto header = DecodeHeader(have.first<kHeaderBytes>(), options_.limits);
  if (!header.ok()) return Annotate(header.status(), peer_);
  const std::size_t before_payload = kHeaderBytes + header->meta_bytes;
  const bool is_long = header->payload_bytes >= kLongBytes;
  const std::size_t whole = before_payload + (is_long ? 0 : header->payload_bytes);
  if (have.size() < whole) {
    MakeRoom(whole);
    return false;
  }
  if (is_long) {
    BeginLong(*header);
    return HandleOne(handler);
  }
  begin_ += whole;
  MUSTER_TRY(Handle(*header, have.subspan(kHeaderBytes, header->meta_bytes),
                    have.subspan(before_payload, header->payload_bytes), handler));
  // What one large frame took is given back.
  if (begin_ == end_ && in_.size() > 16 * kFirstBuffer) {
    begin_ = end_ = 0;
    in_ = std::vector<std::byte>(kFirstBuffer);
  }
  return true;
}

// Its header and meta are there. Pages are taken as bytes come, not as the peer announces them.
void DuplexLink::BeginLong(const FrameHeader& header) {
  const auto have = std::span(in_).subspan(begin_, end_ - begin_);
  const auto meta = have.subspan(kHeaderBytes, header.meta_bytes);
  auto payload = have.subspan(kHeaderBytes + meta.size());
  payload = payload.first(std::min<std::size_t>(payload.size(), header.payload_bytes));
  long_ = Long{.header = header,
               .meta = {meta.begin(), meta.end()},
               .payload = NewBytes(header.payload_bytes),
               .got = payload.size()};
  if (!payload.empty()) std::memcpy(long_->payload.get(), payload.data(), payload.size());
  begin_ += kHeaderBytes + meta.size() + payload.size();
}

Status DuplexLink::Handle(const FrameHeader& header, std::span<const std::byte> meta,
                          const KeptBytes& payload, Handler handler) {
  if (!meta.empty() && Crc32c(meta) != header.meta_crc) {
    return DataLoss("{}: frame {}: meta of {} bytes fails its checksum", peer_, header.request,
                    meta.size());
  }
  if ((header.flags & kFlagPayloadCrc) != 0 && Crc32c(payload) != header.payload_crc) {
    return DataLoss("{}: frame {}: payload of {} bytes fails its checksum", peer_, header.request,
                    payload.size());
  }
  spoken_to_ = true;
  if (header.kind == kPing || header.kind == kPong) return HandleConnection(header);
  return handler(header, meta, payload);
}

Status DuplexLink::HandleConnection(const FrameHeader& header) {
  if (header.kind == kPong) return Ok();  // to have heard it is all
  const Status queued = Queue({.kind = kPong, .request = header.request}, {}, {});
  // There is no room for it: so much else is on its way, and tells the same.
  if (queued.code() == StatusCode::kResourceExhausted) return Ok();
  MUSTER_TRY(queued);
  return Flush().status();
}

// A slow peer may take long to come to a ping that many megabytes were queued before: as long as it
// takes them it does not stand still.
TimePoint DuplexLink::Asked() const { return std::max(*pinged_, ping_moved_.load()); }

Status DuplexLink::Tick() {
  const TimePoint now = clock_.Now();
  if (pinged_ && heard_ >= *pinged_) pinged_.reset();
  if (pinged_ && now - Asked() >= options_.silence) {
    return DeadlineExceeded("{} answers nothing, not a ping either, for {} ms", peer_,
                            std::chrono::duration_cast<Millis>(now - heard_).count());
  }
  if (pinged_ || !spoken_to_ || now - heard_ < options_.ping_every) return Ok();
  pinged_ = now;
  MUSTER_TRY(Queue({.kind = kPing}, {}, {}));
  return Flush().status();
}

TimePoint DuplexLink::next_tick() const {
  if (pinged_) return Asked() + options_.silence;
  return spoken_to_ ? heard_ + options_.ping_every : TimePoint::max();
}

Fd DuplexLink::TakeDescriptor() {
  if (descriptors_.empty()) return {};
  Fd oldest = std::move(descriptors_.front());
  descriptors_.pop_front();
  return oldest;
}

namespace {

// Looks at the links without blocking for the spinner's window. True: one has something.
bool Spin(std::span<DuplexLink* const> links, Spinner& spinner) {
  const auto start = std::chrono::steady_clock::now();
  bool found = false;
  do {
    for (const DuplexLink* link : links) {
      if (link == nullptr) continue;
      std::byte first;
      const ssize_t n = ::recv(link->fd(), &first, 1, MSG_DONTWAIT | MSG_PEEK);
      found = found || n >= 0 || !WouldWait(errno);
    }
  } while (!found && std::chrono::steady_clock::now() - start < Spinner::kWindow);
  spinner.End(found);
  return found;
}

}  // namespace

void WaitForLinks(std::span<DuplexLink* const> links, int wake, TimePoint deadline,
                  Spinner* spinner) {
  if (spinner != nullptr && spinner->Begin() && Spin(links, *spinner)) return;
  // Enough for most; poll() is given the number.
  std::vector<pollfd> entries;
  entries.reserve(links.size() + 1);
  for (DuplexLink* link : links) {
    if (link == nullptr) continue;
    const bool waits = link->unsent() > 0;
    entries.push_back({link->fd(), static_cast<short>(POLLIN | (waits ? POLLOUT : 0)), 0});
    deadline = std::min(deadline, link->next_tick());
  }
  if (wake >= 0) entries.push_back({wake, POLLIN, 0});
  (void)::poll(entries.data(), entries.size(), PollTimeout(deadline));
}

}  // namespace muster::net
