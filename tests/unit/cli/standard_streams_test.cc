// What is said where stdout is full, closed, or was closed before the program began.
#include <array>
#include <cerrno>
#include <fstream>
#include <ostream>
#include <sstream>
#include <streambuf>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/stream_files.h"
#include "cli/terminal.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"
#include "tests/unit/common/storage/support.h"

namespace muster::cli {
namespace {

using testing::Fixture;

TEST_CASE("what could not be written is no success, and is told", "[cli][unit]") {
  std::ofstream full("/dev/full");
  full << "a page";
  std::ostringstream err;
  CHECK(Flushed(full, ExitCode::kNotFound, err) == ExitCode::kNotFound);
  CHECK(err.str().empty());
  CHECK(Flushed(full, ExitCode::kDone, err) == ExitCode::kJobFailed);
  CHECK(err.str().starts_with("error: standard output took no more"));

  err.str("");
  std::ostringstream page;
  CHECK(Flushed(page, ExitCode::kDone, err) == ExitCode::kDone);
  CHECK(err.str().empty());
}

// A stdout that takes nothing.
struct FullFixture : Fixture {
  FullFixture() { out.setstate(std::ios::badbit); }
};

TEST_CASE_METHOD(FullFixture, "a file that stdout does not take is no question of the cluster",
                 "[cli][unit]") {
  const muster::testing::TempFolder root;
  REQUIRE(storage::WriteSample(root.path(), 20, storage::RealFileSystem()).ok());
  const std::string folder = storage::CheckpointDirectory(root.path(), 20);
  CHECK(Run({"checkpoints", "export", folder, "-o", "-"}) == ExitCode::kJobFailed);
  CHECK(Said("error: standard output took no more"));

  err.str("");
  api.backup = {"a piece"};
  CHECK(Run({"backup", "-"}) == ExitCode::kJobFailed);
  CHECK(Said("error: standard output took no more"));
}

// What a process ends with that began with 0, 1 and 2 closed.
int WithoutStreams() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int stream : {0, 1, 2}) (void)::close(stream);
    FillStandardStreams();
    if (::open("/dev/null", O_RDWR | O_CLOEXEC) < 3) ::_exit(1);
    char byte = 'x';
    for (const int stream : {1, 2}) {
      if (::write(stream, &byte, 1) != -1 || errno != EBADF) ::_exit(2);
    }
    if (::read(0, &byte, 1) != -1 || errno != EBADF) ::_exit(3);
    ::_exit(0);
  }
  int how = -1;
  if (child < 0 || ::waitpid(child, &how, 0) != child || !WIFEXITED(how)) return -1;
  return WEXITSTATUS(how);
}

TEST_CASE("what is opened first does not become a stream that was closed", "[cli][unit]") {
  CHECK(WithoutStreams() == 0);
}

TEST_CASE("streams that are open stay what they are", "[cli][unit]") {
  std::array<int, 2> before{};
  for (const int stream : {1, 2}) before.at(stream - 1) = ::fcntl(stream, F_GETFL);
  FillStandardStreams();
  for (const int stream : {1, 2}) CHECK(::fcntl(stream, F_GETFL) == before.at(stream - 1));
}

}  // namespace
}  // namespace muster::cli
