// Where a command writes a file: to a path, or to a stream as if that were a file system.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "common/base/status.h"
#include "common/storage/file_system.h"

namespace muster::cli {

// Reads are the real file system's; whatever is created goes to `stream`, and there is nothing to
// rename, sync or remove. Lifetime: `stream` outlives it.
std::unique_ptr<storage::FileSystem> FilesWritingTo(std::ostream& stream);

// What is to be written at `file`, a link followed; "-" is itself.
//   kInvalidArgument: PlaceOfFile()'s, or a folder that is not there.
Result<std::string> PlaceOfOutput(const std::string& file);

}  // namespace muster::cli
