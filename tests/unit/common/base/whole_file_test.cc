#include "common/base/whole_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster {
namespace {

// What fsync() was called for on this thread.
thread_local std::vector<std::string> synced;

}  // namespace
}  // namespace muster

// In the place of the C library's, for the whole of this program.
extern "C" int fsync(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    muster::synced.push_back("folder " + std::filesystem::read_symlink(path, error).string());
  } else {
    muster::synced.push_back("file");
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace muster {
namespace {

struct WholeFileFixture {
  // Others may read it.
  std::string With(const std::string& text) const {
    std::ofstream(folder / "file", std::ios::binary) << text;
    return folder / "file";
  }
  const testing::TempFolder folder;
};

}  // namespace

TEST_CASE_METHOD(WholeFileFixture, "a file is read whole, whatever is in it", "[base][unit]") {
  CHECK(ReadWholeFile(With("")).value().empty());
  const std::string text = std::string(200'000, 'x') + std::string("\0\r\n\xff", 4);
  CHECK(ReadWholeFile(With(text)).value() == text);
  CHECK(ReadWholeFile("/proc/self/stat").value().find(") ") != std::string::npos);
}

TEST_CASE_METHOD(WholeFileFixture, "what cannot be read is an error that names it",
                 "[base][unit]") {
  const Status none = ReadWholeFile(folder / "none").status();
  CHECK(none.code() == StatusCode::kNotFound);
  CHECK(Message(none) == "read " + folder / "none" + ": No such file or directory");
  const Status of_a_folder = ReadWholeFile(folder.path()).status();
  CHECK(Message(of_a_folder) == "read " + folder.path() + ": Is a directory");

  CHECK(ReadWholeFile(With("12345"), 5).value() == "12345");
  const Status large = ReadWholeFile(With("123456"), 5).status();
  CHECK(large.code() == StatusCode::kResourceExhausted);
  CHECK(Message(large).find("has more than 5 bytes") != std::string::npos);
}

TEST_CASE_METHOD(WholeFileFixture,
                 "a file is replaced as a whole, or stays and nothing is beside it",
                 "[base][unit]") {
  const std::string path = With("old");
  REQUIRE(ReplaceFile(path, "new", 0600).ok());
  CHECK(ReadWholeFile(path).value() == "new");
  CHECK((std::filesystem::status(path).permissions() & std::filesystem::perms::others_read) ==
        std::filesystem::perms::none);

  const std::string taken = folder / "taken";
  std::filesystem::create_directories(taken + "/by-a-folder");
  CHECK(Message(ReplaceFile(taken, "new")).find("write " + taken) != std::string::npos);
  CHECK(Message(ReplaceFile(folder / "none/file", "new")) ==
        "write " + folder / "none/file" + ": No such file or directory");
  const auto left = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  CHECK(left == 2);
}

TEST_CASE_METHOD(WholeFileFixture, "a file that replaces another is on the disk under its name",
                 "[base][unit]") {
  const std::string path = With("old");
  synced.clear();
  REQUIRE(ReplaceFile(path, "new").ok());
  CHECK(synced == std::vector<std::string>{
                      "file", "folder " + std::filesystem::canonical(folder.path()).string()});
}

TEST_CASE_METHOD(WholeFileFixture, "a file takes no device's, pipe's or folder's place",
                 "[base][unit]") {
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string link = folder / "link";
  std::filesystem::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link, std::string("/dev/null"), folder.path()}) {
    const Status refused = PlaceOfFile(path).status();
    CHECK(refused.code() == StatusCode::kInvalidArgument);
    CHECK(Message(refused).starts_with("write " + path + ": a "));
  }
  CHECK_FALSE(PlaceOfFile("").ok());
  CHECK(ReplaceFile(pipe, "text").code() == StatusCode::kInvalidArgument);
  CHECK(ReplaceFile(link, "text").code() == StatusCode::kInvalidArgument);
  for (const char* path : {"/dev/stdout", "/dev/fd/1", "/dev/../proc/self/fd/1"}) {
    INFO(path);
    CHECK(ReplaceFile(path, "text").code() == StatusCode::kInvalidArgument);
  }
  CHECK(std::filesystem::is_symlink("/dev/stdout"));
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(std::filesystem::is_symlink(link));

  const std::string file = With("text");
  std::filesystem::create_symlink(file, folder / "to-file");
  CHECK(PlaceOfFile(folder / "to-file").value() == std::filesystem::canonical(file));
  std::filesystem::create_symlink(folder / "none", folder / "to-nothing");
  CHECK(PlaceOfFile(folder / "to-nothing").value() == folder / "to-nothing");
  CHECK(PlaceOfFile(folder / "new").value() == folder / "new");
}

}  // namespace muster
