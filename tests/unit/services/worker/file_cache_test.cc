#include "services/worker/file_cache.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

// SHA-256 of "hello\n".
constexpr const char* kHello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

struct Fixture {
  testing::TempFolder dir;
  int fetches = 0;
  std::string content = "hello\n";
  FileCache cache{dir / "archives",
                  [this](const std::string&, const FileCache::Sink& sink) -> Status {
                    ++fetches;
                    MUSTER_TRY(sink(content.substr(0, 3)));
                    return sink(content.substr(3));
                  }};

  using Time = std::chrono::system_clock::time_point;
  static void Age(const std::string& path, Time time) {
    const timespec both{.tv_sec = std::chrono::system_clock::to_time_t(time), .tv_nsec = 0};
    const timespec times[2] = {both, both};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  }
  // What a process of this number had not wholly fetched.
  std::string Half(pid_t pid) const {
    std::string path = fmt::format("{}/archives/{}.pt.{}.tmp", dir.path(), kHello, pid);
    std::ofstream(path) << "hel";
    return path;
  }
  std::size_t Files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(dir / "archives")) {
      ++count;
    }
    return count;
  }
};

TEST_CASE_METHOD(Fixture, "a file is fetched once", "[services][unit]") {
  const auto first = cache.Get(kHello);
  const auto second = cache.Get(kHello);

  REQUIRE(first.ok());
  CHECK(*first == *second);
  CHECK(fetches == 1);
  std::string text;
  std::ifstream stream(*first);
  std::getline(stream, text);
  CHECK(text == "hello");
}

TEST_CASE_METHOD(Fixture, "a damaged copy is fetched again", "[services][unit]") {
  const auto path = cache.Get(kHello);
  REQUIRE(path.ok());
  std::ofstream(*path) << "jello\n";

  CHECK(cache.Get(kHello).ok());

  CHECK(fetches == 2);
}

TEST_CASE_METHOD(Fixture, "what has another hash is not kept", "[services][unit]") {
  content = "other";

  CHECK(cache.Get(kHello).status().code() == StatusCode::kDataLoss);

  CHECK(Files() == 0);
}

TEST_CASE_METHOD(Fixture, "a name that is no SHA-256 reaches neither disk nor coordinator",
                 "[services][unit]") {
  CHECK(cache.Get("../../etc/passwd").status().code() == StatusCode::kInvalidArgument);
  CHECK(cache.Get(std::string(64, 'G')).status().code() == StatusCode::kInvalidArgument);
  CHECK(fetches == 0);
}

TEST_CASE_METHOD(Fixture, "a program of the cache can be run by its owner alone",
                 "[services][unit]") {
  const FileCache programs(
      dir / "programs",
      [this](const std::string&, const FileCache::Sink& sink) { return sink(content); },
      FileCache::Use::kProgram);

  const auto path = programs.Get(kHello);

  REQUIRE(path.ok());
  CHECK(std::filesystem::status(*path).permissions() == std::filesystem::perms::owner_all);
  CHECK(::access(cache.Get(kHello).value().c_str(), X_OK) != 0);
}

TEST_CASE_METHOD(Fixture,
                 "what nobody has asked for in a day goes, and is fetched when it is wanted",
                 "[services][unit]") {
  const Time now = std::chrono::system_clock::now();
  const std::string path = cache.Get(kHello).value();
  const std::string other = dir / "archives/notes";
  std::ofstream(other) << "of somebody else";
  Age(other, now - std::chrono::hours(1'000));
  Age(path, now - std::chrono::hours(30));
  REQUIRE(cache.Get(kHello).ok());

  CHECK(cache.Collect(now + std::chrono::hours(23)) == 0);
  CHECK(std::filesystem::exists(path));
  std::ifstream open(path);
  CHECK(cache.Collect(now + std::chrono::hours(25)) == 1);

  CHECK_FALSE(std::filesystem::exists(path));
  std::string text;
  std::getline(open, text);
  CHECK(text == "hello");
  CHECK(std::filesystem::exists(other));
  CHECK(fetches == 1);
  CHECK(cache.Get(kHello).ok());
  CHECK(fetches == 2);
}

TEST_CASE_METHOD(Fixture, "what a process that has ended had half fetched goes at once",
                 "[services][unit]") {
  REQUIRE(cache.Get(kHello).ok());
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  REQUIRE(::waitpid(ended, nullptr, 0) == ended);
  const std::string left = Half(ended);
  const std::string own = Half(::getpid());
  const std::string running = Half(::getppid());

  CHECK(cache.Collect(std::chrono::system_clock::now()) == 2);

  CHECK_FALSE(std::filesystem::exists(left));
  CHECK_FALSE(std::filesystem::exists(own));
  CHECK(std::filesystem::exists(running));
  CHECK(cache.Collect(std::chrono::system_clock::now() + std::chrono::hours(25)) == 2);
  CHECK(Files() == 0);
}

TEST_CASE_METHOD(Fixture, "a cache is kept tidy again and again", "[services][unit]") {
  FakeScheduler files;
  const std::string path = cache.Get(kHello).value();
  Age(path, files.WallNow());

  KeepTidy(files, cache);
  files.Advance(std::chrono::hours(24));
  CHECK(std::filesystem::exists(path));
  files.Advance(std::chrono::hours(1));

  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE_METHOD(Fixture, "a folder that another process collects is waited for",
                 "[services][unit]") {
  const std::string path = cache.Get(kHello).value();
  const Time long_ago = std::chrono::system_clock::now() - std::chrono::hours(30);
  Age(path, long_ago);
  const int folder = ::open((dir / "archives").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(folder, LOCK_EX) == 0);
  auto got = std::async(std::launch::async, [this] { return cache.Get(kHello); });

  // As the other one does, having found it old.
  CHECK(got.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  std::filesystem::remove(path);
  ::close(folder);

  CHECK(got.get().ok());
  CHECK(fetches == 2);
  CHECK(std::filesystem::exists(path));
}

TEST_CASE_METHOD(Fixture, "a process that stands still with the folder holds nobody up",
                 "[services][unit]") {
  const std::string path = cache.Get(kHello).value();
  const auto now = std::chrono::system_clock::now();
  Age(path, now - std::chrono::hours(30));
  const int folder = ::open((dir / "archives").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(folder, LOCK_EX) == 0);

  CHECK(cache.Collect(now) == 0);  // it may be about to be used
  CHECK(cache.Get(kHello).ok());
  CHECK(fetches == 1);

  ::close(folder);
  CHECK(cache.Collect(now) == 0);  // it was used
}

}  // namespace
}  // namespace muster::services
