#include "services/common/program_child.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <elf.h>
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

v1::ProgramStart ExecutorStart() {
  v1::ProgramStart start;
  start.set_role(v1::PROGRAM_ROLE_EXECUTOR);
  start.mutable_task()->set_type("worker");
  start.mutable_task()->set_index(3);
  return start;
}

std::string ProgramFile(const testing::TempFolder& dir, const std::string& bytes) {
  std::string path = dir / "program";
  std::ofstream(path, std::ios::binary) << bytes;
  ::chmod(path.c_str(), 0700);
  return path;
}

TEST_CASE("a program's process gets its arguments and role, and no setting of its daemon's",
          "[services][unit]") {
  const testing::TempFolder dir;
  ::setenv("MUSTER_TOKEN_FILE", "/secret", 1);
  ::setenv("MUSTER_STATE_DIR", "/state", 1);
  ::setenv("CREDENTIALS_DIRECTORY", "/secrets", 1);
  ::setenv("TF_CONFIG", "the daemon's", 1);
  v1::ProgramSpec program;
  program.set_name("words");
  program.add_arguments("--epochs");
  program.add_arguments("3");
  const std::string path =
      ProgramFile(dir,
                  "#!/bin/sh\nenv | grep -c '^MUSTER_' && echo \"$MUSTER_ROLE $MUSTER_PROGRAM_FD "
                  "$MUSTER_TOKEN_FILE$CREDENTIALS_DIRECTORY|$*|$TF_CONFIG|$MUSTER_DATA_CACHE\"\n");

  process::Child::Options options = ProgramChild(path, program, ExecutorStart(), dir / "cache");
  CHECK(options.argv == std::vector<std::string>{"words", "--epochs", "3"});
  CHECK(options.oom_score > 0);
  std::vector<std::string> lines;
  options.on_line = [&](auto, const std::string& line) { lines.push_back(line); };
  auto child = process::Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(std::chrono::seconds(20)).ok());
  ::unsetenv("MUSTER_TOKEN_FILE");
  ::unsetenv("MUSTER_STATE_DIR");
  ::unsetenv("CREDENTIALS_DIRECTORY");
  ::unsetenv("TF_CONFIG");

  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "3");
  CHECK(lines[1] ==
        R"(executor 3 |--epochs 3|{"cluster": {}, "task": {"type": "worker", "index": 3}}|)" +
            (dir / "cache"));
}

TEST_CASE("an executable of another machine and a file that is none are told as such",
          "[services][unit]") {
  const testing::TempFolder dir;
  std::string elf(64, '\0');
  elf.replace(0, SELFMAG, ELFMAG);
  elf[4] = ELFCLASS64;
  elf[16] = static_cast<char>(ET_EXEC);
  elf[18] = static_cast<char>(EM_AARCH64);
  const auto [bytes, expected] = GENERATE_REF(table<std::string, std::string>(
      {{elf, "an executable for aarch64"}, {"no program\n", "no ELF executable"}}));
  const std::string path = ProgramFile(dir, bytes);

  const auto child = process::Child::Start({.argv = {path}});
  const Status told = ExplainStart(child.status(), path);

  REQUIRE_FALSE(child.ok());
  CHECK(told.code() == StatusCode::kInvalidArgument);
  CHECK(Message(told).find(expected) != std::string::npos);
  CHECK(Message(told).find("this host is") != std::string::npos);
}

TEST_CASE("files that may not run and loaders that are missing are the host's trouble",
          "[services][unit]") {
  const testing::TempFolder dir;
  const std::string path = ProgramFile(dir, "#!/no/such/loader\n");
  const auto loader = process::Child::Start({.argv = {path}});
  ::chmod(path.c_str(), 0600);
  const auto forbidden = process::Child::Start({.argv = {path}});

  CHECK(ExplainStart(loader.status(), path).code() == StatusCode::kFailedPrecondition);
  const Status told = ExplainStart(forbidden.status(), path);
  CHECK(told.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(told).find("--cache-dir") != std::string::npos);
}

}  // namespace
}  // namespace muster::services
