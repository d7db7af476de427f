// Tickets: by what a peer that has proven itself by its certificate comes back without showing it
// again, in less time. Nothing that a certificate is refused for is passed over: who comes by a
// ticket is held against the list of those who are let in and against the dates of all certificates
// that it was verified by, and must else prove itself anew.
//
// A server keeps nothing: its tickets are sessions behind a key that this process alone has, and
// that goes when the certificate's files change. A client keeps the sessions that they stand for.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "common/base/mutex.h"

struct ssl_st;
struct ssl_session_st;

namespace muster::tls {

// After so long a peer shows its certificate again, however often it has come back since.
inline constexpr std::chrono::seconds kTicketLife{3600};
// A server gives no tickets for certificates above it, which would be as large.
inline constexpr int kLargestInTicket = 16 << 10;

struct FreeSslSession {
  void operator()(ssl_session_st* one) const;
};
using SslSessionPtr = std::unique_ptr<ssl_session_st, FreeSslSession>;

struct Ticket {
  // Whose: the task at the other end.
  std::string task = {};
  SslSessionPtr session = {};
  // When the first of the certificates ends that it was verified by, or its time is over.
  std::chrono::system_clock::time_point until = {};
};

// Until when a peer that has been verified by certificates just now may come back by a ticket.
std::chrono::system_clock::time_point GoodUntil(const ssl_st* ssl);

// A client's tickets. Each is good once; what is too much goes, the oldest first.
// Threading: any thread.
class Tickets {
 public:
  // 2 to 4 KB each.
  static constexpr std::size_t kMost = 256;

  void Keep(Ticket ticket);
  // The newest of the task's that is good at `now`; without a session: there is none.
  Ticket Take(const std::string& task, std::chrono::system_clock::time_point now);

 private:
  Mutex mutex_;
  // Oldest first.
  std::deque<Ticket> tickets_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::tls
