// MANIFEST.json: what a checkpoint consists of. Internal to this folder; checkpoint.h is the door.
#pragma once

#include <string>

#include "common/base/status.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {

inline constexpr char kManifestName[] = "MANIFEST.json";
inline constexpr std::uint32_t kFormatVersion = 1;

// The text of a manifest, its hash computed and filled in.
Result<std::string> EncodeManifest(v1::CheckpointManifest manifest);
// kFailedPrecondition: of a newer format, whatever its hash is. kDataLoss: no manifest, or one
// whose hash does not fit.
Result<v1::CheckpointManifest> DecodeManifest(std::string text);
// The slices name files of the manifest and cover each tensor exactly once.
// kInvalidArgument names the tensor and the rows.
Status CheckSlices(const v1::CheckpointManifest& manifest);

}  // namespace muster::storage
