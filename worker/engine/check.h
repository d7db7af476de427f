// The dry run of a job's model: everything that can be found wrong before it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster::v1 {
class CheckReport;
class JobSpec;
}  // namespace muster::v1

namespace muster::engine {

struct CheckOptions {
  enum class Data {
    // Only what the spec says of its columns.
    kNone,
    // Read a first batch when the files are here; missing ones are no problem of the model.
    kIfPresent,
    // As kIfPresent, and whatever keeps the data from being read is a problem.
    kRequired
  };
  // On this host; empty without one.
  std::string archive_path;
  Data data = Data::kNone;
  // For record indexes and decoded copies. Empty: a folder of its own, removed at the end.
  std::string cache_directory;
  // How much the parameters and their gradients may take; nullopt: nobody knows.
  std::optional<std::uint64_t> memory_bytes;
};

// Compiles forward and loss, binds every argument, and runs one training and one evaluation batch
// of two examples: the data's first ones, else made-up ones of the declared shapes (without either,
// where only the files know the shapes, nothing is run).
v1::CheckReport CheckJob(const v1::JobSpec& spec, const CheckOptions& options);

}  // namespace muster::engine
