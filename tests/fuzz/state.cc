// The coordinator's database: of another version, another program's, damaged at any byte.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <stdlib.h>

#include "coordinator/journal.h"
#include "tests/fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

// In memory where there is such a file system: each input is a file, written through.
class Folder {
 public:
  Folder() {
    path_ = (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) +
            "/muster-fuzz-XXXXXX";
    muster::fuzz::Require(::mkdtemp(path_.data()) != nullptr, "a folder for the database");
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string database() const { return path_ + "/coordinator.db"; }
  void Fill(std::string_view bytes) const {
    for (const char* behind : {"", "-wal", "-shm", "-journal"}) fs::remove(database() + behind);
    std::ofstream(database(), std::ios::binary) << bytes;
  }
  std::string Bytes() const {
    std::ifstream in(database(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_;
};

// What is refused before anything is written.
bool IsForeign(const muster::Status& status) {
  const std::string text = muster::Message(status);
  for (const char* words : {"another program's", "newer version", "says of no schema"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  using namespace muster::coordinator;
  if (size > 256'000) return 0;
  static const Folder folder;
  const std::string before(fuzz::Text(data, size));
  folder.Fill(before);

  const auto journal = OpenSqliteJournal(folder.path());
  if (!journal.ok()) {
    fuzz::Require(!Message(journal.status()).empty(), "a refusal says why");
    fuzz::Require(!IsForeign(journal.status()) || folder.Bytes() == before,
                  "what is another's stays as it is");
    return 0;
  }
  const auto jobs = (*journal)->LoadJobs();
  if (jobs.ok()) {
    for (const StoredJob& job : *jobs) (void)(*journal)->LoadEvents(job.record.job().id());
  }
  (void)(*journal)->LoadTakenOut();
  v1::JobRecord record;
  record.set_number(7);
  record.mutable_job()->set_id("another");
  if ((*journal)->SaveJob(record).ok()) (void)(*journal)->DeleteJob("another");
  return 0;
}
