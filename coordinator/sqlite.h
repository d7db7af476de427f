// SQLite's statements and errors as ours. Internal to coordinator/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <google/protobuf/message_lite.h>
#include <sqlite3.h>

#include "common/base/status.h"

namespace muster::coordinator {

// The version of the tables in sqlite_journal.cc. A database of a higher one is left as it is.
inline constexpr int kSchemaVersion = 1;
// "MsBk": tells a backup from a coordinator's own database, and from others' files.
inline constexpr std::uint64_t kBackupApplication = 0x4D73426B;

//   kUnavailable: somebody else has the database just now.  kFailedPrecondition: it cannot be
//   opened or written as its file and folder are.  kUnknown: the disk failed.  kResourceExhausted:
//   no room.  kDataLoss: it is damaged.
inline Status Failed(sqlite3* db, const char* what) {
  const int code = sqlite3_errcode(db) & 0xff;
  const std::string text = fmt::format("journal: {}: {}", what, sqlite3_errmsg(db));
  switch (code) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return ResourceExhausted("{}", text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLoss("{}", text);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
      return FailedPrecondition("{}", text);
    case SQLITE_IOERR:  // as of a file (FromErrno)
      return Unknown("{}", text);
    default:
      return Unavailable("{}", text);
  }
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
  void BindBytes(int at, std::string_view bytes) {
    sqlite3_bind_blob(handle_, at, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
  }
  void BindRecord(int at, const google::protobuf::MessageLite& message) {
    BindBytes(at, message.SerializeAsString());
  }
  // True: a row; false: done.
  Result<bool> Step() {
    if (!ok_) return Wrong();
    const int code = sqlite3_step(handle_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return Wrong();
  }
  Status Run() {
    MUSTER_TRY_ASSIGN([[maybe_unused]] const bool row, Step());
    return Ok();
  }
  int Columns() const { return sqlite3_column_count(handle_); }
  std::uint64_t Number(int column) const {
    return static_cast<std::uint64_t>(sqlite3_column_int64(handle_, column));
  }
  // SQLite's number for the type of its value; before any other look at it.
  int Type(int column) const { return sqlite3_column_type(handle_, column); }
  std::string Text(int column) const {
    const void* bytes = sqlite3_column_blob(handle_, column);
    const int size = sqlite3_column_bytes(handle_, column);
    return bytes == nullptr ? "" : std::string(static_cast<const char*>(bytes), size);
  }

 private:
  // The columns of an INSERT say nothing to who reads the error.
  Status Wrong() const {
    const std::string sql(sql_);
    return Failed(db_, sql.substr(0, sql.starts_with("INSERT") ? sql.find('(') : sql.npos).c_str());
  }

  sqlite3* db_;
  const char* sql_;
  sqlite3_stmt* handle_ = nullptr;
  bool ok_ = false;
};

// `work` in one transaction: all of it is on disk, or nothing. Whatever fails, it ends here: one
// that stayed open would take in all later rows, which would be on no disk. (A COMMIT leaves it
// open when somebody reads the database for too long, where that has a rollback journal.)
template <class Work>
Status InTransaction(sqlite3* db, Work work) {
  const auto run = [db](const char* sql) {
    return sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK ? Ok() : Failed(db, sql);
  };
  MUSTER_TRY(run("BEGIN"));
  Status status = work();
  if (status.ok()) status = run("COMMIT");
  if (sqlite3_get_autocommit(db) == 0) (void)run("ROLLBACK");
  return status;
}

// The first column of the first row; 0: there is none.
inline Result<std::uint64_t> NumberOf(sqlite3* db, const char* sql) {
  Statement row(db, sql);
  MUSTER_TRY_ASSIGN(const bool found, row.Step());
  return found ? row.Number(0) : 0;
}

}  // namespace muster::coordinator
