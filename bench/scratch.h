// A folder for sockets and state, which goes with the measurement however that ends: also by Ctrl-C
// or a signal that nobody can catch.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/net/fd.h"

namespace muster::bench {

// Threading: one thread. A small process of its own watches over it; the destructor removes the
// folder and ends that.
class Scratch {
 public:
  // A new folder in `where`, "muster-bench-XXXXXX".
  static Result<std::unique_ptr<Scratch>> Make(const std::string& where);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  // Closed when this process has ended.
  net::Fd alive_;
  pid_t watcher_ = -1;
};

}  // namespace muster::bench
