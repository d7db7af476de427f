// Whether a job may have a folder for its checkpoints, and making it the job's own.
//
// A folder belongs to one job at a time (common/storage/owner.h). The mark of a job of the same
// cluster that has ended, and that of a cluster whose coordinator is certainly gone, are taken
// over; any other is respected. Threading: any thread; everything here touches disks.
#pragma once

#include <string>

#include "coordinator/checkpoints.h"

namespace muster::coordinator {

// Makes the folder. kFailedPrecondition: it cannot be made or written, on which host and why. Said
// before the first step, not after hours of training.
Status RequireWritable(const std::string& root);

// Makes the folder the claimant's. Answers what there is to tell (mostly nothing).
// kFailedPrecondition: it is another's; the sentence names who. Else: storage's errors.
Result<std::string> Claim(const std::string& root, const Checkpoints::Claimant& claimant);
// The same, but a disk that cannot be written is no error: what is there can still be read.
Result<std::string> ClaimIfPossible(const std::string& root, const Checkpoints::Claimant& claimant);

// Whether Claim() and writing would succeed. Makes nothing that stays.
Status LookAt(const std::string& root, const Checkpoints::Claimant& claimant);

}  // namespace muster::coordinator
