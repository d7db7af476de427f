// A small file, read or written as a whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/status.h"

namespace muster {

inline constexpr std::size_t kMostOfAFile = std::size_t{16} << 20;

//   FromErrno()'s, "read PATH": it cannot be opened or read, as a folder or a file of a host that
//   is gone.  kResourceExhausted: it has more than `most` bytes.
Result<std::string> ReadWholeFile(const std::string& path, std::size_t most = kMostOfAFile);

// Without its newline; "" where there is none, or no such file.
std::string FirstLineOf(const std::string& path);

// Where a file goes that takes the place of what is at `path`: behind a link, where that leads to.
//   kInvalidArgument, "write PATH": a folder, a device, a pipe or a socket is there, which a file
//   must not replace; or there is no name.
Result<std::string> PlaceOfFile(const std::string& path);

// In one step: readers see the old or the new text, never half of it, nor does who may not read
// `mode`. On the disk when it returns; after FromErrno()'s "write PATH" the old one stays, or
// the new one is there and may be gone after a crash, where only its folder failed.
//   kInvalidArgument: PlaceOfFile()'s, or a name under /dev or /proc, as /dev/stdout.
Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode = 0644);

// Makes entries of a folder (creations, renames, removals) last. 0, or the errno of what failed;
// where its file system has no such call, names are as durable as it makes them.
int SyncFolder(const std::string& folder);

// Into a file that is open; `path` is its name in errors.
Status WriteAll(int fd, std::string_view bytes, const std::string& path);

}  // namespace muster
