// Which parameter servers the shards of variables go to, as variables are made.
//
// Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::partition {

class Placer {
 public:
  enum class Policy {
    // Shards go round the servers in the order of creation, each variable starting where the one
    // before it ended: tf.distribute's rule.
    kRoundRobin,
    // Each shard goes to the server with the fewest bytes, the first of several.
    kByBytes,
  };

  // servers >= 1.
  explicit Placer(std::uint32_t servers);

  // The server of each shard of one variable; `bytes` has one number for each shard.
  std::vector<std::uint32_t> Place(std::span<const std::uint64_t> bytes,
                                   Policy policy = Policy::kRoundRobin);
  // Shards that lie where somebody else has decided: the round goes on where it is.
  void Add(std::span<const std::uint32_t> servers, std::span<const std::uint64_t> bytes);
  // They are deleted, or could not be made. The round goes on where it is.
  void Remove(std::span<const std::uint32_t> servers, std::span<const std::uint64_t> bytes);

 private:
  std::uint32_t next_ = 0;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace muster::partition
