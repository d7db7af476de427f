#include "common/partition/placer.h"

#include <algorithm>

namespace muster::partition {

Placer::Placer(std::uint32_t servers) : bytes_(servers) {}

std::vector<std::uint32_t> Placer::Place(std::span<const std::uint64_t> bytes, Policy policy) {
  std::vector<std::uint32_t> servers;
  for (const std::uint64_t shard : bytes) {
    std::uint32_t server = next_;
    if (policy == Policy::kByBytes) {
      server = static_cast<std::uint32_t>(std::ranges::min_element(bytes_) - bytes_.begin());
    }
    bytes_[server] += shard;
    next_ = (next_ + 1) % static_cast<std::uint32_t>(bytes_.size());
    servers.push_back(server);
  }
  return servers;
}

void Placer::Add(std::span<const std::uint32_t> servers, std::span<const std::uint64_t> bytes) {
  for (std::size_t i = 0; i < servers.size(); ++i) bytes_[servers[i]] += bytes[i];
}

void Placer::Remove(std::span<const std::uint32_t> servers, std::span<const std::uint64_t> bytes) {
  for (std::size_t i = 0; i < servers.size(); ++i) bytes_[servers[i]] -= bytes[i];
}

}  // namespace muster::partition
