#include <cerrno>
#include <filesystem>
#include <map>
#include <random>
#include <utility>

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/journal.h"

namespace muster::coordinator {
namespace {

constexpr int kSchemaVersion = 1;

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

Status Failed(sqlite3* db, const char* what) {
  const int code = sqlite3_errcode(db);
  const std::string text = fmt::format("journal: {}: {}", what, sqlite3_errmsg(db));
  if (code == SQLITE_FULL) return ResourceExhausted("{}", text);
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) return DataLoss("{}", text);
  return Unavailable("{}", text);
}

// One prepared statement; columns and parameters count from 0 and 1, as SQLite's do.
class Statement {
 public:
  Statement(sqlite3* db, const char* sql) : db_(db), sql_(sql) {
    ok_ = sqlite3_prepare_v2(db, sql, -1, &handle_, nullptr) == SQLITE_OK;
  }
  ~Statement() { sqlite3_finalize(handle_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void Bind(int at, const std::string& text) {
    sqlite3_bind_text(handle_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  }
  void Bind(int at, std::uint64_t number) {
    sqlite3_bind_int64(handle_, at, static_cast<sqlite3_int64>(number));
  }
  void BindRecord(int at, const google::protobuf::MessageLite& message) {
    const std::string bytes = message.SerializeAsString();
    sqlite3_bind_blob(handle_, at, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
  }
  // True: a row; false: done.
  Result<bool> Step() {
    if (!ok_) return Failed(db_, sql_);
    const int code = sqlite3_step(handle_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return Failed(db_, sql_);
  }
  Status Run() {
    MUSTER_TRY_ASSIGN([[maybe_unused]] const bool row, Step());
    return Ok();
  }
  std::uint64_t Number(int column) const {
    return static_cast<std::uint64_t>(sqlite3_column_int64(handle_, column));
  }
  std::string Text(int column) const {
    const void* bytes = sqlite3_column_blob(handle_, column);
    const int size = sqlite3_column_bytes(handle_, column);
    return bytes == nullptr ? "" : std::string(static_cast<const char*>(bytes), size);
  }

 private:
  sqlite3* db_;
  const char* sql_;
  sqlite3_stmt* handle_ = nullptr;
  bool ok_ = false;
};

class SqliteJournal : public Journal {
 public:
  SqliteJournal(sqlite3* db, int lock) : db_(db), lock_(lock) {}
  ~SqliteJournal() override {
    sqlite3_close(db_);
    close(lock_);
  }

  Status Open() {
    MUSTER_TRY(Execute("PRAGMA journal_mode=WAL"));
    MUSTER_TRY(Execute("PRAGMA synchronous=FULL"));
    MUSTER_TRY(Execute("BEGIN IMMEDIATE"));
    MUSTER_TRY(Execute(kSchema));
    MUSTER_TRY_ASSIGN(const std::uint64_t version, Meta("schema", kSchemaVersion));
    if (version > kSchemaVersion) {
      return DataLoss("journal: written by a newer version (schema {}, this one reads {})", version,
                      kSchemaVersion);
    }
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
    MUSTER_TRY(Execute("BEGIN"));
    const Status status = [&]() -> Status {
      for (const char* sql :
           {"DELETE FROM events WHERE job=?", "DELETE FROM checkpoints WHERE job=?",
            "DELETE FROM jobs WHERE id=?"}) {
        Statement rows(db_, sql);
        rows.Bind(1, job_id);
        MUSTER_TRY(rows.Run());
      }
      return Ok();
    }();
    const Status ended = Execute(status.ok() ? "COMMIT" : "ROLLBACK");
    return status.ok() ? ended : status;
  }

  Status SaveJob(const v1::JobRecord& record) override {
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
    MUSTER_TRY(Execute("BEGIN"));
    const Status status = [&]() -> Status {
      Statement row(db_,
                    "INSERT OR REPLACE INTO events(job, sequence, reason, message, record) "
                    "VALUES(?, ?, ?, ?, ?)");
      row.Bind(1, job_id);
      row.Bind(2, event.sequence());
      row.Bind(3, event.reason());
      row.Bind(4, event.message());
      row.BindRecord(5, event);
      MUSTER_TRY(row.Run());
      if (event.sequence() <= kMaxEvents) return Ok();
      Statement old(db_, "DELETE FROM events WHERE job=? AND sequence<=?");
      old.Bind(1, job_id);
      old.Bind(2, event.sequence() - kMaxEvents);
      return old.Run();
    }();
    const Status ended = Execute(status.ok() ? "COMMIT" : "ROLLBACK");
    return status.ok() ? ended : status;
  }

  Status SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info) override {
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
    Statement row(db_, "INSERT OR REPLACE INTO taken_out(task, record) VALUES(?, ?)");
    row.Bind(1, NameOf(record.task()));
    row.BindRecord(2, record);
    return row.Run();
  }

  Status DeleteTakenOut(const v1::Task& task) override {
    Statement row(db_, "DELETE FROM taken_out WHERE task=?");
    row.Bind(1, NameOf(task));
    return row.Run();
  }

 private:
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
  Epoch epoch_;
  std::uint64_t cluster_ = 0;
};

// The lock file holds the pid of its owner, for the message that the other one gets.
Result<int> LockDirectory(const std::string& directory) {
  const std::string path = directory + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return FromErrno(errno, "open " + path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char pid[32] = {};
    const ssize_t bytes = pread(fd, pid, sizeof pid - 1, 0);
    close(fd);
    if (error != EWOULDBLOCK) return FromErrno(error, "lock " + path);
    return FailedPrecondition(
        "the state directory {} is in use by another coordinator (pid {}): stop it, or choose "
        "another --state-dir",
        directory, bytes > 0 ? pid : "unknown");
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const int error = errno;
    close(fd);
    return FromErrno(error, "write " + path);
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& state_directory) {
  std::error_code error;
  std::filesystem::create_directories(state_directory, error);
  if (error) return FromErrno(error.value(), "make the state directory " + state_directory);
  if (chmod(state_directory.c_str(), 0700) != 0)
    return FromErrno(errno, "chmod " + state_directory);
  MUSTER_TRY_ASSIGN(const int lock, LockDirectory(state_directory));
  sqlite3* db = nullptr;
  const std::string path = state_directory + "/coordinator.db";
  const int opened = sqlite3_open_v2(
      path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  auto journal = std::make_unique<SqliteJournal>(db, lock);
  if (opened != SQLITE_OK) return Failed(db, path.c_str());
  MUSTER_TRY(journal->Open());
  return std::unique_ptr<Journal>(std::move(journal));
}

}  // namespace muster::coordinator
