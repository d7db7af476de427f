#include "coordinator/journal.h"

#include <filesystem>
#include <fstream>
#include <random>

#include <google/protobuf/stubs/logging.h>
#include <sqlite3.h>

#include "coordinator/sqlite.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

v1::JobRecord Record(std::uint64_t number) {
  v1::JobRecord record;
  record.set_number(number);
  record.mutable_job()->set_id("job-" + std::to_string(number));
  record.mutable_job()->set_name("job");
  return record;
}

TEST_CASE("Each opening of the journal raises the epoch", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  for (std::uint64_t epoch = 1; epoch <= 3; ++epoch) {
    const auto journal = OpenSqliteJournal(dir / "state");
    REQUIRE(journal.ok());
    CHECK((*journal)->epoch() == Epoch(epoch));
  }
}

TEST_CASE("Jobs, events and checkpoints come back as they were", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  {
    const auto journal = OpenSqliteJournal(dir.path());
    REQUIRE(journal.ok());
    v1::JobRecord record = Record(1);
    REQUIRE((*journal)->SaveJob(record).ok());
    record.set_steps_done(7);
    REQUIRE((*journal)->SaveJob(record).ok());
    REQUIRE((*journal)->SaveJob(Record(2)).ok());
    for (std::uint64_t sequence = 1; sequence <= Journal::kMaxEvents + 10; ++sequence) {
      v1::Event event;
      event.set_sequence(sequence);
      event.set_reason("R");
      REQUIRE((*journal)->AddEvent("job-1", event).ok());
    }
    v1::CheckpointInfo info;
    for (const std::uint64_t step : {10, 20, 20}) {
      info.set_step(step);
      REQUIRE((*journal)->SaveCheckpoint("job-1", info).ok());
    }
    REQUIRE((*journal)->DeleteCheckpoint("job-1", 10).ok());
  }
  const auto journal = OpenSqliteJournal(dir.path());
  REQUIRE(journal.ok());
  const auto jobs = (*journal)->LoadJobs();
  REQUIRE(jobs.ok());
  REQUIRE(jobs->size() == 2);
  CHECK((*jobs)[0].record.steps_done() == 7);
  REQUIRE((*jobs)[0].events.size() == Journal::kMaxEvents);
  CHECK((*jobs)[0].events.front().sequence() == 11);
  REQUIRE((*jobs)[0].checkpoints.size() == 1);
  CHECK((*jobs)[0].checkpoints[0].step() == 20);
}

TEST_CASE("Of many events what is routine goes first and what was lost stays",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const auto journal = OpenSqliteJournal(dir.path());
  REQUIRE(journal.ok());
  std::uint64_t sequence = 0;
  const auto tell = [&](const char* reason, int times) {
    for (int i = 0; i < times; ++i) {
      v1::Event event;
      event.set_sequence(++sequence);
      event.set_reason(reason);
      REQUIRE((*journal)->AddEvent("job-1", event).ok());
    }
  };
  tell("WORKER_LOST", 2);
  tell("CHECKPOINT_SAVED", 1'200);
  auto events = (*journal)->LoadEvents("job-1");
  REQUIRE(events.ok());
  REQUIRE(events->size() == Journal::kMaxEvents);
  CHECK((*events)[1].reason() == "WORKER_LOST");
  CHECK((*events)[2].sequence() == 205);

  // One that was refused is written again behind later ones.
  v1::Event late;
  late.set_sequence(3);
  late.set_reason("CHECKPOINT_SAVED");
  REQUIRE((*journal)->AddEvent("job-1", late).ok());
  events = (*journal)->LoadEvents("job-1");
  REQUIRE(events.ok());
  CHECK(events->size() == Journal::kMaxEvents);
  CHECK((*events)[1].reason() == "WORKER_LOST");
  CHECK((*events)[2].sequence() == 205);

  // Where nothing is routine but what is new, the oldest goes.
  tell("WORKER_LOST", 1'100);
  tell("EVALUATED", 1);
  events = (*journal)->LoadEvents("job-1");
  REQUIRE(events.ok());
  REQUIRE(events->size() == Journal::kMaxEvents);
  CHECK(events->front().reason() == "WORKER_LOST");
  CHECK(events->front().sequence() > 2);
  CHECK(events->back().reason() == "EVALUATED");
}

TEST_CASE("A second coordinator on the same directory is refused", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const auto first = OpenSqliteJournal(dir.path());
  REQUIRE(first.ok());

  const auto second = OpenSqliteJournal(dir.path());
  CHECK(second.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(second.status()).find(std::to_string(getpid())) != std::string::npos);
}

TEST_CASE("A file that is no database is data loss, not an empty cluster", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  std::ofstream(dir / "coordinator.db") << std::string(8'192, 'x');
  CHECK(OpenSqliteJournal(dir.path()).status().code() == StatusCode::kDataLoss);
}

// A database with twenty jobs, closed.
std::string Database(const std::string& directory) {
  {
    const auto journal = OpenSqliteJournal(directory);
    REQUIRE(journal.ok());
    for (std::uint64_t number = 1; number <= 20; ++number) {
      v1::JobRecord record = Record(number);
      record.mutable_job()->set_message(std::string(2'000, 'm'));
      REQUIRE((*journal)->SaveJob(record).ok());
    }
  }
  return directory + "/coordinator.db";
}

std::string BytesOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Execute(const std::string& path, const char* sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, sql, nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

TEST_CASE("A row that cannot be written says where it belongs and why", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const auto journal = OpenSqliteJournal(dir.path());
  REQUIRE(journal.ok());
  Execute(dir.path() + "/coordinator.db", "DROP TABLE jobs");

  CHECK(Message((*journal)->SaveJob(Record(1))) ==
        "journal: INSERT INTO jobs: no such table: jobs");
}

TEST_CASE("A database of another version, or another program's, is refused and left as it is",
          "[coordinator][unit]") {
  struct Case {
    const char* what;
    void (*make)(const std::string& path);
    const char* says;
  };
  const Case one = GENERATE(
      Case{"a newer schema",
           [](const std::string& path) {
             Execute(path, "UPDATE meta SET value=7 WHERE key='schema'");
           },
           "was written by a newer version (schema 7, this one reads up to 1)"},
      Case{"no schema",
           [](const std::string& path) { Execute(path, "DELETE FROM meta WHERE key='schema'"); },
           "says of no schema which it is"},
      Case{"a backup in its place",
           [](const std::string& path) { Execute(path, "PRAGMA application_id=0x4D73426B"); },
           "is a backup: move it away, and start muster-coordinator with --restore"},
      Case{"a table that is gone",
           [](const std::string& path) { Execute(path, "DROP TABLE jobs"); },
           "is no coordinator's database"},
      Case{"another program's",
           [](const std::string& path) {
             std::filesystem::remove(path);
             Execute(path, "CREATE TABLE meta(key TEXT, value TEXT); CREATE TABLE bookmarks(url)");
           },
           "is no coordinator's database, but another program's"},
      Case{"cut in the middle",
           [](const std::string& path) {
             std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2 / 4096 * 4096);
           },
           "malformed"},
      Case{"cut in its first page",
           [](const std::string& path) { std::filesystem::resize_file(path, 90); }, "malformed"},
      Case{"a text",
           [](const std::string& path) { std::ofstream(path) << std::string(9'000, 't'); },
           "is not a database"});
  CAPTURE(one.what);
  const muster::testing::TempFolder dir;
  const std::string path = Database(dir.path());
  one.make(path);
  const std::string before = BytesOf(path);

  const auto opened = OpenSqliteJournal(dir.path());

  REQUIRE(opened.status().code() == StatusCode::kDataLoss);
  CAPTURE(Message(opened.status()));
  CHECK(Message(opened.status()).find(one.says) != std::string::npos);
  CHECK(Message(opened.status()).find(path) != std::string::npos);
  CHECK(BytesOf(path) == before);
}

TEST_CASE("A database of before tasks could be taken out is read", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  Execute(Database(dir.path()), "DROP TABLE taken_out");
  const auto opened = OpenSqliteJournal(dir.path());
  REQUIRE(opened.ok());
  CHECK((*opened)->LoadJobs()->size() == 20);
  CHECK((*opened)->LoadTakenOut()->empty());
}

TEST_CASE("A database whose bytes are damaged anywhere is read right or refused, and never ends us",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const std::string path = Database(dir.path());
  const std::string whole = BytesOf(path);
  std::minstd_rand random(7);
  const google::protobuf::LogSilencer quiet;  // says of each damaged text that it is no UTF-8
  for (int round = 0; round < 200; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 8; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    for (const char* beside : {"-wal", "-shm"}) std::filesystem::remove(path + beside);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    const auto opened = OpenSqliteJournal(dir.path());
    if (!opened.ok()) continue;
    const auto jobs = (*opened)->LoadJobs();
    if (jobs.ok()) CHECK(jobs->size() <= 20);
  }
}

TEST_CASE("Nothing is written to a database whose folder is removed or replaced, until it is back",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const std::string state = dir / "state";
  const auto journal = OpenSqliteJournal(state);
  REQUIRE(journal.ok());
  REQUIRE((*journal)->SaveJob(Record(1)).ok());
  std::filesystem::rename(state, dir / "kept");
  v1::Event event;
  event.set_sequence(1);
  const auto refused = [&] {
    const Status saved = (*journal)->SaveJob(Record(2));
    CHECK(saved.code() == StatusCode::kFailedPrecondition);
    CHECK(Message(saved).find(state + "/coordinator.db was removed, moved or replaced") !=
          std::string::npos);
    CHECK((*journal)->AddEvent("job-1", event).code() == StatusCode::kFailedPrecondition);
    CHECK((*journal)->DeleteJob("job-1").code() == StatusCode::kFailedPrecondition);
  };
  refused();
  // Another one's.
  std::filesystem::create_directory(state);
  (void)Database(state);
  refused();
  std::filesystem::remove_all(state);
  std::filesystem::rename(dir / "kept", state);
  CHECK((*journal)->SaveJob(Record(2)).ok());
  CHECK((*journal)->LoadJobs()->size() == 2);
}

TEST_CASE("What the database's file and folder do not allow is told from who is busy with it",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const std::string path = dir / "rows.db";
  sqlite3* db = nullptr;
  CHECK(sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_CANTOPEN);
  CHECK(Failed(db, "open").code() == StatusCode::kFailedPrecondition);
  sqlite3_close(db);
  Execute(path, "CREATE TABLE rows(row INTEGER)");
  REQUIRE(sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK);
  CHECK(Statement(db, "INSERT INTO rows VALUES(1)").Run().code() ==
        StatusCode::kFailedPrecondition);
  sqlite3_close(db);
}

// As on a network file system, where a reader keeps who writes from its COMMIT.
TEST_CASE("Rows that a reader keeps from the disk take no later ones along",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const std::string path = dir / "rows.db";
  sqlite3* writer = nullptr;
  sqlite3* reader = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &writer) == SQLITE_OK);
  REQUIRE(sqlite3_open(path.c_str(), &reader) == SQLITE_OK);
  const auto insert = [&](int row) {
    return Statement(writer, fmt::format("INSERT INTO rows VALUES({})", row).c_str()).Run();
  };
  const auto sum = [&] { return NumberOf(reader, "SELECT SUM(row) FROM rows").value(); };
  REQUIRE(Statement(writer, "CREATE TABLE rows(row INTEGER)").Run().ok());
  REQUIRE(insert(1).ok());
  REQUIRE(insert(2).ok());
  {
    Statement reading(reader, "SELECT row FROM rows");
    REQUIRE(reading.Step().value());
    CHECK(InTransaction(writer, [&] { return insert(10); }).code() == StatusCode::kUnavailable);
    CHECK(sqlite3_get_autocommit(writer) != 0);
  }
  CHECK(sum() == 3);

  REQUIRE(InTransaction(writer, [&] { return insert(20); }).ok());
  REQUIRE(insert(30).ok());
  CHECK(sum() == 53);
  const auto half = [&]() -> Status {
    MUSTER_TRY(insert(100));
    return DataLoss("the rest is not there");
  };
  CHECK(InTransaction(writer, half).code() == StatusCode::kDataLoss);
  CHECK(sum() == 53);
  sqlite3_close(reader);
  sqlite3_close(writer);
}

}  // namespace
}  // namespace muster::coordinator
