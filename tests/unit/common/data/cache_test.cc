#include "common/data/cache.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/data/file_lock.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

using namespace std::chrono_literals;

v1::DataSpec Numbers(const std::string& path) {
  v1::DataSpec spec;
  spec.set_shuffle(false);
  (*spec.mutable_idx()->mutable_columns())["x"].add_files(path);
  return spec;
}

std::size_t Decoded(const TempFiles& files) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(files.CacheDirectory())) {
    count += entry.path().extension() == ".decoded" ? 1 : 0;
  }
  return count;
}

TEST_CASE("a compressed file is decoded once, for all that open it", "[data][unit]") {
  const TempFiles files;
  const v1::DataSpec spec = Numbers(files.Write("x.gz", Gzip(IdxNumbers(100))));
  MustOpen(spec, files.Options(10));
  const auto entries = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(files.CacheDirectory())) {
      struct stat info = {};
      ::stat(entry.path().c_str(), &info);
      names.push_back(entry.path().filename().string() + " " + std::to_string(info.st_ino));
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto before = entries();

  MustOpen(spec, files.Options(10));

  CHECK(entries() == before);
  CHECK(Decoded(files) == 1);
}

TEST_CASE("a file that has changed is decoded and indexed anew", "[data][unit]") {
  const TempFiles files;
  const v1::DataSpec spec = Numbers(files.Write("x.gz", Gzip(IdxNumbers(100))));
  MustOpen(spec, files.Options(10));
  files.Write("x.gz", Gzip(IdxNumbers(50, 1000)));

  const auto source = MustOpen(spec, files.Options(50));

  CHECK(source->examples() == 50);
  CHECK(Values<std::int32_t>(*source, 1, "x")[0] == 1000);
  CHECK(Decoded(files) == 1);  // the old copy is gone
}

TEST_CASE("over cache_bytes the error names the knob, unused copies make room", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec first = Numbers(files.Write("1.gz", Gzip(IdxNumbers(1000))));
  v1::DataSpec second = Numbers(files.Write("2.gz", Gzip(IdxNumbers(1000, 5))));
  first.set_cache_bytes(6000);
  second.set_cache_bytes(6000);
  {
    const auto in_use = MustOpen(first, files.Options(10));
    const std::string error = OpenError(second, files);
    CHECK(Contains(error, "RESOURCE_EXHAUSTED: " + files.Path("2.gz")));
    CHECK(Contains(error, "the limit is 6000: raise data.cache_bytes"));
    CHECK(Values<std::int32_t>(*in_use, 1, "x")[9] == 9);
  }

  CHECK(Values<std::int32_t>(*MustOpen(second, files.Options(10)), 1, "x")[0] == 5);
  CHECK(Decoded(files) == 1);
}

TEST_CASE("all files of one opening share the room for copies", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  auto& x = (*spec.mutable_idx()->mutable_columns())["x"];
  for (const char* name : {"1.gz", "2.gz", "3.gz"}) {
    x.add_files(files.Write(name, Gzip(IdxNumbers(1000))));
  }
  // For two copies of some 4,000 bytes each.
  spec.set_cache_bytes(10'000);

  const std::string error = OpenError(spec, files);

  CHECK(Contains(error, "RESOURCE_EXHAUSTED: "));
  CHECK(Contains(error, "the limit is 10000: raise data.cache_bytes"));
  CHECK(Decoded(files) == 2);
  spec.set_cache_bytes(13'000);
  CHECK(MustOpen(spec, files.Options(10))->examples() == 3000);
}

TEST_CASE("what is left of several files is swept away in one opening", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  auto& x = (*spec.mutable_idx()->mutable_columns())["x"];
  for (const char* name : {"1.gz", "2.gz", "3.gz"}) {
    x.add_files(files.Write(name, Gzip(IdxNumbers(100))));
  }
  MustOpen(spec, files.Options(10));
  for (const char* name : {"1.gz", "2.gz", "3.gz"}) files.Write(name, Gzip(IdxNumbers(50, 7)));

  CHECK(MustOpen(spec, files.Options(10))->examples() == 150);

  CHECK(Decoded(files) == 3);
}

TEST_CASE("a damaged index is made again", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  spec.set_shuffle(false);
  spec.mutable_text()->add_files(files.Write("a.txt", "a\nb\nc\n"));
  spec.mutable_text()->set_length(1);
  MustOpen(spec, files.Options(1));
  for (const auto& entry : std::filesystem::directory_iterator(files.CacheDirectory())) {
    if (entry.path().string().find("index-") == std::string::npos) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put('\x7f');
  }

  CHECK(Values<char>(*MustOpen(spec, files.Options(3)), 1, "line") ==
        std::vector<char>{'a', 'b', 'c'});
}

TEST_CASE("what a killed process left half written is swept away", "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("x.gz", Gzip(IdxNumbers(100)));
  MustOpen(Numbers(path), files.Options(10));
  for (const auto& entry : std::filesystem::directory_iterator(files.CacheDirectory())) {
    if (entry.path().extension() != ".decoded") continue;
    std::filesystem::rename(entry.path(), entry.path().string() + ".tmp12345");
  }

  MustOpen(Numbers(path), files.Options(10));

  for (const auto& entry : std::filesystem::directory_iterator(files.CacheDirectory())) {
    CHECK(entry.path().string().find(".tmp") == std::string::npos);
  }
  CHECK(Decoded(files) == 1);
}

TEST_CASE("what a killed process left half written makes room, what is being written does not",
          "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = Numbers(files.Write("x.gz", Gzip(IdxNumbers(1000))));
  spec.set_cache_bytes(6000);
  // It belongs to another source, which nobody may ever read again.
  std::filesystem::create_directories(files.CacheDirectory());
  const std::string half = files.Write("cache/0123456789abcdef-0123456789abcdef.decoded.tmp12345",
                                       std::string(5000, 'x'));
  const int writer = ::open(half.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(writer >= 0);
  REQUIRE(::flock(writer, LOCK_SH) == 0);

  CHECK(Contains(OpenError(spec, files), "RESOURCE_EXHAUSTED: " + files.Path("x.gz")));
  CHECK(std::filesystem::exists(half));
  ::close(writer);

  CHECK(MustOpen(spec, files.Options(10))->examples() == 1000);
  CHECK_FALSE(std::filesystem::exists(half));
}

TEST_CASE("a file that changes between being found and being read is data loss", "[data][unit]") {
  const TempFiles files;
  const auto cache = Cache::Open({.directory = files.CacheDirectory()});
  REQUIRE(cache.ok());
  for (const bool packed : {false, true}) {
    INFO(packed);
    const std::string content = packed ? Gzip(IdxNumbers(5)) : IdxNumbers(5);
    const std::vector<std::string> paths = {files.Write("x", content)};
    const auto found = FindFiles(paths);
    REQUIRE(found.ok());
    // Another file of the same size: only its time tells.
    const auto time = std::filesystem::last_write_time(paths[0]);
    std::filesystem::rename(files.Write("other", content), paths[0]);
    std::filesystem::last_write_time(paths[0], time + 1s);

    const Status changed = cache->Content(found->at(0)).status();

    CHECK(changed.code() == StatusCode::kDataLoss);
    CHECK(Contains(Message(changed), paths[0] + " on host"));
    CHECK(Contains(Message(changed), "changed while the job opened it: last written 20"));
    CHECK(Decoded(files) == 0);
    files.Write("x", content + "more");
    CHECK(Contains(Message(cache->Content(found->at(0)).status()), "changed from "));
    std::filesystem::remove(paths[0]);
  }
}

TEST_CASE("processes that race to prepare the same files all read the same", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  for (int file = 0; file < 6; ++file) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) text += std::to_string(i * 7 + file) + "\n";
    spec.mutable_text()->add_files(files.Write(std::to_string(file) + ".gz", Gzip(text)));
  }
  spec.mutable_text()->set_length(8);

  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto source = BatchSource::Open(spec, files.Options(64));
      const bool good = source.ok() && (*source)->examples() == 120'000 && (*source)->Batch(5).ok();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }

  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  CHECK(Decoded(files) == 6);
}

TEST_CASE("waiting for another process ends with its number", "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("x", "hello");
  const auto cache = Cache::Open({.directory = files.CacheDirectory(), .patience = 0ms});
  REQUIRE(cache.ok());
  const std::vector<std::string> paths = {path};
  const auto found = FindFiles(paths);
  REQUIRE(found.ok());

  Status inner = Ok();
  const Status outer = cache->ForEachLocked(*found, [&](std::size_t) {
    inner = cache->ForEachLocked(*found, [](std::size_t) { return Ok(); });
    return Ok();
  });

  CHECK(outer.ok());
  CHECK(inner.code() == StatusCode::kDeadlineExceeded);
  CHECK(Contains(Message(inner), "process " + std::to_string(::getpid())));
}

TEST_CASE("batches are read from many threads at once", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = Numbers(files.Write("x.gz", Gzip(IdxNumbers(5000))));
  spec.set_shuffle(true);
  const auto source = MustOpen(spec, files.Options(50));

  std::atomic<std::int64_t> sum = 0;
  std::vector<std::jthread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t closure = 1 + t; closure <= 300; closure += 4) {
        const auto batch = source->Batch(closure);
        for (int i = 0; batch.ok() && i < 50; ++i) sum += batch->columns[0].as<std::int32_t>()[i];
      }
    });
  }
  threads.clear();

  CHECK(sum == 3 * (4999LL * 5000 / 2));
}

TEST_CASE("without a usable cache directory opening says which", "[data][unit]") {
  const TempFiles files;
  const v1::DataSpec spec = Numbers(files.Write("x", IdxNumbers(3)));

  const auto unnamed = BatchSource::Open(spec, {.cache_directory = ""});
  const auto file = BatchSource::Open(spec, {.cache_directory = files.Path("x")});

  CHECK(Contains(ToString(unnamed.status()), "no directory given"));
  CHECK(Contains(ToString(file.status()), "data cache: make " + files.Path("x")));
}

}  // namespace
}  // namespace muster::data::testing
