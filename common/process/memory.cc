#include "common/process/memory.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <time.h>

#include "common/base/whole_file.h"
#include "common/process/family.h"

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

std::chrono::nanoseconds ProcessorTime() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

std::uint64_t OwnMemory(int pid) {
  std::uint64_t kilobytes = 0;
  for (const int one : FamilyOf(pid)) {
    const Result<std::string> status = ReadWholeFile(fmt::format("/proc/{}/status", one));
    if (!status.ok()) continue;
    // One that has ended and was not waited for has neither line.
    kilobytes += Kilobytes(*status, "\nRssAnon:") + Kilobytes(*status, "\nRssShmem:");
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
