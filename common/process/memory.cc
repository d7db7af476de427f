#include "common/process/memory.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <time.h>

#include "common/base/whole_file.h"

namespace muster::process {
namespace {

// The number after `name`, "\nName:   123 kB"; 0 where there is none.
std::uint64_t Kilobytes(const std::string& status, const char* name) {
  const std::size_t at = status.find(name);
  return at == std::string::npos
             ? 0
             : std::strtoull(status.c_str() + at + std::char_traits<char>::length(name), nullptr,
                             10);
}

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

std::chrono::nanoseconds ProcessorTime() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

std::uint64_t OwnMemory(int pid) {
  std::uint64_t kilobytes = 0;
  // While they are looked at processes come and go, also under numbers that were there before.
  std::set<int> seen;
  std::vector<int> open{pid};
  while (!open.empty()) {
    const int one = open.back();
    open.pop_back();
    if (!seen.insert(one).second) continue;
    const Result<std::string> status = ReadWholeFile(fmt::format("/proc/{}/status", one));
    if (!status.ok()) continue;
    // One that has ended and was not waited for has neither line.
    kilobytes += Kilobytes(*status, "\nRssAnon:") + Kilobytes(*status, "\nRssShmem:");
    AddChildren(one, open);
  }
  return kilobytes * 1'024;
}

std::uint64_t MemoryGauge::Get(TimePoint now) {
  if (now < due_) return bytes_;
  const std::chrono::nanoseconds begin = ProcessorTime();
  bytes_ = OwnMemory(pid_);
  due_ = now + std::max<std::chrono::nanoseconds>(kLeastAge, kShare * (ProcessorTime() - begin));
  return bytes_;
}

}  // namespace muster::process
