#include "coordinator/backup.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/whole_file.h"
#include "common/base/words.h"
#include "common/net/fd.h"
#include "common/storage/file_system.h"
#include "common/storage/sha256.h"
#include "coordinator/sqlite.h"
#include "coordinator/state_folder.h"

namespace muster::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPart = 1 << 20;
constexpr int kStepPages = 1'024;
// For a restore's own files, and a backup that nobody has open.
constexpr Millis kPatience{10'000};

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

Result<Database> Open(const std::string& path, int flags, Millis patience = kPatience) {
  sqlite3* raw = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw);
  if (opened != SQLITE_OK) return Failed(raw, path.c_str());
  sqlite3_busy_timeout(raw, static_cast<int>(patience.count()));
  return db;
}

Status Execute(sqlite3* db, const std::string& sql) {
  if (sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) return Ok();
  return Failed(db, sql.c_str());
}

Result<Epoch> EpochIn(sqlite3* db) {
  MUSTER_TRY_ASSIGN(const std::uint64_t epoch,
                    NumberOf(db, "SELECT value FROM meta WHERE key='epoch'"));
  return Epoch(epoch);
}

// All pages, as they are in one moment, whatever is written meanwhile.
//   kUnavailable: no page could be copied for `patience`.
Status CopyPages(sqlite3* from, sqlite3* to, Millis patience = kPatience) {
  sqlite3_backup* const copy = sqlite3_backup_init(to, "main", from, "main");
  if (copy == nullptr) return Failed(to, "begin the copy");
  const auto busy = [](int code) { return code == SQLITE_BUSY || code == SQLITE_LOCKED; };
  int code = SQLITE_OK;
  auto moved = std::chrono::steady_clock::now();
  while (code == SQLITE_OK || busy(code)) {
    code = sqlite3_backup_step(copy, kStepPages);
    const auto now = std::chrono::steady_clock::now();
    if (!busy(code)) {
      moved = now;
    } else if (now - moved >= patience) {
      break;
    } else {
      sqlite3_sleep(10);  // its writer has the database for milliseconds
    }
  }
  sqlite3_backup_finish(copy);
  if (busy(code)) {
    return Unavailable("another process has {} or {} locked for {} ms: end it, or try again",
                       sqlite3_db_filename(from, "main"), sqlite3_db_filename(to, "main"),
                       patience.count());
  }
  return code == SQLITE_DONE ? Ok() : Failed(to, "copy");
}

// Until its transaction ends `db` shows what it shows now. Otherwise a row that another connection
// writes between two steps of the copy makes that begin anew: beside a busy coordinator it might
// never end. Not where readers hold up who writes.
Status HoldMoment(sqlite3* db) {
  Statement mode(db, "PRAGMA journal_mode");
  MUSTER_TRY_ASSIGN(const bool row, mode.Step());
  if (!row || mode.Text(0) != "wal") return Ok();
  MUSTER_TRY(Execute(db, "BEGIN"));
  return NumberOf(db, "SELECT COUNT(*) FROM sqlite_master").status();
}

Status AddFile(sqlite3* db, const fs::path& path) {
  const std::string name = path.filename();
  std::ifstream in(path, std::ios::binary);
  if (!in) return FromErrno(errno, "read " + path.string());
  storage::Sha256 hash;
  std::string part(kPart, '\0');
  for (std::uint64_t number = 0; in; ++number) {
    in.read(part.data(), static_cast<std::streamsize>(part.size()));
    const std::string_view bytes(part.data(), static_cast<std::size_t>(in.gcount()));
    if (bytes.empty() && number > 0) break;
    hash.Add(bytes);
    Statement row(db, "INSERT INTO backup_files(name, part, bytes) VALUES(?, ?, ?)");
    row.Bind(1, name);
    row.Bind(2, number);
    row.BindBytes(3, bytes);
    MUSTER_TRY(row.Run());
  }
  if (in.bad()) return FromErrno(errno, "read " + path.string());
  if (const std::string hex = hash.Hex(); hex != name) {
    return DataLoss("{}: its SHA-256 is {}: the uploaded file is damaged", path.string(), hex);
  }
  return Ok();
}

Result<std::uint64_t> AddFiles(sqlite3* db, const std::string& folder) {
  std::uint64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    // Uploads on their way have other names. One may be collected just now.
    if (!storage::IsSha256Hex(at->path().filename().string())) continue;
    const Status added = AddFile(db, at->path());
    if (added.code() == StatusCode::kNotFound) continue;
    MUSTER_TRY(added);
    ++count;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return FromErrno(error.value(), "list " + folder);
  }
  return count;
}

// The SHA-256 of all rows but those of uploaded files, which have one each: pages have no sums, and
// SQLite takes a byte that was flipped within a row for the row's own.
Result<std::string> HashOfRows(sqlite3* db) {
  std::vector<std::string> tables;
  Statement names(db,
                  "SELECT name FROM sqlite_master WHERE type='table' AND name NOT IN "
                  "('backup_files', 'backup_sum') ORDER BY name");
  while (true) {
    MUSTER_TRY_ASSIGN(const bool more, names.Step());
    if (!more) break;
    tables.push_back(names.Text(0));
  }
  storage::Sha256 hash;
  for (const std::string& table : tables) {
    hash.Add(fmt::format("{}\n", table));
    const std::string sql = fmt::format("SELECT * FROM \"{}\" ORDER BY rowid", table);
    Statement rows(db, sql.c_str());
    while (true) {
      MUSTER_TRY_ASSIGN(const bool more, rows.Step());
      if (!more) break;
      for (int column = 0; column < rows.Columns(); ++column) {
        const int type = rows.Type(column);
        const std::string value = rows.Text(column);
        hash.Add(fmt::format("{}:{}:", type, value.size()));
        hash.Add(value);
      }
      hash.Add("\n");
    }
  }
  return hash.Hex();
}

Status AddSum(sqlite3* db) {
  MUSTER_TRY_ASSIGN(const std::string sum, HashOfRows(db));
  MUSTER_TRY_ASSIGN(const Epoch epoch, EpochIn(db));
  // An older version that restored a backup has left it.
  MUSTER_TRY(Execute(db, "DROP TABLE IF EXISTS backup_sum"));
  MUSTER_TRY(Execute(db, "CREATE TABLE backup_sum(sha256 TEXT NOT NULL, epoch INTEGER NOT NULL)"));
  Statement row(db, "INSERT INTO backup_sum(sha256, epoch) VALUES(?, ?)");
  row.Bind(1, sum);
  row.Bind(2, epoch.value());
  return row.Run();
}

// A backup of before there was one has none.
Status CheckSum(sqlite3* db) {
  MUSTER_TRY_ASSIGN(
      const std::uint64_t tables,
      NumberOf(db, "SELECT COUNT(*) FROM sqlite_master WHERE type='table' AND name='backup_sum'"));
  if (tables == 0) return Ok();
  Statement row(db, "SELECT sha256, epoch FROM backup_sum");
  MUSTER_TRY_ASSIGN(const bool found, row.Step());
  const std::string sum = found ? row.Text(0) : "";
  MUSTER_TRY_ASSIGN(const Epoch epoch, EpochIn(db));
  // An older version has restored that backup, and made this one, in which it has left the sum.
  if (found && epoch.value() >= row.Number(1) + kEpochLeap) return Ok();
  MUSTER_TRY_ASSIGN(const std::string is, HashOfRows(db));
  if (is == sum) return Ok();
  return DataLoss("the SHA-256 of its rows is {}, when it was written it was \"{}\"", is, sum);
}

Result<BackupContents> Copy(const std::string& state_directory, const std::string& file,
                            Millis patience) {
  const std::string path = fmt::format("{}/{}", state_directory, kDatabaseName);
  MUSTER_TRY_ASSIGN(const Database from, Open(path, SQLITE_OPEN_READONLY, patience));
  MUSTER_TRY_ASSIGN(const Database to, Open(file, SQLITE_OPEN_READWRITE, patience));
  sqlite3* const db = to.get();
  MUSTER_TRY(HoldMoment(from.get()));
  MUSTER_TRY(CopyPages(from.get(), db, patience));
  if (sqlite3_get_autocommit(from.get()) == 0) MUSTER_TRY(Execute(from.get(), "COMMIT"));
  // One file, without a log beside it.
  MUSTER_TRY(Execute(db, "PRAGMA journal_mode=DELETE"));
  MUSTER_TRY(Execute(db, "BEGIN IMMEDIATE"));
  MUSTER_TRY(Execute(db,
                     "CREATE TABLE backup_files(name TEXT NOT NULL, part INTEGER NOT NULL, bytes "
                     "BLOB NOT NULL, PRIMARY KEY(name, part))"));
  BackupContents contents;
  MUSTER_TRY_ASSIGN(contents.files,
                    AddFiles(db, fmt::format("{}/{}", state_directory, kFilesName)));
  MUSTER_TRY_ASSIGN(contents.epoch, EpochIn(db));
  MUSTER_TRY_ASSIGN(contents.jobs, NumberOf(db, "SELECT COUNT(*) FROM jobs"));
  MUSTER_TRY(AddSum(db));
  // Last, with everything else: it is whole.
  MUSTER_TRY(Execute(db, fmt::format("PRAGMA application_id={}", kBackupApplication)));
  MUSTER_TRY(Execute(db, "COMMIT"));
  std::error_code error;
  contents.bytes = fs::file_size(file, error);
  return contents;
}

// An empty file that only its owner may read, which SQLite then fills.
Status MakeEmpty(const std::string& file) {
  const net::Fd fd(open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  return fd.valid() ? Ok() : FromErrno(errno, "make " + file);
}

// --- The way back.

Status NoBackup(const std::string& file, const Status& why) {
  return DataLoss("{} is no backup of a coordinator, or not a whole one: {}", file, Message(why));
}

Result<Database> OpenBackup(const std::string& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return NotFound("there is no file {}", file);
  if (!fs::is_regular_file(file, error)) {
    return InvalidArgument("{} is no file, but a folder, a device or the like", file);
  }
  MUSTER_TRY_ASSIGN(Database db, Open(file, SQLITE_OPEN_READONLY));
  const Result<std::uint64_t> application = NumberOf(db.get(), "PRAGMA application_id");
  if (!application.ok()) return NoBackup(file, application.status());
  if (*application != kBackupApplication) {
    return DataLoss("{} is no backup of a coordinator (`muster backup` makes one)", file);
  }
  Statement check(db.get(), "PRAGMA integrity_check");
  const Result<bool> row = check.Step();
  if (!row.ok()) return NoBackup(file, row.status());
  if (!*row || check.Text(0) != "ok") return NoBackup(file, DataLoss("{}", check.Text(0)));
  const Result<std::uint64_t> schema =
      NumberOf(db.get(), "SELECT value FROM meta WHERE key='schema'");
  if (!schema.ok()) return NoBackup(file, schema.status());
  if (*schema > kSchemaVersion) {
    return DataLoss("{} was made by a newer version (schema {}, this one reads up to {})", file,
                    *schema, kSchemaVersion);
  }
  if (const Status sum = CheckSum(db.get()); !sum.ok()) return NoBackup(file, sum);
  return db;
}

// Whatever is there may be somebody's state.
Status RequireEmpty(const std::string& directory) {
  std::error_code error;
  std::string first;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name != "lock" && (first.empty() || name < first)) first = name;
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return FromErrno(error.value(), "list " + directory);
  }
  if (first.empty()) return Ok();
  return FailedPrecondition(
      "the state directory {} is not empty (it has {}): restore into an empty or a new one",
      directory, first);
}

Status ExtractFile(sqlite3* db, const std::string& folder, const std::string& name) {
  if (!storage::IsSha256Hex(name)) return DataLoss("the backup has a file named \"{}\"", name);
  const std::string path = folder + "/" + name;
  const net::Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return FromErrno(errno, "make " + path);
  storage::Sha256 hash;
  Statement parts(db, "SELECT bytes FROM backup_files WHERE name=? ORDER BY part");
  parts.Bind(1, name);
  while (true) {
    MUSTER_TRY_ASSIGN(const bool more, parts.Step());
    if (!more) break;
    const std::string bytes = parts.Text(0);
    hash.Add(bytes);
    MUSTER_TRY(WriteAll(fd.get(), bytes, path));
  }
  if (fsync(fd.get()) != 0) return FromErrno(errno, "sync " + path);
  if (const std::string hex = hash.Hex(); hex != name) {
    return DataLoss("file {} of the backup is damaged: its SHA-256 is {}", name, hex);
  }
  return Ok();
}

Result<std::uint64_t> ExtractFiles(sqlite3* db, const std::string& folder) {
  std::vector<std::string> names;
  Statement rows(db, "SELECT DISTINCT name FROM backup_files");
  while (true) {
    MUSTER_TRY_ASSIGN(const bool more, rows.Step());
    if (!more) break;
    names.push_back(rows.Text(0));
  }
  if (names.empty()) return 0;
  MUSTER_TRY(storage::RealFileSystem().MakeFolders(folder));
  for (const std::string& name : names) MUSTER_TRY(ExtractFile(db, folder, name));
  MUSTER_TRY(storage::RealFileSystem().SyncFolder(folder));
  return names.size();
}

// The copy without what is the backup's, and with an epoch that all daemons obey.
Result<BackupContents> MakeDatabase(sqlite3* from, const std::string& path) {
  MUSTER_TRY(MakeEmpty(path));
  MUSTER_TRY_ASSIGN(const Database to, Open(path, SQLITE_OPEN_READWRITE));
  sqlite3* const db = to.get();
  MUSTER_TRY(CopyPages(from, db));
  BackupContents contents;
  MUSTER_TRY(Execute(db, "PRAGMA synchronous=FULL"));
  MUSTER_TRY(Execute(db, "BEGIN IMMEDIATE"));
  MUSTER_TRY(Execute(db, "DROP TABLE backup_files"));
  MUSTER_TRY(Execute(db, "DROP TABLE IF EXISTS backup_sum"));
  MUSTER_TRY(Execute(db, "PRAGMA application_id=0"));
  MUSTER_TRY(
      Execute(db, fmt::format("UPDATE meta SET value=value+{} WHERE key='epoch'", kEpochLeap)));
  MUSTER_TRY(Execute(db, "COMMIT"));
  MUSTER_TRY(Execute(db, "VACUUM"));
  MUSTER_TRY_ASSIGN(contents.epoch, EpochIn(db));
  MUSTER_TRY_ASSIGN(contents.jobs, NumberOf(db, "SELECT COUNT(*) FROM jobs"));
  return contents;
}

}  // namespace

void RemoveUnfinishedBackups(const std::string& state_directory) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(state_directory, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename().string().starts_with(kUnfinishedBackup)) found.push_back(at->path());
  }
  for (const fs::path& path : found) (void)unlink(path.c_str());
}

Result<BackupContents> WriteBackup(const std::string& state_directory, const std::string& file,
                                   Millis patience) {
  MUSTER_TRY(MakeEmpty(file));
  Result<BackupContents> contents = Copy(state_directory, file, patience);
  if (!contents.ok()) {
    (void)unlink(file.c_str());
    (void)unlink((file + "-journal").c_str());
    return Annotate(contents.status(), "backup");
  }
  return contents;
}

Result<BackupContents> RestoreBackup(const std::string& file, const std::string& state_directory) {
  MUSTER_TRY_ASSIGN(const Database backup, OpenBackup(file));
  // Holding it changes it, so not what is somebody else's; a coordinator's has a lock.
  std::error_code ignored;
  if (!fs::exists(state_directory + "/lock", ignored)) MUSTER_TRY(RequireEmpty(state_directory));
  MUSTER_TRY_ASSIGN(const int held, HoldStateDirectory(state_directory));
  const net::Fd lock(held);
  MUSTER_TRY(RequireEmpty(state_directory));
  const std::string database = fmt::format("{}/{}", state_directory, kDatabaseName);
  const std::string staged = database + ".restored";
  MUSTER_TRY_ASSIGN(const std::uint64_t files,
                    ExtractFiles(backup.get(), fmt::format("{}/{}", state_directory, kFilesName)));
  MUSTER_TRY_ASSIGN(BackupContents contents, MakeDatabase(backup.get(), staged));
  contents.files = files;
  std::error_code error;
  contents.bytes = fs::file_size(file, error);
  MUSTER_TRY(storage::RealFileSystem().Rename(staged, database));
  MUSTER_TRY(storage::RealFileSystem().SyncFolder(state_directory));
  return contents;
}

}  // namespace muster::coordinator
