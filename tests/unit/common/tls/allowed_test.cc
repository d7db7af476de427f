#include "common/tls/allowed.h"

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "common/tls/context.h"
#include "tests/support/catch.h"
#include "tests/support/certificates.h"

namespace muster::tls {
namespace {

using testing::Certificates;
using testing::Says;

const std::string kOne(64, 'a');
const std::string kTwo(64, 'b');

}  // namespace

TEST_CASE("a list is read by the fingerprints at the beginnings of its lines", "[tls][unit]") {
  const auto read = ParseAllowed("# people\n" + kOne + "  submitter ana\n\n" + kTwo, "list");
  REQUIRE(read.ok());
  CHECK(*read == std::set<std::string>{kOne, kTwo});

  CHECK(Says(ParseAllowed(kOne + "\nsubmitter ana\n", "list").status(), "list:2: must begin with"));
  CHECK_FALSE(ParseAllowed(kOne + "a", "list").ok());
  CHECK(ParseAllowed("", "list").ok());
}

TEST_CASE("who is taken off the list is refused at once", "[tls][unit]") {
  const Certificates folder;
  folder.Write("allowed", kOne + "\n" + kTwo + "\n");
  auto list = Allowed::Open(folder.path("allowed"));
  REQUIRE(list.ok());
  REQUIRE((*list)->Check(kOne, "node ps:0") == Ok());

  folder.Write("allowed", kTwo + "\n");

  const Status refused = (*list)->Check(kOne, "node ps:0");
  CHECK(refused.code() == StatusCode::kUnauthenticated);
  CHECK(Says(refused, "the certificate of node ps:0 (fingerprint aaaaaaaaaaaaaaaa...) is not on "));
  CHECK((*list)->Check(kTwo, "ana") == Ok());
}

TEST_CASE("a list of no use leaves the one before in use, and is told of once", "[tls][unit]") {
  const Certificates folder;
  folder.Write("allowed", kOne + "\n");
  std::atomic<int> warnings = 0;
  auto list = Allowed::Open(folder.path("allowed"), [&](const std::string&) { ++warnings; });
  REQUIRE(list.ok());

  folder.Write("allowed", "garbage\n");

  CHECK((*list)->Check(kOne, "ana") == Ok());
  CHECK((*list)->Check(kOne, "ana") == Ok());
  CHECK(warnings == 1);
  CHECK(Says(Allowed::Open(folder.path("allowed")).status(), "allowed:1"));
  CHECK(Says(Allowed::Open(folder.path("none")).status(), "tls-allowed: read "));

  std::filesystem::remove(folder.path("allowed"));
  std::filesystem::create_directory(folder.path("allowed"));
  CHECK((*list)->Check(kOne, "ana") == Ok());
  CHECK(warnings == 2);
  CHECK(Says(Allowed::Open(folder.path("allowed")).status(), "allowed: Is a directory"));
}

TEST_CASE("a list that is being written, empty as yet, shuts out nobody", "[tls][unit]") {
  const Certificates folder;
  folder.Write("allowed", kOne + "\n");
  std::vector<std::string> warnings;
  auto list = Allowed::Open(folder.path("allowed"),
                            [&](const std::string& line) { warnings.push_back(line); });
  REQUIRE(list.ok());

  folder.Write("allowed", "");
  CHECK((*list)->Check(kOne, "ana") == Ok());
  folder.Write("allowed", "# who may come in\n");
  CHECK((*list)->Check(kOne, "ana") == Ok());

  REQUIRE_FALSE(warnings.empty());
  CHECK(
      warnings[0].ends_with("allowed: holds no fingerprint (muster certs show prints them); the "
                            "list from before stays in use"));
  CHECK(Says(Allowed::Open(folder.path("allowed")).status(), "holds no fingerprint"));

  folder.Write("allowed", kTwo + "\n");
  CHECK((*list)->Check(kTwo, "ana") == Ok());
  CHECK_FALSE((*list)->Check(kOne, "ana").ok());
}

TEST_CASE("a process whose own certificate is not on the list does not start with it",
          "[tls][unit]") {
  Certificates folder;
  Files files = folder.Issue("ps", {.role = Role::kNode, .names = {"ps:0"}});
  files.allowed = folder.path("allowed");
  folder.Write("allowed", folder.LineOf("ps"));
  CHECK(CheckFiles(files).status() == Ok());

  folder.Write("allowed", kTwo + "\n");
  const Status refused = CheckFiles(files).status();
  CHECK(Says(refused, "the certificate of node ps:0"));
  CHECK(Says(refused, "has been revoked, or its line is missing"));
}

}  // namespace muster::tls
