// This program started again as the other side of a measurement. It tells its addresses by lines on
// its standard output, works until its standard input ends, and dies with its parent.
#pragma once

#include <memory>
#include <string>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/net/fd.h"

namespace muster::bench {

// Threading: one thread. The destructor ends its input and waits for its end.
class SelfProcess {
 public:
  // `role` is its first argument, and what errors call it; `argument` the second.
  static Result<std::unique_ptr<SelfProcess>> Start(const std::string& role,
                                                    const std::string& argument = {});
  ~SelfProcess();
  SelfProcess(const SelfProcess&) = delete;
  SelfProcess& operator=(const SelfProcess&) = delete;

  pid_t pid() const { return pid_; }
  // kUnavailable: it ended before.
  Result<std::string> ReadLine();

 private:
  explicit SelfProcess(std::string role) : role_(std::move(role)) {}

  const std::string role_;
  net::Fd in_;
  net::Fd out_;
  pid_t pid_ = -1;
};

}  // namespace muster::bench
