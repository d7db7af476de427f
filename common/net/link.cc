#include "common/net/link.h"

#include <vector>

namespace muster::net {
namespace {

std::uint64_t BytesOf(std::span<const iovec> parts) {
  std::uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

}  // namespace

std::span<iovec> Advance(std::span<iovec> parts, std::size_t n) {
  while (!parts.empty() && n >= parts.front().iov_len) {
    n -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (!parts.empty()) {
    parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + n;
    parts.front().iov_len -= n;
  }
  return parts;
}

Status WriteAll(Link& link, const Clock& clock, std::span<iovec> parts, TimePoint deadline,
                int descriptor) {
  const TimePoint began = clock.Now();
  std::uint64_t taken = 0;
  parts = Advance(parts, 0);
  while (!parts.empty()) {
    const Result<std::size_t> n = link.Write(parts, deadline, descriptor);
    if (n.status().code() == StatusCode::kDeadlineExceeded) {
      const std::chrono::duration<double> took = clock.Now() - began;
      return DeadlineExceeded("{} took {} of {} bytes in {:.3g} s", link.peer(), taken,
                              taken + BytesOf(parts), took.count());
    }
    MUSTER_TRY(n.status());
    descriptor = -1;
    taken += *n;
    parts = Advance(parts, *n);
  }
  return Ok();
}

Status Finish(Link& link, const Clock& clock, TimePoint deadline) {
  constexpr std::size_t kMost = std::size_t{64} << 20;
  link.EndWrites();
  std::vector<std::byte> scratch(std::size_t{64} << 10);
  for (std::size_t discarded = 0; discarded < kMost;) {
    if (clock.Now() >= deadline) break;
    MUSTER_TRY_ASSIGN(const std::size_t n, link.Read(scratch, deadline, nullptr));
    if (n == 0) break;
    discarded += n;
  }
  return Ok();
}

}  // namespace muster::net
