#include "services/coordinator/audit_log.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace muster::coordinator {

net::Fd AuditLog::Open() const {
  return net::Fd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
}

void AuditLog::Write(const AuditEntry& entry) {
  nlohmann::json fields{
      {"time", entry.time}, {"who", entry.who}, {"did", entry.did}, {"what", entry.what}};
  if (!entry.refused.empty()) fields["refused"] = entry.refused;
  if (entry.again > 0) fields["again"] = entry.again;
  const std::string line =
      fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const MutexLock lock(mutex_);
  // Opened for each line: it may be moved away at any time.
  net::Fd file = Open();
  struct stat now{};
  const bool full = most_bytes_ > 0 && file.valid() && ::fstat(file.get(), &now) == 0 &&
                    now.st_size > 0 &&
                    static_cast<std::uint64_t>(now.st_size) + line.size() > most_bytes_;
  // Where it cannot be renamed it grows on: rather that than lines that are lost.
  if (full && std::rename(path_.c_str(), (path_ + ".old").c_str()) == 0) file = Open();
  int error = errno;
  if (file.valid()) {
    const ssize_t wrote = ::write(file.get(), line.data(), line.size());
    if (wrote == static_cast<ssize_t>(line.size())) return;
    error = wrote < 0 ? errno : ENOSPC;
    // The next line would be glued to half of this one.
    if (wrote > 0 && ::fstat(file.get(), &now) == 0) {
      (void)!::ftruncate(file.get(), now.st_size - wrote);
    }
  }
  log::Warning("{}: {}; the line: {}", path_, Message(FromErrno(error, "write")),
               std::string_view(line).substr(0, line.size() - 1));
}

}  // namespace muster::coordinator
