// Whose a folder of checkpoints is: OWNER.json beside its steps. Two jobs that wrote below one
// folder would delete each other's checkpoints. docs/formats/checkpoint.md.
//
// Threading: free functions from any thread. Errors: those of FileSystem, and what is named.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/storage/file_system.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {

inline constexpr char kOwnerName[] = "OWNER.json";

// None: nobody's, or no such folder. kDataLoss: a mark that cannot be read; the message says what
// to do.
Result<std::optional<v1::CheckpointOwner>> ReadOwner(const std::string& root,
                                                     FileSystem& files = RealFileSystem());
// Marks a folder that is nobody's. kAlreadyExists: somebody was faster.
Status ClaimFolder(const std::string& root, const v1::CheckpointOwner& owner,
                   FileSystem& files = RealFileSystem());
// Marks it whoever it belongs to.
Status TakeOverFolder(const std::string& root, const v1::CheckpointOwner& owner,
                      FileSystem& files = RealFileSystem());
// Removes the mark if it is of this job of this cluster.
Status ReleaseFolder(const std::string& root, const v1::CheckpointOwner& owner,
                     FileSystem& files = RealFileSystem());

bool SameJob(const v1::CheckpointOwner& a, const v1::CheckpointOwner& b);

}  // namespace muster::storage
