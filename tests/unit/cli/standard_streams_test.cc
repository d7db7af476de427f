// What is said where stdout is full or closed.
#include <fstream>
#include <ostream>
#include <sstream>
#include <streambuf>

#include "cli/stream_files.h"
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

}  // namespace
}  // namespace muster::cli
