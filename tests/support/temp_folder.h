// A folder of a test's own, which goes with the object.
#pragma once

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <stdlib.h>

namespace muster::testing {

// New, empty, and its owner's alone. Throws std::system_error, which is a std::runtime_error, when
// it cannot be made; what cannot be removed at the end stays.
class TempFolder {
 public:
  TempFolder() : path_((std::filesystem::temp_directory_path() / "muster-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + path_);
    }
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file, answers its path. Some are tokens, which nobody else may read.
  std::string Write(const std::string& name, const std::string& text) const {
    std::string path = *this / name;
    std::ofstream(path, std::ios::binary) << text;
    std::filesystem::permissions(
        path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace muster::testing
