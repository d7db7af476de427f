#include "services/common/socket_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/environment_variables.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

namespace fs = std::filesystem;

// The number of a process that has ended.
pid_t Dead() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  REQUIRE(pid > 0);
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  return pid;
}

void MakeSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.copy(address.sun_path, sizeof address.sun_path - 1) == path.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::close(socket);
}

void Write(const std::string& path) { std::ofstream(path) << "kept?\n"; }

// As a daemon leaves it that was killed: its socket, and that of an executor with what it ran.
std::string MakeFolder(const testing::TempFolder& dir, pid_t pid, const std::string& name) {
  std::string path = fmt::format("{}/muster-{}-{}-{}", dir.path(), ::geteuid(), pid, name);
  fs::create_directory(path);
  fs::permissions(path, fs::perms::owner_all);
  MakeSocket(path + "/s");
  MakeSocket(path + "/4711");
  Write(path + "/4711.running");
  return path;
}

TEST_CASE("a daemon removes the folders of sockets of those that were killed, and no other's file",
          "[services][unit]") {
  const testing::TempFolder dir;
  const muster::testing::EnvironmentVariables runtime({{"RUNTIME_DIRECTORY", dir.path()}});
  const std::string left = MakeFolder(dir, Dead(), "left");
  const std::string in_use = MakeFolder(dir, ::getpid(), "in-use");
  const std::string with_more = MakeFolder(dir, Dead(), "more");
  Write(with_more + "/notes.running");
  Write(with_more + "/12.txt");
  fs::create_directory(with_more + "/13.running");

  const Result<std::string> own = MakeSocketFolder();

  REQUIRE(own.ok());
  CHECK_FALSE(fs::exists(left));
  CHECK(fs::exists(in_use + "/4711.running"));
  CHECK(fs::exists(in_use + "/4711"));
  CHECK_FALSE(fs::exists(with_more + "/4711.running"));
  CHECK(fs::exists(with_more + "/notes.running"));
  CHECK(fs::exists(with_more + "/12.txt"));
  CHECK(fs::exists(with_more + "/13.running"));
}

TEST_CASE("a temporary folder that is none is a setting to mend", "[services][unit]") {
  const testing::TempFolder dir;
  const muster::testing::EnvironmentVariables none({{"TMPDIR", dir / "not-there"}});

  const Result<std::string> own = MakeSocketFolder();

  CHECK(own.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(own.status()).find("TMPDIR") != std::string::npos);
}

TEST_CASE("a daemon that ends leaves no folder behind", "[services][unit]") {
  const testing::TempFolder dir;
  const std::string path = MakeFolder(dir, ::getpid(), "own");

  RemoveSocketFolder(path);

  CHECK_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace muster::services
