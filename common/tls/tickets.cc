#include "common/tls/tickets.h"

#include <algorithm>
#include <utility>

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "common/tls/certificate.h"

namespace muster::tls {

using std::chrono::system_clock;

void FreeSslSession::operator()(ssl_session_st* one) const { SSL_SESSION_free(one); }

system_clock::time_point GoodUntil(const ssl_st* ssl) {
  system_clock::time_point until = system_clock::now() + kTicketLife;
  const STACK_OF(X509)* const chain = SSL_get0_verified_chain(ssl);
  for (int i = 0; i < sk_X509_num(chain); ++i) {
    until = std::min(until, PeriodOf(*sk_X509_value(chain, i)).until);
  }
  return until;
}

void Tickets::Keep(Ticket ticket) {
  const MutexLock lock(mutex_);
  if (tickets_.size() >= kMost) tickets_.pop_front();
  tickets_.push_back(std::move(ticket));
}

Ticket Tickets::Take(const std::string& task, system_clock::time_point now) {
  const MutexLock lock(mutex_);
  std::erase_if(tickets_, [now](const Ticket& one) { return one.until <= now; });
  const auto newest = std::find_if(tickets_.rbegin(), tickets_.rend(),
                                   [&](const Ticket& one) { return one.task == task; });
  if (newest == tickets_.rend()) return {};
  Ticket taken = std::move(*newest);
  tickets_.erase(std::next(newest).base());
  return taken;
}

}  // namespace muster::tls
