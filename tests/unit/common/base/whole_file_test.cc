#include "common/base/whole_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

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

}  // namespace muster
