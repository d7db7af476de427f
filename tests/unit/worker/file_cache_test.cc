#include "services/worker/file_cache.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/unit/services_common/temp_dir.h"

namespace muster::services {
namespace {

// SHA-256 of "hello\n".
constexpr const char* kHello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

struct Fixture {
  TempDir dir;
  int fetches = 0;
  std::string content = "hello\n";
  FileCache cache{dir.path() + "/archives",
                  [this](const std::string&, const FileCache::Sink& sink) -> Status {
                    ++fetches;
                    MUSTER_TRY(sink(content.substr(0, 3)));
                    return sink(content.substr(3));
                  }};

  std::size_t Files() const {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(dir.path() + "/archives")) {
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
      dir.path() + "/programs",
      [this](const std::string&, const FileCache::Sink& sink) { return sink(content); },
      FileCache::Use::kProgram);

  const auto path = programs.Get(kHello);

  REQUIRE(path.ok());
  CHECK(std::filesystem::status(*path).permissions() == std::filesystem::perms::owner_all);
  CHECK(::access(cache.Get(kHello).value().c_str(), X_OK) != 0);
}

}  // namespace
}  // namespace muster::services
