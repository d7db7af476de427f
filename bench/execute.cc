#include "bench/execute.h"

#include <mutex>

#include "common/process/child.h"

namespace muster::bench {

Result<std::string> Execute(const std::vector<std::string>& argv, std::chrono::milliseconds limit) {
  std::string text;
  std::mutex mutex;
  MUSTER_TRY_ASSIGN(
      const auto child,
      process::Child::Start({.argv = argv, .on_line = [&](auto, const std::string& line) {
                               const std::lock_guard lock(mutex);
                               text += line + "\n";
                             }}));
  MUSTER_TRY_ASSIGN(const process::Exit exit, child->Wait(limit));
  if (!exit.ok()) return Internal("{} ended with {}: {}", argv[0], exit.ToString(), text);
  return text;
}

}  // namespace muster::bench
