// How much of everything a job may have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster::job_limits {

inline constexpr std::size_t kLongestJobName = 64;
inline constexpr std::size_t kLongestName = 128;          // of a parameter, column, embedding
inline constexpr std::size_t kMostSourceBytes = 1 << 18;  // of forward, of a loss function
inline constexpr int kMostDimensions = 8;
inline constexpr std::int64_t kMostVariableBytes = std::int64_t{1} << 40;
inline constexpr std::uint32_t kMostBatch = 1 << 20;
inline constexpr std::uint32_t kMostDevices = 64;
inline constexpr std::uint32_t kLogicalShards = 8;  // of strategy.deterministic
inline constexpr std::uint32_t kMostWorkers = 10'000;
// When they make a model's steps together: each has two links to each other one.
inline constexpr std::uint32_t kMostStepWorkers = 64;
inline constexpr std::uint32_t kMostClosuresPerWorker = 1'024;
inline constexpr std::uint32_t kMostServers = 10'000;
// A program's executor cannot begin with less.
inline constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;
inline constexpr std::size_t kMostArgumentBytes = 1 << 18;  // of a program's command line
// In strategy.consistency, and in ParameterServerOptions of a program.
inline constexpr std::uint32_t kMostStaleness = 10'000;
inline constexpr std::uint32_t kMostGradients = 4'096;  // gradients_per_step
inline constexpr std::uint32_t kMostSpeculative = 1'000;
inline constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;
// What a Criteo reader has that gives no hash_buckets (job_spec.proto).
inline constexpr std::int64_t kDefaultCriteoBuckets = 1'000'003;
// Processes that come and go have places for more than twice as many, of which 1,024 can lead.
inline constexpr std::uint32_t kMostElasticWorkers = 500;
inline constexpr std::uint64_t kMostEpochs = 1'000'000;
inline constexpr std::uint32_t kMostProcessesPerWorker = 1'024;
// The addresses of all processes, which each of them has in TF_CONFIG: a string of an environment
// has 128 KiB at most (MAX_ARG_STRLEN of Linux).
inline constexpr std::size_t kMostAddressBytes = (128 << 10) - 1'024;
// All that the processes of one worker are told together: a message has 16 MiB at most.
inline constexpr std::size_t kMostStartBytes = 12 << 20;
// Whether `each` processes of one worker can be told `bytes` of addresses.
constexpr bool CanBeTold(std::uint64_t bytes, std::uint64_t each) {
  return bytes <= kMostAddressBytes && bytes * each <= kMostStartBytes;
}
// What one address takes: "255.255.255.255:65535", with its quotes, a comma and a space.
inline constexpr std::size_t kUsualAddressBytes = 25;
inline constexpr int kMostLaunchFiles = 256;
// Last lines of a log that can be asked for: they are all in memory until the reader has them.
inline constexpr std::uint32_t kMostTail = 10'000;
inline constexpr std::uint32_t kMostGraceMs = 3'600'000;

}  // namespace muster::job_limits
