// Two ends of a link without a kernel between them. Time is a fake clock's: who would wait lets it
// run on to what comes next, or to the deadline, so that a test of slow peers takes no time.
//
// Threading: both ends on one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"
#include "common/net/link.h"
#include "tests/support/fake_scheduler.h"

namespace muster::net {

class MemoryLink final : public Link {
 public:
  // One direction: pieces in the order of their arrival.
  struct Stream {
    struct Piece {
      TimePoint at;
      std::vector<std::byte> bytes;
    };
    std::deque<Piece> pieces;
    std::size_t waiting = 0;
    // A writer finds no room beyond this.
    std::size_t capacity = std::numeric_limits<std::size_t>::max();
    bool ended = false;
  };

  MemoryLink(FakeScheduler& clock, std::shared_ptr<Stream> in, std::shared_ptr<Stream> out,
             std::string peer)
      : clock_(clock), in_(std::move(in)), out_(std::move(out)), peer_(std::move(peer)) {}

  // Who calls itself `a` is named so by the other end.
  static std::array<std::unique_ptr<MemoryLink>, 2> Pair(FakeScheduler& clock, std::string a,
                                                         std::string b) {
    auto there = std::make_shared<Stream>();
    auto back = std::make_shared<Stream>();
    return {std::make_unique<MemoryLink>(clock, back, there, std::move(b)),
            std::make_unique<MemoryLink>(clock, there, back, std::move(a))};
  }

  ~MemoryLink() override { ShutDown(); }

  LinkKind kind() const override { return LinkKind::kTcp; }
  const std::string& peer() const override { return peer_; }

  Result<std::size_t> Read(std::span<std::byte> into, TimePoint deadline, Fd*) override {
    for (;;) {
      if (!in_->pieces.empty() && in_->pieces.front().at <= clock_.Now()) return Take(into);
      if (shut_ || (in_->pieces.empty() && in_->ended)) return std::size_t{0};
      const bool coming = !in_->pieces.empty() && in_->pieces.front().at <= deadline;
      PassTimeUntil(coming ? in_->pieces.front().at : deadline);
      if (!coming) return DeadlineExceeded("{}: no bytes came", peer_);
    }
  }

  Result<std::size_t> Write(std::span<const iovec> parts, TimePoint deadline, int) override {
    if (shut_ || out_->ended) return Unavailable("{}: the link is closed", peer_);
    const std::size_t room = out_->capacity - std::min(out_->capacity, out_->waiting);
    if (room == 0) {
      PassTimeUntil(deadline);
      return DeadlineExceeded("{}: it took no bytes", peer_);
    }
    const auto* first = static_cast<const std::byte*>(parts.front().iov_base);
    const std::size_t n = std::min(room, parts.front().iov_len);
    out_->pieces.push_back({.at = clock_.Now(), .bytes = {first, first + n}});
    out_->waiting += n;
    bytes_ += n;
    return n;
  }

  void EndWrites() override { out_->ended = true; }
  void ShutDown() override {
    shut_ = true;
    in_->ended = true;
    out_->ended = true;
  }
  std::uint64_t bytes() const override { return bytes_; }

  // These bytes reach the other end `delay` from now: a peer that is slow.
  void WriteLater(std::span<const std::byte> bytes, Millis delay) {
    out_->pieces.push_back({.at = clock_.Now() + delay, .bytes = {bytes.begin(), bytes.end()}});
    out_->waiting += bytes.size();
  }
  // How much the other end takes before somebody reads there.
  void SetCapacity(std::size_t bytes) { out_->capacity = bytes; }

 private:
  std::size_t Take(std::span<std::byte> into) {
    Stream::Piece& piece = in_->pieces.front();
    const std::size_t n = std::min(into.size(), piece.bytes.size());
    std::memcpy(into.data(), piece.bytes.data(), n);
    piece.bytes.erase(piece.bytes.begin(), piece.bytes.begin() + static_cast<std::ptrdiff_t>(n));
    if (piece.bytes.empty()) in_->pieces.pop_front();
    in_->waiting -= n;
    bytes_ += n;
    return n;
  }
  void PassTimeUntil(TimePoint moment) {
    if (moment == TimePoint::max()) throw std::logic_error(peer_ + " would wait for ever");
    if (moment > clock_.Now()) clock_.Advance(std::chrono::ceil<Millis>(moment - clock_.Now()));
  }

  FakeScheduler& clock_;
  std::shared_ptr<Stream> in_;
  std::shared_ptr<Stream> out_;
  std::string peer_;
  bool shut_ = false;
  std::uint64_t bytes_ = 0;
};

}  // namespace muster::net
