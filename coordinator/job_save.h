// One checkpoint of a job on its way. Internal to the Job's files.
#pragma once

#include <string>
#include <vector>

#include "coordinator/job.h"

namespace muster::coordinator {

struct Job::Save {
  std::uint64_t step = 0;
  std::uint64_t view = 0;
  TimePoint began;
  std::string directory;
  // Files of the archive's values.
  std::vector<v1::SaveReport> values;
  std::size_t left = 0;
  Status first;
  v1::CheckpointManifest manifest;
  // Who waits for it: the driver that asked, and one that has taken its place.
  std::vector<Then<v1::SaveCheckpointReply>> waiting;
};

}  // namespace muster::coordinator
