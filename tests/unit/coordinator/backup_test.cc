#include "coordinator/backup.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>

#include <sqlite3.h>
#include <sys/stat.h>

#include "common/storage/sha256.h"
#include "coordinator/journal.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

namespace fs = std::filesystem;

std::string HashOf(const std::string& bytes) {
  storage::Sha256 hash;
  hash.Add(bytes);
  return hash.Hex();
}

std::string TextOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Execute(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  CHECK(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
}

// A state directory with jobs and an uploaded file of several parts.
struct State {
  State() {
    fs::create_directories(state + "/files");
    std::ofstream(state + "/files/" + HashOf(upload), std::ios::binary) << upload;
    std::ofstream(state + "/files/" + HashOf(upload) + ".Xy12zZ") << "an upload on its way";
    journal = *OpenSqliteJournal(state);
    for (std::uint64_t number = 1; number <= 20; ++number) Save(number);
  }
  void Save(std::uint64_t number) const {
    v1::JobRecord record;
    record.set_number(number);
    record.mutable_job()->set_id("job-" + std::to_string(number));
    record.mutable_job()->set_name("job");
    REQUIRE(journal->SaveJob(record).ok());
  }
  BackupContents Write() const {
    const auto written = WriteBackup(state, file);
    REQUIRE(Message(written.status()) == "");
    return *written;
  }

  muster::testing::TempFolder folder;
  std::string state = folder / "state";
  std::string file = folder / "backup";
  std::string to = folder / "restored";
  std::string upload = std::string((2 << 20) + 17, 'u');
  std::unique_ptr<Journal> journal;
};

TEST_CASE_METHOD(State, "what was backed up under a running coordinator is there when restored",
                 "[coordinator][unit]") {
  v1::TakenOut out;
  out.mutable_task()->set_type("worker");
  REQUIRE(journal->SaveTakenOut(out).ok());
  const BackupContents written = Write();
  CHECK(written.jobs == 20);
  CHECK(written.files == 1);
  struct stat info{};
  REQUIRE(::stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  // What comes after it is not in it.
  Save(21);

  const auto restored = RestoreBackup(file, to);
  REQUIRE(Message(restored.status()) == "");
  CHECK(restored->jobs == 20);
  CHECK(TextOf(to + "/files/" + HashOf(upload)) == upload);
  CHECK(std::distance(fs::directory_iterator(to + "/files"), fs::directory_iterator()) == 1);
  const auto opened = OpenSqliteJournal(to);
  REQUIRE(Message(opened.status()) == "");
  CHECK((*opened)->LoadJobs()->size() == 20);
  CHECK((*opened)->LoadTakenOut()->size() == 1);
  CHECK((*opened)->cluster_id() == journal->cluster_id());
  // Daemons that have obeyed coordinators of since then obey this one.
  CHECK((*opened)->epoch() == Epoch(journal->epoch().value() + kEpochLeap + 1));
}

TEST_CASE_METHOD(State, "a backup is of one moment while rows are written", "[coordinator][unit]") {
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::uint64_t number = 100; !done; ++number) {
      v1::Event event;
      event.set_sequence(number);
      event.set_message(std::string(2'000, 'e'));
      (void)journal->AddEvent("job-1", event);
    }
  });
  for (int i = 0; i < 5; ++i) {
    const auto written = WriteBackup(state, file);
    CHECK(Message(written.status()) == "");
    const std::string target = to + std::to_string(i);
    CHECK(Message(RestoreBackup(file, target).status()) == "");
  }
  done = true;
  writer.join();
}

// Runs `meanwhile` at the first write into the file whose path ends so.
class AtFirstWrite {
 public:
  AtFirstWrite(std::string name, std::function<void()> meanwhile) {
    name_ = std::move(name);
    meanwhile_ = std::move(meanwhile);
    usual_ = sqlite3_vfs_find(nullptr);
    vfs_ = *usual_;
    vfs_.zName = "at-first-write";
    vfs_.xOpen = [](sqlite3_vfs*, const char* path, sqlite3_file* file, int flags, int* out) {
      const int code = usual_->xOpen(usual_, path, file, flags, out);
      if (code != SQLITE_OK || path == nullptr || !std::string_view(path).ends_with(name_)) {
        return code;
      }
      methods_ = *file->pMethods;
      write_ = methods_.xWrite;
      methods_.xWrite = [](sqlite3_file* into, const void* bytes, int size, sqlite3_int64 at) {
        if (const auto now = std::exchange(meanwhile_, nullptr)) now();
        return write_(into, bytes, size, at);
      };
      file->pMethods = &methods_;
      return code;
    };
    sqlite3_vfs_register(&vfs_, 1);
  }
  ~AtFirstWrite() {
    sqlite3_vfs_unregister(&vfs_);
    sqlite3_vfs_register(usual_, 1);
  }
  AtFirstWrite(const AtFirstWrite&) = delete;
  AtFirstWrite& operator=(const AtFirstWrite&) = delete;

 private:
  static inline std::string name_;
  static inline std::function<void()> meanwhile_;
  static inline sqlite3_vfs* usual_ = nullptr;
  static inline sqlite3_io_methods methods_;
  static inline int (*write_)(sqlite3_file*, const void*, int, sqlite3_int64) = nullptr;
  sqlite3_vfs vfs_{};
};

TEST_CASE_METHOD(State, "a row that is written meanwhile makes no copy begin anew",
                 "[coordinator][unit]") {
  // More than is copied in one step, or is kept in memory.
  Execute(state + "/coordinator.db",
          "INSERT INTO events VALUES('job-1', 1, '', '', zeroblob(12000000))");
  bool written = false;
  const AtFirstWrite hook("/backup", [&] {
    Save(21);
    written = true;
  });
  CHECK(Write().jobs == 20);
  CHECK(written);
}

TEST_CASE_METHOD(State, "a copy that somebody holds locked is given up and removed",
                 "[coordinator][unit]") {
  sqlite3* holder = nullptr;
  REQUIRE(sqlite3_open(file.c_str(), &holder) == SQLITE_OK);
  REQUIRE(sqlite3_exec(holder, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr) == SQLITE_OK);

  const auto written = WriteBackup(state, file, Millis(20));

  sqlite3_close(holder);
  CHECK(written.status().code() == StatusCode::kUnavailable);
  CHECK(Message(written.status()).find(file + " locked for 20 ms") != std::string::npos);
  CHECK_FALSE(fs::exists(file));
  CHECK(Write().jobs == 20);
}

TEST_CASE_METHOD(State, "what a backup has left that was not ended goes at the next start",
                 "[coordinator][unit]") {
  journal.reset();
  const std::string left = state + "/" + kUnfinishedBackup + "Ab12Cd";
  for (const char* end : {"", "-journal"}) std::ofstream(left + end) << "half";
  std::ofstream(state + "/backup-monday") << "somebody's";

  REQUIRE(OpenSqliteJournal(state).ok());

  for (const char* end : {"", "-journal"}) CHECK_FALSE(fs::exists(left + end));
  CHECK(TextOf(state + "/backup-monday") == "somebody's");
}

TEST_CASE_METHOD(State, "nothing is restored over what is there, or where a coordinator runs",
                 "[coordinator][unit]") {
  Write();
  const auto running = RestoreBackup(file, state);
  CHECK(running.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(running.status()).find("is in use by another coordinator (pid") !=
        std::string::npos);

  fs::create_directories(to);
  fs::permissions(to, fs::perms(0755));
  std::ofstream(to + "/somebody.txt") << "theirs";
  const auto filled = RestoreBackup(file, to);
  CHECK(filled.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(filled.status()).find("is not empty (it has somebody.txt)") != std::string::npos);
  CHECK(TextOf(to + "/somebody.txt") == "theirs");
  CHECK(fs::status(to).permissions() == fs::perms(0755));
  CHECK(std::distance(fs::directory_iterator(to), fs::directory_iterator()) == 1);
}

TEST_CASE_METHOD(State, "what is no backup, or not a whole one, is refused before anything is made",
                 "[coordinator][unit]") {
  Write();
  const std::string whole = TextOf(file);
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    const auto restored = RestoreBackup(file, to);
    CHECK(restored.status().code() == StatusCode::kDataLoss);
    CHECK_FALSE(fs::exists(to));
    return Message(restored.status());
  };
  CHECK(refused("").find("is no backup of a coordinator") != std::string::npos);
  CHECK(refused("a text").find("is no backup of a coordinator") != std::string::npos);
  for (const std::size_t size : {whole.size() / 2, whole.size() - 4096, std::size_t{100}}) {
    CAPTURE(size);
    CHECK(
        refused(whole.substr(0, size)).find("is no backup of a coordinator, or not a whole one") !=
        std::string::npos);
  }
  std::string flipped = whole;
  for (std::size_t at = 4'096; at < 4'196; ++at) flipped[at] = static_cast<char>(~flipped[at]);
  CHECK(refused(flipped).find("not a whole one") != std::string::npos);
  // A coordinator's own database.
  journal.reset();
  CHECK(refused(TextOf(state + "/coordinator.db")).find("(`muster backup` makes one)") !=
        std::string::npos);

  std::ofstream(file, std::ios::binary | std::ios::trunc) << whole;
  Execute(file, "UPDATE meta SET value=9 WHERE key='schema'");
  CHECK(refused(TextOf(file))
            .find("was made by a newer version (schema 9, this one reads up to 1)") !=
        std::string::npos);
  CHECK(RestoreBackup(folder / "none", to).status().code() == StatusCode::kNotFound);
  const Status of_folder = RestoreBackup(folder.path(), to).status();
  CHECK(of_folder.code() == StatusCode::kInvalidArgument);
  CHECK(Message(of_folder).find(folder.path() + " is no file, but a folder") != std::string::npos);
}

TEST_CASE_METHOD(State, "one byte of a row that was flipped is found before anything is restored",
                 "[coordinator][unit]") {
  Write();
  const std::string whole = TextOf(file);
  // In the record of a job, which every page's check takes for the job's own.
  const std::size_t at = whole.find("job-7");
  REQUIRE(at != std::string::npos);
  std::size_t found = 0;
  for (std::size_t next = at; next != std::string::npos; next = whole.find("job-7", next + 1)) {
    CAPTURE(next);
    std::string flipped = whole;
    flipped[next] = 'J';
    std::ofstream(file, std::ios::binary | std::ios::trunc) << flipped;
    const Status restored = RestoreBackup(file, to).status();
    if (restored.ok()) {  // nobody's: a page has room that no row takes
      fs::remove_all(to);
      continue;
    }
    CHECK(restored.code() == StatusCode::kDataLoss);
    CHECK_FALSE(fs::exists(to));
    found += Message(restored).find("the SHA-256 of its rows is") != std::string::npos ? 1 : 0;
  }
  CHECK(found > 0);

  std::ofstream(file, std::ios::binary | std::ios::trunc) << whole;
  SECTION("a backup of before there was a sum") { Execute(file, "DROP TABLE backup_sum"); }
  SECTION("one that is whole") {}
  const auto restored = RestoreBackup(file, to);
  CHECK(Message(restored.status()) == "");
  CHECK(restored->jobs == 20);
  // And from what was restored another one can be made.
  CHECK(WriteBackup(to, file).ok());
}

TEST_CASE_METHOD(State, "an uploaded file that is damaged fails a backup, and nothing stays",
                 "[coordinator][unit]") {
  std::ofstream(state + "/files/" + HashOf(upload), std::ios::app) << "x";
  const auto written = WriteBackup(state, file);
  CHECK(written.status().code() == StatusCode::kDataLoss);
  CHECK(Message(written.status()).find("the uploaded file is damaged") != std::string::npos);
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("a state directory without a database gives no backup", "[coordinator][unit]") {
  const muster::testing::TempFolder folder;
  const auto written = WriteBackup(folder.path(), folder / "backup");
  CHECK_FALSE(written.ok());
  CHECK_FALSE(fs::exists(folder / "backup"));
}

}  // namespace
}  // namespace muster::coordinator
