#include "cli/up/state_folder.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/exit_code.h"
#include "common/base/private_directory.h"
#include "common/base/utf8.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

// So many clusters have left their folders before somebody should look.
constexpr int kMostLeft = 1'000;

Result<std::string> MakeNewFolder(const std::string& name) {
  for (int left = 0; left < kMostLeft; ++left) {
    const std::string path = left == 0 ? name : fmt::format("{}-{}", name, left);
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST) return OfFiles(FromErrno(errno, "make the folder " + path));
  }
  return ResourceExhausted(
      "{0}, and {0}-1 to {0}-{1}, are there already, left by clusters that were killed: remove "
      "them, or name a --state-dir",
      name, kMostLeft - 1);
}

}  // namespace

Result<std::string> MakeStateFolder(const std::string& asked, const std::string& runtime) {
  if (asked.empty()) return MakeNewFolder(fmt::format("{}/state-{}", runtime, ::getpid()));
  std::error_code error;
  fs::path path = fs::absolute(asked, error);
  // It stands in messages and in the list of clusters that run, which take UTF-8 only.
  if (FirstBadUtf8(path.string()) != std::string::npos) {
    return InvalidArgument("--state-dir {}: not UTF-8", ToValidUtf8(path.string()));
  }
  // The folder around "new/" would be "new" itself, made for everybody. A link with a slash behind
  // it is the folder that it leads to.
  if (fs::is_directory(path, error)) {
    if (fs::path real = fs::canonical(path, error); !path.has_filename() && !error) path = real;
  }
  while (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
  fs::create_directories(path.parent_path(), error);
  MUSTER_TRY(OfFiles(MakePrivateDirectory(path.string())));
  return path.string();
}

}  // namespace muster::cli
