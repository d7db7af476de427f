#include "common/process/cpu_time.h"

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "common/base/whole_file.h"
#include "common/process/family.h"

namespace muster::process {
namespace {

// Ticks of one process, with those of its children that it has waited for.
std::optional<std::int64_t> Ticks(int pid) {
  const Result<std::string> text = ReadWholeFile(fmt::format("/proc/{}/stat", pid));
  if (!text.ok()) return std::nullopt;
  // The name may hold anything, but what follows its last ')' is numbers: fields 14 to 17.
  const std::size_t end = text->rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream rest(text->substr(end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) rest >> skipped;
  std::int64_t user = 0, system = 0, children_user = 0, children_system = 0;
  if (!(rest >> user >> system >> children_user >> children_system)) return std::nullopt;
  return user + system + children_user + children_system;
}

}  // namespace

Result<std::chrono::milliseconds> CpuTime(int pid) {
  const std::optional<std::int64_t> own = Ticks(pid);
  if (!own.has_value()) return NotFound("no process {}", pid);
  std::int64_t ticks = *own;
  for (const int one : FamilyOf(pid)) {
    if (one != pid) ticks += Ticks(one).value_or(0);
  }
  return std::chrono::milliseconds(ticks * 1'000 / ::sysconf(_SC_CLK_TCK));
}

}  // namespace muster::process
