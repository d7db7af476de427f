#include "services/common/token.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

std::string WriteToken(const testing::TempFolder& dir, const std::string& text, mode_t mode) {
  const std::string path = dir / "token";
  std::ofstream(path) << text;
  ::chmod(path.c_str(), mode);
  return path;
}

TEST_CASE("a token is the first line of a file of mode 0600 or 0400", "[services][unit]") {
  const testing::TempFolder dir;
  for (const mode_t mode : {0600, 0400}) {
    std::filesystem::remove(dir / "token");
    const auto token = Token::Read(WriteToken(dir, "0123456789abcdef\nrest\n", mode));
    REQUIRE(token.ok());
    CHECK(token->value() == "0123456789abcdef");
  }
}

TEST_CASE("a token file that others may touch is refused with the remedy", "[services][unit]") {
  const testing::TempFolder dir;
  const mode_t mode = GENERATE(0640, 0604, 0644, 0660, 0700, 0777);
  const std::string path = WriteToken(dir, "0123456789abcdef\n", mode);

  const auto token = Token::Read(path);

  REQUIRE(token.status().code() == StatusCode::kPermissionDenied);
  CHECK(Message(token.status()).find("chmod 600 " + path) != std::string::npos);
}

TEST_CASE("a token may be a systemd credential, which is root's and the group's to read",
          "[services][unit]") {
  const testing::TempFolder dir;
  const std::string path = WriteToken(dir, "0123456789abcdef\n", 0440);
  CHECK(Token::Read(path).status().code() == StatusCode::kPermissionDenied);

  ::setenv("CREDENTIALS_DIRECTORY", dir.path().c_str(), 1);
  const auto token = Token::Read(path);
  ::chmod(path.c_str(), 0444);
  const auto open_to_all = Token::Read(path);
  ::unsetenv("CREDENTIALS_DIRECTORY");

  // Where the tests are not root's, the file is none of root's either.
  CHECK(token.ok() == (::geteuid() == 0));
  CHECK(open_to_all.status().code() == StatusCode::kPermissionDenied);
}

// The exit code of a process without rights that reads it: 0 it may, 1 it is refused.
int ReadAsNobody(const std::string& path, gid_t group) {
  constexpr uid_t kNobody = 65534;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool nobody =
        ::setgroups(0, nullptr) == 0 && ::setgid(group) == 0 && ::setuid(kNobody) == 0;
    ::_exit(!nobody ? 2 : Token::Read(path).ok() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

TEST_CASE("a token may be a secret of Kubernetes: root's, and the pod's group's to read",
          "[services][unit]") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can give a file to a group");
    return;
  }
  constexpr gid_t kPods = 12'345;
  const testing::TempFolder dir;
  ::chmod(dir.path().c_str(), 0755);
  const std::string path = WriteToken(dir, "0123456789abcdef\n", 0440);
  REQUIRE(::chown(path.c_str(), 0, kPods) == 0);
  CHECK(ReadAsNobody(path, kPods) == 0);
  CHECK(ReadAsNobody(path, kPods + 1) == 1);

  ::chmod(path.c_str(), 0444);
  CHECK(ReadAsNobody(path, kPods) == 1);
}

TEST_CASE("a token that is short, binary or missing is refused", "[services][unit]") {
  const testing::TempFolder dir;
  CHECK(Token::Read(dir / "none").status().code() == StatusCode::kNotFound);
  CHECK(Token::Read(dir.path()).status().code() == StatusCode::kInvalidArgument);
  CHECK(Token::Read(WriteToken(dir, "short\n", 0600)).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(Token::Read(WriteToken(dir, "0123456789 abcdef", 0600)).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(Token::Read(WriteToken(dir, std::string(5'000, 'x'), 0600)).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("only the exact header is accepted", "[services][unit]") {
  const testing::TempFolder dir;
  const auto token = Token::Read(WriteToken(dir, "0123456789abcdef", 0600));
  REQUIRE(token.ok());

  CHECK(token->Accepts("Bearer 0123456789abcdef"));
  CHECK_FALSE(token->Accepts("Bearer 0123456789abcdeF"));
  CHECK_FALSE(token->Accepts("Bearer 0123456789abcdef0"));
  CHECK_FALSE(token->Accepts("Bearer 0123456789abcde"));
  CHECK_FALSE(token->Accepts("0123456789abcdef"));
  CHECK_FALSE(token->Accepts(""));
}

}  // namespace
}  // namespace muster::services
