#include "bench/execute.h"

#include "common/base/mutex.h"
#include "common/process/child.h"

namespace muster::bench {

Result<std::string> Execute(const std::vector<std::string>& argv, std::chrono::milliseconds limit) {
  std::string out;
  std::string err;
  Mutex mutex;
  const auto into = [&mutex](std::string& text) {
    return [&mutex, &text](auto, const std::string& line) {
      const MutexLock lock(mutex);
      text += line + "\n";
    };
  };
  MUSTER_TRY_ASSIGN(
      const auto child,
      process::Child::Start({.argv = argv, .on_line = into(out), .on_error_line = into(err)}));
  MUSTER_TRY_ASSIGN(const process::Exit exit, child->Wait(limit));
  if (!exit.ok()) return Internal("{} ended with {}: {}{}", argv[0], exit.ToString(), err, out);
  return out;
}

}  // namespace muster::bench
