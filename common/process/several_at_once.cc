#include "common/process/several_at_once.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace muster::process {

void SeveralAtOnce(std::size_t count, std::size_t most,
                   const std::function<void(std::size_t)>& one) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) one(i);
  };
  std::vector<std::jthread> helpers;
  try {
    while (helpers.size() + 1 < std::min(count, most)) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads
  }
  work();
}

}  // namespace muster::process
