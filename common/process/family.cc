#include "common/process/family.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "common/base/whole_file.h"

namespace muster::process {
namespace {

// Each thread has a list of the children that it has forked.
void AddChildren(int pid, std::vector<int>& children) {
  std::error_code error;
  std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", pid), error);
  for (const std::filesystem::directory_iterator end; !error && thread != end;
       thread.increment(error)) {
    const Result<std::string> list = ReadWholeFile(thread->path().string() + "/children");
    if (!list.ok()) continue;  // the thread has ended
    const char* text = list->c_str();
    for (char* after = nullptr;; text = after) {
      const long child = std::strtol(text, &after, 10);
      if (after == text) break;
      children.push_back(static_cast<int>(child));
    }
  }
}

}  // namespace

std::vector<int> FamilyOf(int pid) {
  std::vector<int> family;
  std::set<int> seen;
  std::vector<int> open{pid};
  while (!open.empty()) {
    const int one = open.back();
    open.pop_back();
    if (!seen.insert(one).second) continue;
    family.push_back(one);
    AddChildren(one, open);
  }
  return family;
}

}  // namespace muster::process
