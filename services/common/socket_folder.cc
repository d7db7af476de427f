#include "services/common/socket_folder.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "common/base/environment.h"
#include "common/base/private_directory.h"

namespace muster::services {
namespace {

namespace fs = std::filesystem;

// "muster-<uid>-<pid>-" of a process that has ended without removing its folder.
void CollectFolders(const fs::path& directory, const std::string& prefix) {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const int pid = std::atoi(name.c_str() + prefix.size());
    const bool gone = pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH;
    if (gone && RequireOwnDirectory(entry.path().string()).ok()) left.push_back(entry.path());
  }
  for (const fs::path& path : left) RemoveSocketFolder(path.string());
}

bool IsRunningTable(const fs::directory_entry& entry) {
  std::error_code ignored;
  const std::string stem = entry.path().stem().string();
  return entry.path().extension() == ".running" && !stem.empty() &&
         std::ranges::all_of(stem, [](unsigned char c) { return std::isdigit(c) != 0; }) &&
         fs::is_regular_file(entry.symlink_status(ignored));
}

}  // namespace

Result<std::string> MakeSocketFolder() {
  // A unit's temporary folder is its own, where a neighbour's processes find nothing.
  const std::string given = ProcessEnvironment()("RUNTIME_DIRECTORY").value_or("");
  std::error_code error;
  const fs::path temporary = given.empty() ? fs::temp_directory_path(error) : fs::path(given);
  if (error) {
    return InvalidArgument(
        "the temporary folder cannot be had: {}. TMPDIR must be a folder, or not be set: /tmp then",
        error.message());
  }
  const std::string prefix = fmt::format("muster-{}-", ::geteuid());
  CollectFolders(temporary, prefix);
  std::string path = (temporary / fmt::format("{}{}-XXXXXX", prefix, ::getpid())).string();
  if (::mkdtemp(path.data()) == nullptr) return FromErrno(errno, "make the folder " + path);
  return path;
}

void RemoveSocketFolder(const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const bool ours = fs::is_socket(entry.symlink_status(ignored)) || IsRunningTable(entry);
    if (ours) fs::remove(entry.path(), ignored);
  }
  fs::remove(path, ignored);  // stays if there is anything else in it
}

}  // namespace muster::services
