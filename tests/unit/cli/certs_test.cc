#include "cli/certs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/escaping.h>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/whole_file.h"
#include "common/tls/authority.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;

unsigned ModeOf(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777U : 0;
}

TEST_CASE_METHOD(Fixture, "an authority is made once, and what it issues says who it is for",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";

  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  CHECK(ModeOf(dir + "/ca.key") == 0600);
  CHECK(Run({"certs", "init", "--dir", dir}) == ExitCode::kRefused);
  CHECK(err.str().find("has an authority already") != std::string::npos);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--node", "ps:1", "--node", "worker:0", "--host",
               "node-3", "--host", "10.0.0.3"}) == ExitCode::kDone);
  CHECK(ModeOf(dir + "/ps-1.key") == 0600);
  out.str("");

  CHECK(Run({"certs", "show", dir + "/ps-1.pem", "-o", "json"}) == ExitCode::kDone);

  const auto shown = nlohmann::json::parse(out.str());
  CHECK(shown.at("holder") == "node ps:1, worker:0");
  CHECK(shown.at("hosts") == nlohmann::json{"node-3", "10.0.0.3"});
  CHECK(shown.at("valid") == true);
}

TEST_CASE_METHOD(Fixture, "what is issued is on the list of the folder until it is revoked",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  const auto list = [&] {
    std::ifstream file(dir + "/allowed");
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const auto has = [&](const std::string& who) { return list().find(who) != std::string::npos; };
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "anabel"}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--node", "ps:1", "--node", "worker:0", "--host",
               "node-3"}) == ExitCode::kDone);
  CHECK(has("  submitter ana  until "));
  CHECK(has("  node ps:1, worker:0  until "));

  CHECK(Run({"certs", "revoke", "--dir", dir, "ana"}) == ExitCode::kDone);
  CHECK_FALSE(has("submitter ana  "));
  CHECK(has("submitter anabel  "));
  CHECK(Run({"certs", "revoke", "--dir", dir, "worker:0"}) == ExitCode::kDone);
  CHECK_FALSE(has("node"));
  CHECK(Run({"certs", "revoke", "--dir", dir, dir + "/anabel.pem"}) == ExitCode::kDone);
  CHECK(list().empty());

  CHECK(Run({"certs", "revoke", "--dir", dir, "ana"}) == ExitCode::kNotFound);
  CHECK(err.str().find("/allowed has no line of \"ana\"") != std::string::npos);
}

// In a folder of its own while it lives.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::string& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~WorkingFolder() { std::filesystem::current_path(before_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  const std::filesystem::path before_;
};

TEST_CASE_METHOD(Fixture, "a holder is revoked though a file here has that name by chance",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "bob"}) == ExitCode::kDone);
  std::filesystem::copy_file(dir + "/bob.pem", folder / "ana");
  const WorkingFolder here(folder.path());
  const auto list = [&] { return ReadWholeFile(dir + "/allowed").value_or("?"); };

  CHECK(Run({"certs", "revoke", "--dir", dir, "ana"}) == ExitCode::kDone);
  CHECK(err.str().find("not for the file of this name: give that one as ./ana") !=
        std::string::npos);
  CHECK(list().find("submitter ana") == std::string::npos);
  CHECK(list().find("submitter bob") != std::string::npos);

  CHECK(Run({"certs", "revoke", "--dir", dir, "./ana"}) == ExitCode::kDone);
  CHECK(list().empty());
}

TEST_CASE_METHOD(Fixture, "a certificate of many tasks is revoked by any of them",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  std::vector<std::string> issue{"certs", "issue", "--dir", dir, "--host", "node-3"};
  for (int i = 0; i < 50; ++i) issue.insert(issue.end(), {"--node", fmt::format("worker:{}", i)});
  REQUIRE(Run(issue) == ExitCode::kDone);

  CHECK(Run({"certs", "revoke", "--dir", dir, "worker:49"}) == ExitCode::kDone);

  CHECK(ReadWholeFile(dir + "/allowed").value_or("?").empty());
}

TEST_CASE_METHOD(Fixture, "a certificate that names no role is not written over",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  std::filesystem::copy_file(dir + "/ca.pem", dir + "/ana.pem");

  CHECK(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kRefused);

  INFO(err.str());
  CHECK(err.str().find("/ana.pem is the certificate of CN = muster authority: give --name") !=
        std::string::npos);
}

TEST_CASE_METHOD(Fixture,
                 "a certificate for nobody, for two, for no host or of no authority is refused",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  const auto says = [&](const std::string& words) {
    INFO(err.str());
    return err.str().find(words) != std::string::npos;
  };

  CHECK(Run({"certs", "issue", "--dir", dir, "--viewer", "bob"}) == ExitCode::kRefused);
  CHECK(says("run `muster certs init --dir "));
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  CHECK(Run({"certs", "issue", "--dir", dir}) == ExitCode::kUsage);
  CHECK(says("for whom?"));
  CHECK(Run({"certs", "issue", "--dir", dir, "--viewer", "bob", "--submitter", "bob"}) ==
        ExitCode::kUsage);
  CHECK(Run({"certs", "issue", "--dir", dir, "--node", "ps:0"}) == ExitCode::kUsage);
  CHECK(says("at which hosts will node ps:0 be reached?"));
  CHECK(Run({"certs", "show", dir + "/none.pem"}) == ExitCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a certificate of no daemon, or for one task twice, is refused",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  const auto refused = [&](std::vector<std::string> tasks, const std::string& words) {
    std::vector<std::string> command{"certs", "issue", "--dir", dir, "--host", "127.0.0.1"};
    for (const std::string& task : tasks) command.insert(command.end(), {"--node", task});
    const ExitCode code = Run(command);
    INFO(err.str());
    return code == ExitCode::kUsage && err.str().find(words) != std::string::npos;
  };

  CHECK(refused({"foo:0"}, "--node foo:0: daemons are chief:0 (the coordinator), ps:INDEX, "));
  CHECK(refused({"chief:1"}, "--node chief:1: a cluster has one coordinator, chief:0"));
  CHECK(refused({"ps:0", "worker:1", "ps:0"}, "--node ps:0 is given twice"));
  CHECK(refused({"ps"}, "must be type:index"));
  CHECK(refused({"ps:4294967296"}, "must be type:index"));
  CHECK(refused({"worker:01"}, "--node worker:01: give it as worker:1"));
  CHECK(refused({"evaluator:1"}, "--node evaluator:1: a cluster has one evaluator, evaluator:0"));
  CHECK_FALSE(std::filesystem::exists(dir + "/allowed"));
}

TEST_CASE_METHOD(Fixture, "a renewal takes a certificate's place, somebody else's does not",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  const std::string mine = *ReadWholeFile(dir + "/ana.pem");

  CHECK(Run({"certs", "issue", "--dir", dir, "--viewer", "ana"}) == ExitCode::kRefused);

  INFO(err.str());
  CHECK(err.str().find("ana.pem is the certificate of submitter ana: give --name for the files of "
                       "viewer ana") != std::string::npos);
  CHECK(*ReadWholeFile(dir + "/ana.pem") == mine);
  CHECK(Run({"certs", "issue", "--dir", dir, "--viewer", "ana", "--name", "ana-looks"}) ==
        ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--node", "ps:0", "--node", "ps:1", "--host", "a",
               "--name", "nodes"}) == ExitCode::kDone);
  CHECK(Run({"certs", "issue", "--dir", dir, "--node", "ps:0", "--node", "ps:1", "--node", "ps:2",
             "--host", "a", "--name", "nodes"}) == ExitCode::kDone);
}

TEST_CASE_METHOD(Fixture, "a certificate that cannot be written leaves the key of the one before",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  // Where ReplaceFile() writes first.
  const auto block = [](const std::string& file) {
    const std::string staged = fmt::format("{}.{}.new", file, ::getpid());
    std::filesystem::create_directories(staged);
    return staged;
  };
  const std::string blocked = block(dir + "/ca.pem");
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all);
  CHECK(Run({"certs", "init", "--dir", dir}) != ExitCode::kDone);
  CHECK_FALSE(std::filesystem::exists(dir + "/ca.key"));
  std::filesystem::remove(blocked);
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  const std::string key = *ReadWholeFile(dir + "/ana.key");
  const std::string certificate = *ReadWholeFile(dir + "/ana.pem");
  (void)block(dir + "/ana.pem");

  CHECK(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) != ExitCode::kDone);

  CHECK(*ReadWholeFile(dir + "/ana.key") == key);
  CHECK(*ReadWholeFile(dir + "/ana.pem") == certificate);
}

TEST_CASE_METHOD(Fixture, "a certificate ends with its authority at last, and none is issued after",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir, "--days", "30"}) == ExitCode::kDone);

  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana", "--days", "29"}) ==
          ExitCode::kDone);
  CHECK(err.str().empty());
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  CHECK(err.str().find("warning: it ends with its authority, ") != std::string::npos);
  const auto until = [&](const std::string& file) {
    out.str("");
    REQUIRE(Run({"certs", "show", dir + file}) == ExitCode::kDone);
    return out.str().substr(out.str().find(" until "), 27);
  };
  CHECK(until("/ana.pem") == until("/ca.pem"));

  api.clock.Advance(std::chrono::hours(24 * 31));
  err.str("");
  CHECK(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) != ExitCode::kDone);
  INFO(err.str());
  CHECK(err.str().find("ca.pem") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "an authority whose key others may read issues nothing",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(::chmod((dir + "/ca.key").c_str(), 0644) == 0);

  CHECK(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kRefused);

  INFO(err.str());
  CHECK(err.str().find("chmod 600 it") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "commands that change the list at once lose no line of each other's",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  REQUIRE(Run({"certs", "issue", "--dir", dir, "--submitter", "ana"}) == ExitCode::kDone);
  constexpr int kAtOnce = 12;

  std::vector<ExitCode> codes(kAtOnce + 1, ExitCode::kRefused);
  std::vector<std::thread> threads;
  for (int i = 0; i <= kAtOnce; ++i) {
    threads.emplace_back([&, i] {
      Fixture mine;
      codes[static_cast<std::size_t>(i)] =
          i == kAtOnce
              ? mine.Run({"certs", "revoke", "--dir", dir, "ana"})
              : mine.Run({"certs", "issue", "--dir", dir, "--viewer", fmt::format("v{}", i)});
    });
  }
  for (std::thread& thread : threads) thread.join();

  CHECK(std::ranges::all_of(codes, [](ExitCode code) { return code == ExitCode::kDone; }));
  std::ifstream file(dir + "/allowed");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    CHECK(line.find("ana") == std::string::npos);
  }
  CHECK(lines == kAtOnce);
}

TEST_CASE_METHOD(Fixture, "a folder where a file should be is an error that names it",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  CHECK(Run({"certs", "show", folder.path()}) != ExitCode::kDone);
  CHECK(err.str().find("read " + folder.path() + ": Is a directory") != std::string::npos);
  err.str("");

  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);
  std::filesystem::create_directory(dir + "/allowed");
  CHECK(Run({"certs", "issue", "--dir", dir, "--viewer", "bob"}) != ExitCode::kDone);
  CHECK(err.str().find("/allowed: Is a directory") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(dir + "/bob.key"));
}

TEST_CASE_METHOD(Fixture, "a holder that can be no name of a file is looked for on the list",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir}) == ExitCode::kDone);

  CHECK(Run({"certs", "revoke", "--dir", dir, std::string(300, 'a')}) == ExitCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "nobody is nobody's name, and takes off no line without a holder",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string list = std::string(64, 'a') + "\n";
  folder.Write("allowed", list);

  CHECK(Run({"certs", "revoke", "--dir", folder.path(), ""}) == ExitCode::kUsage);

  std::ifstream file(folder / "allowed");
  CHECK(std::string{std::istreambuf_iterator<char>(file), {}} == list);
  CHECK(Run({"certs", "init", "--dir", ""}) == ExitCode::kUsage);
}

TEST_CASE_METHOD(Fixture, "with -o json a certificate that has expired is one document",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const std::string dir = folder / "certs";
  REQUIRE(Run({"certs", "init", "--dir", dir, "--days", "1"}) == ExitCode::kDone);
  api.clock.Advance(std::chrono::hours(24 * 2));
  out.str("");

  CHECK(Run({"certs", "show", dir + "/ca.pem", "-o", "json"}) == ExitCode::kForbidden);

  const auto shown = nlohmann::json::parse(out.str());
  CHECK(shown.at("valid") == false);
  CHECK(shown.at("error").at("name") == "UNAUTHENTICATED");
  CHECK(err.str().find("ca.pem has expired at ") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "a certificate whose words are not UTF-8 is shown as JSON",
                 "[cli][tls][unit]") {
  const muster::testing::TempFolder folder;
  const auto now = api.clock.WallNow();
  const tls::Period period{now - std::chrono::hours(1), now + std::chrono::hours(24 * 30)};
  const auto authority = tls::MakeAuthority("a test's", period);
  REQUIRE(authority.ok());
  const auto issued =
      tls::Issue(*authority, {.holder = {.role = tls::Role::kNode, .names = {"ps:0"}},
                              .hosts = {"odd-host"},
                              .period = period});
  REQUIRE(issued.ok());
  // Its signature is another's then, which `show` does not ask for.
  const std::string begin = "-----BEGIN CERTIFICATE-----\n", end = "-----END CERTIFICATE-----";
  const std::string& pem = issued->certificate;
  std::string bytes;
  REQUIRE(absl::Base64Unescape(pem.substr(begin.size(), pem.find(end) - begin.size()), &bytes));
  bytes.replace(bytes.find("odd-host"), 3, "o\xFF\xFE");
  std::string lines = absl::Base64Escape(bytes);
  for (std::size_t at = 64; at < lines.size(); at += 65) lines.insert(at, 1, '\n');
  const std::string path = folder.Write("odd.pem", begin + lines + "\n" + end + "\n");

  CHECK(Run({"certs", "show", path, "-o", "json"}) == ExitCode::kDone);

  CAPTURE(err.str());
  const std::string host = nlohmann::json::parse(out.str()).at("hosts").at(0);
  CHECK(host.starts_with("o\xEF\xBF\xBD"));
  CHECK(host.ends_with("-host"));
}

}  // namespace
}  // namespace muster::cli
