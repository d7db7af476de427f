#include "services/common/token.h"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/credential.h"

namespace muster::services {
namespace {

constexpr std::size_t kShortest = 16;
constexpr std::size_t kLongest = 4096;

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

// Kubernetes' secrets belong to root, and a pod's user may read them as the pod's group. Root
// itself has no need of a group.
bool IsSecret(const struct stat& info) {
  return info.st_uid == 0 && ::geteuid() != 0 && (info.st_mode & 07137U) == 0;
}

}  // namespace

Result<Token> Token::FromFile(int fd, const std::string& path) {
  std::string text(kLongest + 2, '\0');
  const ssize_t got = ::read(fd, text.data(), text.size());
  if (got < 0) return FromErrno(errno, fmt::format("token file {}", path));
  text.resize(static_cast<std::size_t>(got));
  if (const std::size_t end = text.find_first_of("\r\n"); end != std::string::npos) {
    text.resize(end);
  }
  if (text.size() < kShortest || text.size() > kLongest) {
    return InvalidArgument("token file {}: the token has {} characters, must have {} to {}", path,
                           text.size(), kShortest, kLongest);
  }
  if (!std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; })) {
    return InvalidArgument("token file {}: the token has a character that is not printable ASCII",
                           path);
  }
  return Token(std::move(text));
}

Result<Token> Token::Read(const std::string& path) {
  const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return FromErrno(errno, fmt::format("token file {}", path));
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) return FromErrno(errno, fmt::format("token file {}", path));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("token file {}: not a regular file", path);
  // systemd's credentials belong to root, and the unit's user may read them by an access list,
  // which shows as the group's mode; nobody else comes into their folder.
  if (IsSecret(info) || (IsCredential(path) && info.st_uid == 0 && (info.st_mode & 07137U) == 0)) {
    return FromFile(file.fd, path);
  }
  if (info.st_uid != ::geteuid()) {
    return PermissionDenied("token file {}: owned by uid {}, this process runs as uid {}", path,
                            info.st_uid, ::geteuid());
  }
  const unsigned mode = info.st_mode & 07777U;
  if (mode != 0600U && mode != 0400U) {
    return PermissionDenied("token file {}: mode is {:04o}, must be 0600. Run: chmod 600 {}", path,
                            mode, path);
  }
  return FromFile(file.fd, path);
}

bool Token::Accepts(std::string_view header) const {
  const std::string expected = Header();
  unsigned difference = header.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < header.size(); ++i) {
    difference |= static_cast<unsigned char>(header[i]) ^
                  static_cast<unsigned char>(expected[i % expected.size()]);
  }
  return difference == 0;
}

}  // namespace muster::services
