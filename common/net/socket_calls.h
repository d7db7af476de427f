// Calls of the kernel on stream sockets that do not block, with descriptors beside the bytes: what
// blocking use (socket.h) and use in both directions at once (duplex_link.h) have in common.
//
// Threading: any. Errors: as the calls, -1 and errno.
#pragma once

#include <cstddef>
#include <span>

#include <absl/functional/function_ref.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "common/base/scheduler.h"
#include "common/net/fd.h"

namespace muster::net {

bool WouldBlock(int error);

// What poll() takes until then, by the steady clock; TimePoint::max(): no limit.
int PollTimeout(TimePoint deadline);

// What poll() answers for this one descriptor; a signal does not end the wait. 0: the deadline.
int PollUntil(int fd, short events, TimePoint deadline);

// `descriptor` rides on the first byte; -1: none.
ssize_t SendParts(int fd, std::span<iovec> parts, int descriptor);

// Gives every descriptor that came along to `take`: the kernel has installed all of them, and one
// that nobody takes is closed.
ssize_t ReceiveWithDescriptors(int fd, std::span<std::byte> into, absl::FunctionRef<void(Fd)> take);

}  // namespace muster::net
