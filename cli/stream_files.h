// A file system whose new file is a stream: what is written to a file elsewhere goes to stdout.
#pragma once

#include <memory>
#include <ostream>

#include "common/storage/file_system.h"

namespace muster::cli {

// Reads are the real file system's; whatever is created goes to `stream`, and there is nothing to
// rename, sync or remove. Lifetime: `stream` outlives it.
std::unique_ptr<storage::FileSystem> FilesWritingTo(std::ostream& stream);

}  // namespace muster::cli
