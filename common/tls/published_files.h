// Certificates and a key as files in memory, for a library that wants paths and looks again by
// itself: each path always holds something whole, and they change together as far as that library
// compares times. Nothing of it is on a disk, and no child process inherits it.
//
// Threading: one thread at a time publishes; paths are read by any.
#pragma once

#include <array>
#include <string>

#include "common/base/status.h"

namespace muster::tls {

struct Contents {
  std::string ca;
  std::string certificate;
  std::string key;
};

class PublishedFiles {
 public:
  PublishedFiles() = default;
  ~PublishedFiles();
  PublishedFiles(const PublishedFiles&) = delete;
  PublishedFiles& operator=(const PublishedFiles&) = delete;

  // Takes the place of what was there. FromErrno()'s; what was there stays then.
  Status Publish(const Contents& contents);
  // For this process alone: "/proc/self/fd/7". After the first Publish(), the same for good.
  std::string ca() const { return PathOf(0); }
  std::string certificate() const { return PathOf(1); }
  std::string key() const { return PathOf(2); }

 private:
  std::string PathOf(std::size_t file) const;

  std::array<int, 3> fds_{-1, -1, -1};
};

}  // namespace muster::tls
