// Which of many links there is something to do for: one call of the kernel tells of all, where
// asking each of 1,000 whenever one of them has something would keep a processor busy.
//
// Threading: the links' leader.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <poll.h>

#include "common/base/scheduler.h"
#include "common/net/duplex_link.h"
#include "common/net/socket_calls.h"

namespace muster::collectives {

class LinkNews {
 public:
  // Waits as net::WaitForLinks(); null links have no news.
  void Await(std::span<net::DuplexLink* const> links, int wake, TimePoint deadline) {
    entries_.clear();
    for (const net::DuplexLink* link : links) {
      if (link == nullptr) continue;
      const bool waits = link->unsent() > 0;
      entries_.push_back({link->fd(), static_cast<short>(POLLIN | (waits ? POLLOUT : 0)), 0});
      deadline = std::min(deadline, link->next_tick());
    }
    entries_.push_back({wake, POLLIN, 0});
    const bool told = ::poll(entries_.data(), entries_.size(), net::PollTimeout(deadline)) >= 0;
    const TimePoint now = std::chrono::steady_clock::now();
    news_.assign(links.size(), false);
    auto entry = entries_.begin();
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (links[i] == nullptr) continue;
      news_[i] = !told || entry->revents != 0 || links[i]->next_tick() <= now;
      ++entry;
    }
  }

  // Link number `i` can be read, has ended, takes more of what waits, or a tick of it is due.
  // Before the first wait, and behind the links that it was for: nobody knows, so it may.
  bool Has(std::size_t i) const { return i >= news_.size() || news_[i]; }

 private:
  std::vector<pollfd> entries_;  // kept between waits for their memory
  std::vector<bool> news_;
};

}  // namespace muster::collectives
