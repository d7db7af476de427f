#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "coordinator/backup.h"
#include "coordinator/journal.h"
#include "coordinator/sqlite.h"
#include "coordinator/state_folder.h"

namespace muster::coordinator {
namespace {

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS jobs(
  id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, name TEXT NOT NULL, state TEXT NOT NULL,
  record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS events(
  job TEXT NOT NULL, sequence INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL,
  record BLOB NOT NULL, PRIMARY KEY(job, sequence));
CREATE TABLE IF NOT EXISTS checkpoints(
  job TEXT NOT NULL, step INTEGER NOT NULL, directory TEXT NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY(job, step));
CREATE TABLE IF NOT EXISTS taken_out(task TEXT PRIMARY KEY, record BLOB NOT NULL);
)";

class SqliteJournal : public Journal {
 public:
  SqliteJournal(sqlite3* db, int lock) : db_(db), lock_(lock) {}
  ~SqliteJournal() override {
    sqlite3_close(db_);
    close(lock_);
  }

  Status Open(const std::string& path) {
    path_ = path;
    // Before the first look: somebody else may be reading.
    MUSTER_TRY(Execute("PRAGMA busy_timeout=10000"));
    MUSTER_TRY(RequireOurs(path));
    // The log's index is memory that processes share, and which a network file system does not give
    // them. Without a log, who reads (a backup) holds up who writes.
    const bool network = !NetworkFileSystemOf(path).empty();
    MUSTER_TRY(Execute(network ? "PRAGMA journal_mode=TRUNCATE" : "PRAGMA journal_mode=WAL"));
    MUSTER_TRY(Execute("PRAGMA synchronous=FULL"));
    MUSTER_TRY(Execute("BEGIN IMMEDIATE"));
    MUSTER_TRY(Execute(kSchema));
    MUSTER_TRY_ASSIGN(const std::uint64_t epoch, Meta("epoch", 0));
    MUSTER_TRY(SetMeta("schema", kSchemaVersion));
    MUSTER_TRY(SetMeta("epoch", epoch + 1));
    std::random_device random;
    // 62 bits: SQLite's numbers have a sign.
    const std::uint64_t fresh = (std::uint64_t{random()} << 30) ^ random();
    MUSTER_TRY_ASSIGN(cluster_, Meta("cluster", fresh));
    MUSTER_TRY(SetMeta("cluster", cluster_));
    MUSTER_TRY(Execute("COMMIT"));
    epoch_ = Epoch(epoch + 1);
    return Ok();
  }

  Epoch epoch() const override { return epoch_; }
  std::string cluster_id() const override { return fmt::format("{:016x}", cluster_); }

  Result<std::vector<StoredJob>> LoadJobs() override {
    std::vector<StoredJob> jobs;
    std::map<std::string, std::size_t> places;
    Statement rows(db_, "SELECT id, record FROM jobs ORDER BY number");
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, rows.Step());
      if (!row) break;
      places[rows.Text(0)] = jobs.size();
      MUSTER_TRY(Parse(rows.Text(1), rows.Text(0), jobs.emplace_back().record));
    }
    Statement events(db_,
                     "SELECT job, record FROM events WHERE job IN (SELECT id FROM jobs WHERE state "
                     "NOT IN ('JOB_STATE_SUCCEEDED', 'JOB_STATE_FAILED', 'JOB_STATE_CANCELLED')) "
                     "ORDER BY job, sequence");
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, events.Step());
      if (!row) break;
      const auto place = places.find(events.Text(0));
      if (place == places.end()) continue;
      MUSTER_TRY(Parse(events.Text(1), "event", jobs[place->second].events.emplace_back()));
    }
    Statement last(db_, "SELECT job, MAX(sequence) FROM events GROUP BY job");
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, last.Step());
      if (!row) break;
      const auto place = places.find(last.Text(0));
      if (place != places.end()) jobs[place->second].last_event = last.Number(1);
    }
    Statement saved(db_, "SELECT job, record FROM checkpoints ORDER BY job, step");
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, saved.Step());
      if (!row) break;
      const auto place = places.find(saved.Text(0));
      if (place == places.end()) continue;
      MUSTER_TRY(
          Parse(saved.Text(1), "checkpoint", jobs[place->second].checkpoints.emplace_back()));
    }
    return jobs;
  }

  Result<std::vector<v1::Event>> LoadEvents(const std::string& job_id) const override {
    std::vector<v1::Event> events;
    Statement rows(db_, "SELECT record FROM events WHERE job=? ORDER BY sequence");
    rows.Bind(1, job_id);
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, rows.Step());
      if (!row) return events;
      MUSTER_TRY(Parse(rows.Text(0), "event", events.emplace_back()));
    }
  }

  Status DeleteJob(const std::string& job_id) override {
    MUSTER_TRY(RequireInPlace());
    return InTransaction(db_, [&]() -> Status {
      for (const char* sql :
           {"DELETE FROM events WHERE job=?", "DELETE FROM checkpoints WHERE job=?",
            "DELETE FROM jobs WHERE id=?"}) {
        Statement rows(db_, sql);
        rows.Bind(1, job_id);
        MUSTER_TRY(rows.Run());
      }
      return Ok();
    });
  }

  Status SaveJob(const v1::JobRecord& record) override {
    MUSTER_TRY(RequireInPlace());
    Statement row(db_,
                  "INSERT INTO jobs(id, number, name, state, record) VALUES(?, ?, ?, ?, ?) "
                  "ON CONFLICT(id) DO UPDATE SET state=excluded.state, record=excluded.record");
    row.Bind(1, record.job().id());
    row.Bind(2, record.number());
    row.Bind(3, record.job().name());
    row.Bind(4, v1::JobState_Name(record.job().state()));
    row.BindRecord(5, record);
    return row.Run();
  }

  Status AddEvent(const std::string& job_id, const v1::Event& event) override {
    MUSTER_TRY(RequireInPlace());
    return InTransaction(db_, [&]() -> Status {
      Statement row(db_,
                    "INSERT OR REPLACE INTO events(job, sequence, reason, message, record) "
                    "VALUES(?, ?, ?, ?, ?)");
      row.Bind(1, job_id);
      row.Bind(2, event.sequence());
      row.Bind(3, event.reason());
      row.Bind(4, event.message());
      row.BindRecord(5, event);
      MUSTER_TRY(row.Run());
      return ForgetEvents(job_id);
    });
  }

  Status SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info) override {
    MUSTER_TRY(RequireInPlace());
    Statement row(db_,
                  "INSERT OR REPLACE INTO checkpoints(job, step, directory, record) "
                  "VALUES(?, ?, ?, ?)");
    row.Bind(1, job_id);
    row.Bind(2, info.step());
    row.Bind(3, info.directory());
    row.BindRecord(4, info);
    return row.Run();
  }

  Status DeleteCheckpoint(const std::string& job_id, std::uint64_t step) override {
    MUSTER_TRY(RequireInPlace());
    Statement row(db_, "DELETE FROM checkpoints WHERE job=? AND step=?");
    row.Bind(1, job_id);
    row.Bind(2, step);
    return row.Run();
  }

  Result<std::vector<v1::TakenOut>> LoadTakenOut() override {
    std::vector<v1::TakenOut> out;
    Statement rows(db_, "SELECT record FROM taken_out ORDER BY task");
    while (true) {
      MUSTER_TRY_ASSIGN(const bool row, rows.Step());
      if (!row) return out;
      MUSTER_TRY(Parse(rows.Text(0), "task that is taken out", out.emplace_back()));
    }
  }

  Status SaveTakenOut(const v1::TakenOut& record) override {
    MUSTER_TRY(RequireInPlace());
    Statement row(db_, "INSERT OR REPLACE INTO taken_out(task, record) VALUES(?, ?)");
    row.Bind(1, NameOf(record.task()));
    row.BindRecord(2, record);
    return row.Run();
  }

  Status DeleteTakenOut(const v1::Task& task) override {
    MUSTER_TRY(RequireInPlace());
    Statement row(db_, "DELETE FROM taken_out WHERE task=?");
    row.Bind(1, NameOf(task));
    return row.Run();
  }

 private:
  // Whatever came in which order: a row that was refused is written again behind later ones.
  Status ForgetEvents(const std::string& job_id) {
    while (true) {
      Statement count(db_, "SELECT COUNT(*) FROM events WHERE job=?");
      count.Bind(1, job_id);
      MUSTER_TRY_ASSIGN(const bool counted, count.Step());
      if (!counted || count.Number(0) <= kMaxEvents) return Ok();
      Statement old(db_,
                    "DELETE FROM events WHERE job=?1 AND sequence=COALESCE("
                    "(SELECT MIN(sequence) FROM events WHERE job=?1 AND sequence<="
                    "(SELECT MAX(sequence) FROM events WHERE job=?1)-?2 AND reason IN (?3, ?4)), "
                    "(SELECT MIN(sequence) FROM events WHERE job=?1))");
      old.Bind(1, job_id);
      old.Bind(2, std::uint64_t{kNewestEvents});
      for (std::size_t i = 0; i < kRoutine.size(); ++i) {
        old.Bind(static_cast<int>(i) + 3, std::string(kRoutine[i]));
      }
      MUSTER_TRY(old.Run());
    }
  }
  // Before anything is written: what is another version's, or another program's, stays as it is.
  Status RequireOurs(const std::string& path) {
    MUSTER_TRY_ASSIGN(const std::uint64_t tables,
                      NumberOf(db_, "SELECT COUNT(*) FROM sqlite_master"));
    if (tables == 0) return Ok();  // just made
    MUSTER_TRY_ASSIGN(
        const std::uint64_t ours,
        NumberOf(
            db_,
            "SELECT COUNT(*) FROM sqlite_master WHERE type='table' AND name IN ('meta', 'jobs', "
            "'events', 'checkpoints')"));
    if (ours < 4) {
      return DataLoss(
          "{} is no coordinator's database, but another program's: choose another --state-dir",
          path);
    }
    MUSTER_TRY_ASSIGN(const std::uint64_t application, NumberOf(db_, "PRAGMA application_id"));
    // Daemons that have obeyed a coordinator of since then would not obey one of its epoch.
    if (application == kBackupApplication) {
      return DataLoss(
          "{} is a backup: move it away, and start muster-coordinator with --restore and its path",
          path);
    }
    MUSTER_TRY_ASSIGN(const std::uint64_t version, Meta("schema", 0));
    if (version == 0) {
      return DataLoss("{} says of no schema which it is, so it is damaged", path);
    }
    if (version > kSchemaVersion) {
      return DataLoss(
          "{} was written by a newer version (schema {}, this one reads up to {}): start that one, "
          "or "
          "restore a backup of before it into another --state-dir",
          path, version, kSchemaVersion);
    }
    return Ok();
  }
  // SQLite goes on writing to a file that is removed or moved away, and says that all is well.
  Status RequireInPlace() {
    int moved = 0;
    (void)sqlite3_file_control(db_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved == 0) return Ok();
    return FailedPrecondition(
        "journal: {} was removed, moved or replaced while the coordinator runs, so that another "
        "coordinator would know nothing of what this one writes: put the state directory back as "
        "it was, or restore a backup and start the coordinator again",
        path_);
  }
  static std::string NameOf(const v1::Task& task) {
    return fmt::format("{}:{}", task.type(), task.index());
  }
  Status Execute(const char* sql) {
    if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return Ok();
    return Failed(db_, sql);
  }
  Result<std::uint64_t> Meta(const std::string& key, std::uint64_t otherwise) {
    Statement row(db_, "SELECT value FROM meta WHERE key=?");
    row.Bind(1, key);
    MUSTER_TRY_ASSIGN(const bool found, row.Step());
    return found ? row.Number(0) : otherwise;
  }
  Status SetMeta(const std::string& key, std::uint64_t value) {
    Statement row(db_, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)");
    row.Bind(1, key);
    row.Bind(2, value);
    return row.Run();
  }
  static Status Parse(const std::string& bytes, const std::string& what,
                      google::protobuf::MessageLite& into) {
    if (into.ParseFromString(bytes)) return Ok();
    return DataLoss("journal: the row of {} is damaged ({} bytes)", what, bytes.size());
  }

  sqlite3* const db_;
  int lock_;
  std::string path_;
  Epoch epoch_;
  std::uint64_t cluster_ = 0;
};

}  // namespace

std::string NetworkFileSystemOf(const std::string& folder) {
  constexpr std::uint32_t kLustre = 0x0BD00BD0;  // linux/magic.h does not have it
  struct statfs info{};
  if (::statfs(folder.c_str(), &info) != 0) return "";
  switch (static_cast<std::uint32_t>(info.f_type)) {
    case NFS_SUPER_MAGIC:
      return "NFS";
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
      return "SMB";
    case CEPH_SUPER_MAGIC:
      return "Ceph";
    case AFS_SUPER_MAGIC:
    case AFS_FS_MAGIC:
      return "AFS";
    case V9FS_MAGIC:
      return "9P";
    case kLustre:
      return "Lustre";
    default:
      return "";
  }
}

Result<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& state_directory) {
  MUSTER_TRY_ASSIGN(const int lock, HoldStateDirectory(state_directory));
  RemoveUnfinishedBackups(state_directory);
  sqlite3* db = nullptr;
  const std::string path = fmt::format("{}/{}", state_directory, kDatabaseName);
  const int opened = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto journal = std::make_unique<SqliteJournal>(db, lock);
  if (opened != SQLITE_OK) return Failed(db, path.c_str());
  if (const Status open = journal->Open(path); !open.ok()) {
    const bool named = Message(open).find(path) != std::string::npos;
    return named ? open : Annotate(open, path);
  }
  return std::unique_ptr<Journal>(std::move(journal));
}

}  // namespace muster::coordinator
