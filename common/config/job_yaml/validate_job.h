// What makes a JobSpec wrong before anything runs: values out of range, settings that exclude each
// other, names that point nowhere. Works on the message alone, so the CLI and the coordinator
// agree. What only the data or the model can tell (shapes, a forward that does not compile) is a
// worker's to find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/job_yaml/problem.h"

namespace muster::v1 {
class DataSpec;
class JobSpec;
}  // namespace muster::v1

namespace muster::config {

inline constexpr std::size_t kLongestJobName = 64;
inline constexpr std::size_t kLongestName = 128;          // of a parameter, column, embedding
inline constexpr std::size_t kMostSourceBytes = 1 << 18;  // of forward, of a loss function
inline constexpr int kMostDimensions = 8;
inline constexpr std::int64_t kMostVariableBytes = std::int64_t{1} << 40;
inline constexpr std::uint32_t kMostBatch = 1 << 20;
inline constexpr std::uint32_t kMostDevices = 64;
inline constexpr std::uint32_t kLogicalShards = 8;  // of strategy.deterministic
inline constexpr std::uint32_t kMostWorkers = 10'000;
inline constexpr std::uint32_t kMostClosuresPerWorker = 1'024;
inline constexpr std::uint32_t kMostServers = 10'000;
// A program's executor cannot begin with less.
inline constexpr std::uint64_t kLeastMemory = std::uint64_t{64} << 20;
inline constexpr std::size_t kMostArgumentBytes = 1 << 18;  // of a program's command line
inline constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMostEpochs = 1'000'000;

// Every problem, in no particular order; empty: the job can be tried. `name` is required here.
Problems ValidateJob(const v1::JobSpec& spec);

// The same for one data section; `path` ("data", "evaluation.data") begins the problems' paths.
void ValidateData(const std::string& path, const v1::DataSpec& data, Problems& problems);

// The columns that the data declares, sorted; what forward, embeddings and loss may name.
std::vector<std::string> DeclaredColumns(const v1::DataSpec& data);

// Letters, digits and '_', not beginning with a digit, at most kLongestName: what TorchScript takes
// as a name of an argument or an attribute.
bool IsIdentifier(std::string_view name);

}  // namespace muster::config
