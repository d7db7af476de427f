// How a dataset is divided between workers.
#pragma once

namespace muster::data {

// By file where files can be told apart, else by element; by file; by element; where a placeholder
// stands; not at all.
enum class AutoShardPolicy { kOff, kAuto, kFile, kData, kHint };

}  // namespace muster::data
