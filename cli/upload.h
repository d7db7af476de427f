// A model's archive, or a program, on its way to the coordinator.
#pragma once

#include <cstdint>

#include "cli/job_api.h"
#include "cli/terminal.h"
#include "common/base/status.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::cli {

inline constexpr std::uint64_t kMostFileBytes = 256 << 20;

// Sends spec.model.archive unless the coordinator has it, and writes its SHA-256 into the spec.
//   kInvalidArgument: no such file, or not a regular one.  kResourceExhausted: larger than 256 MiB.
//   kAborted: it changed while it was read.
Status UploadArchive(const Terminal& terminal, JobApi& api, v1::JobSpec& spec);

// The same of the executable at `path`, for spec.program.
Status UploadProgram(const Terminal& terminal, JobApi& api, const std::string& path,
                     v1::JobSpec& spec);

// The same of any file; its SHA-256. `what` begins the messages.
Result<std::string> UploadFile(const Terminal& terminal, JobApi& api, const std::string& what,
                               const std::string& path);

// SHA-256 of a file in hex, read in pieces.
Result<std::string> Sha256OfFile(const std::string& path);

}  // namespace muster::cli
