#include "common/net/channel.h"

#include <algorithm>
#include <cstring>

#include "common/base/crc32c.h"

namespace muster::net {
namespace {

constexpr std::size_t kMaxMessage = 4096;

iovec PartOf(std::span<const std::byte> bytes) {
  // sendmsg takes pointers to non-const and only reads through them.
  return {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
}

}  // namespace

Status Channel::Send(FrameHeader header, std::span<const std::byte> meta,
                     std::span<const iovec> payload, TimePoint deadline, int descriptor) {
  std::vector<iovec> parts;
  parts.reserve(payload.size() + 2);
  std::array<std::byte, kHeaderBytes> raw;
  parts.push_back(PartOf(raw));
  if (!meta.empty()) parts.push_back(PartOf(meta));
  header.meta_bytes = static_cast<std::uint32_t>(meta.size());
  header.meta_crc = meta.empty() ? 0 : Crc32c(meta);
  header.payload_bytes = 0;
  header.payload_crc = 0;
  for (const iovec& part : payload) {
    if (part.iov_len == 0) continue;
    parts.push_back(part);
    header.payload_bytes += part.iov_len;
    if (payload_crc_) {
      header.payload_crc =
          Crc32c(std::span(static_cast<const std::byte*>(part.iov_base), part.iov_len),
                 header.payload_crc);
    }
  }
  if (payload_crc_ && header.payload_bytes > 0) header.flags |= kFlagPayloadCrc;
  EncodeHeader(header, raw);
  const Status status = WriteAll(*link_, clock_, parts, deadline, descriptor);
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return Annotate(status, fmt::format("frame {} of kind {}", header.request, header.kind));
}

Status Channel::SendError(const FrameHeader& request, FrameKind kind, const Status& error,
                          TimePoint deadline) {
  std::string message = Message(error);
  if (message.size() > kMaxMessage) message.resize(kMaxMessage);
  FrameHeader header{.kind = kind, .request = request.request, .ids = request.ids};
  header.status = static_cast<std::uint32_t>(error.code());
  return Send(header, std::as_bytes(std::span(message)), {}, deadline);
}

std::string Channel::Took(TimePoint began) const {
  const std::chrono::duration<double> took = clock_.Now() - began;
  return fmt::format("{:.3g} s", took.count());
}

// Reads ahead as much as the buffer takes, so that a small frame comes in one call of the kernel.
// The limit for the rest of a header begins with its first byte.
Result<bool> Channel::Fill(std::size_t n, TimePoint first, Millis rest, TimePoint latest) {
  MUSTER_INVARIANT(n <= buffer_.size());
  if (end_ - begin_ >= n) return true;
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - begin_ < n) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  TimePoint began = clock_.Now();
  TimePoint deadline = std::min(end_ > begin_ ? began + rest : first, latest);
  while (end_ - begin_ < n) {
    const Result<std::size_t> got = link_->Read(std::span(buffer_).subspan(end_), deadline,
                                                expect_descriptor_ ? &descriptor_ : nullptr);
    if (got.status().code() == StatusCode::kDeadlineExceeded) {
      if (end_ == begin_)
        return DeadlineExceeded("{}: no frame for {}", link_->peer(), Took(began));
      return DeadlineExceeded("{}: {} of {} bytes of a frame's header came in {}", link_->peer(),
                              end_ - begin_, n, Took(began));
    }
    MUSTER_TRY(got.status());
    if (*got == 0) {
      if (end_ == begin_) return false;
      return DataLoss("{} closed the connection inside a frame: {} of {} bytes came", link_->peer(),
                      end_ - begin_, n);
    }
    if (end_ == begin_ && *got < n) {
      began = clock_.Now();
      deadline = std::min(began + rest, latest);
    }
    end_ += *got;
  }
  return true;
}

Result<bool> Channel::AwaitFrame(TimePoint deadline) {
  const Result<bool> begun = Fill(1, deadline, Millis(0), deadline);
  if (begun.status().code() == StatusCode::kDeadlineExceeded) return false;
  MUSTER_TRY(begun.status());
  return true;
}

Result<std::optional<FrameHeader>> Channel::ReadFrame(TimePoint deadline) {
  const auto rest = std::chrono::ceil<Millis>(deadline - clock_.Now());
  return ReadFrame(deadline, std::max(rest, Millis(1)), deadline);
}

Result<std::optional<FrameHeader>> Channel::ReadFrame(TimePoint first, Millis rest,
                                                      TimePoint latest) {
  MUSTER_INVARIANT(payload_left_ == 0);
  MUSTER_TRY_ASSIGN(const bool more, Fill(kHeaderBytes, first, rest, latest));
  if (!more) return std::optional<FrameHeader>();
  const std::span<const std::byte> raw(buffer_.data() + begin_, kHeaderBytes);
  auto header = DecodeHeader(raw.first<kHeaderBytes>(), limits_);
  if (!header.ok()) return Annotate(header.status(), link_->peer());
  begin_ += kHeaderBytes;
  current_ = *header;
  frame_began_ = clock_.Now();

  meta_.resize(current_.meta_bytes);
  if (!meta_.empty()) {
    MUSTER_TRY(Fetch(meta_, std::min(frame_began_ + rest, latest), "meta", 0, meta_.size()));
    if (Crc32c(meta_) != current_.meta_crc) {
      return DataLoss("{}: frame {}: meta of {} bytes fails its checksum", link_->peer(),
                      current_.request, meta_.size());
    }
  }
  payload_left_ = current_.payload_bytes;
  crc_so_far_ = 0;
  return std::optional(current_);
}

Status Channel::Fetch(std::span<std::byte> into, TimePoint deadline, std::string_view part,
                      std::uint64_t first, std::uint64_t all) {
  const std::size_t ahead = std::min(into.size(), end_ - begin_);
  if (ahead > 0) std::memcpy(into.data(), buffer_.data() + begin_, ahead);
  begin_ += ahead;
  std::span<std::byte> left = into.subspan(ahead);
  const auto came = [&] { return first + into.size() - left.size(); };
  while (!left.empty()) {
    const TimePoint until = quiet_limit_ ? std::min(deadline, After(*quiet_limit_)) : deadline;
    const Result<std::size_t> got = link_->Read(left, until, nullptr);
    if (got.status().code() == StatusCode::kDeadlineExceeded) {
      return DeadlineExceeded("{}: frame {} of kind {}: {} of {} bytes of its {} came in {}",
                              link_->peer(), current_.request, current_.kind, came(), all, part,
                              Took(frame_began_));
    }
    MUSTER_TRY(got.status());
    if (*got == 0) {
      return DataLoss("{} closed the connection inside frame {}: {} of {} bytes of its {} came",
                      link_->peer(), current_.request, came(), all, part);
    }
    left = left.subspan(*got);
  }
  return Ok();
}

Status Channel::ReadPayload(std::span<std::byte> into, TimePoint deadline) {
  MUSTER_INVARIANT(into.size() <= payload_left_);
  MUSTER_TRY(Fetch(into, deadline, "payload", current_.payload_bytes - payload_left_,
                   current_.payload_bytes));
  payload_left_ -= into.size();
  if (!payload_crc_ || (current_.flags & kFlagPayloadCrc) == 0) return Ok();
  crc_so_far_ = Crc32c(into, crc_so_far_);
  if (payload_left_ == 0 && crc_so_far_ != current_.payload_crc) {
    return DataLoss("{}: frame {}: payload of {} bytes fails its checksum", link_->peer(),
                    current_.request, current_.payload_bytes);
  }
  return Ok();
}

Status Channel::SkipPayload(TimePoint deadline) {
  std::vector<std::byte> scratch(std::min<std::uint64_t>(payload_left_, 1U << 16));
  while (payload_left_ > 0) {
    const std::size_t n = std::min<std::uint64_t>(payload_left_, scratch.size());
    MUSTER_TRY(Fetch(std::span(scratch).first(n), deadline, "payload",
                     current_.payload_bytes - payload_left_, current_.payload_bytes));
    payload_left_ -= n;
  }
  return Ok();
}

Status StatusOf(const FrameHeader& header, std::span<const std::byte> meta) {
  if (header.status == 0) return Ok();
  const std::string_view text(reinterpret_cast<const char*>(meta.data()), meta.size());
  // A peer may invent a code; canonical ones end at 16.
  const auto code =
      header.status <= 16 ? static_cast<StatusCode>(header.status) : StatusCode::kUnknown;
  return MakeStatus(code, text);
}

}  // namespace muster::net
