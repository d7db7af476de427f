// Copies of what a coordinator must know to take another one's place: its database, and the files
// that jobs were submitted with. One SQLite file; docs/formats/backup.md.
//
// Threading: free functions, from any thread; they block for as long as the disks do.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::coordinator {

// How far the epoch of a restored database is ahead of the copied one: more than a coordinator can
// have begun anew since, so that daemons which have obeyed that one obey the restored one.
inline constexpr std::uint64_t kEpochLeap = 1 << 16;

struct BackupContents {
  Epoch epoch{};
  std::uint64_t jobs = 0;
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // of the copy
};

// How the names of copies begin that are made in the state directory itself, to be sent away.
inline constexpr const char* kUnfinishedBackup = "unfinished-backup-";
// Those that a coordinator was making when it ended. By who holds the state directory.
void RemoveUnfinishedBackups(const std::string& state_directory);

// Copies the state directory's database as it is in one moment, and its uploaded files, into
// `file`, which is made anew (0600). The coordinator may run. Nothing stays after a failure.
//   kResourceExhausted: no room for it.  kDataLoss: the database, or an uploaded file, is damaged.
//   kUnavailable: somebody has the database, or the file, locked for `patience`.
Result<BackupContents> WriteBackup(const std::string& state_directory, const std::string& file,
                                   Millis patience = Millis(10'000));

// Makes an empty or missing directory one that a coordinator can be started on.
//   kFailedPrecondition: there is something in it; a coordinator that runs there is named. What is
//   no coordinator's is left as it is, its permissions too.
//   kDataLoss: the file is no backup, not whole, or of a newer version. kNotFound: there is none.
// The database comes last: without it a restore that was interrupted is done again on a folder that
// is emptied.
Result<BackupContents> RestoreBackup(const std::string& file, const std::string& state_directory);

}  // namespace muster::coordinator
