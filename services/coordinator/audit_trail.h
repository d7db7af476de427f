// What the audit log is told, and how much of it: who did, or wanted to do, what with which job.
//
// What changes something is written each time. Who only looks, or is refused, is written the first
// time; of the same person, deed and job again once in kPause, with how often it was meanwhile: so
// nobody who may only look fills the disk. A disk that does not keep up loses lines above
// kMostWaiting, and a host without a free thread those of that time, which is told by a line of
// their number.
//
// Threading: any thread. Lifetime: `disks` and `clock` outlive it; what is being written may not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/rate_limit.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "coordinator/offload.h"
#include "services/coordinator/audit_log.h"

namespace muster::coordinator {

class AuditTrail {
 public:
  static constexpr Millis kPause{600'000};
  static constexpr std::size_t kMostWaiting = 1'000;
  // What is remembered of who looked at what; beyond it all that one person does in one way to
  // other jobs is one line in kPause.
  static constexpr std::size_t kMostRemembered = 4'096;

  // `most_bytes`: as AuditLog's.
  AuditTrail(std::string path, std::uint64_t most_bytes, LaneOffload& disks, const Clock& clock)
      : disks_(disks),
        clock_(clock),
        shared_(std::make_shared<Shared>(std::move(path), most_bytes)) {}

  // `what`: the job's id, or what the caller has named; `outcome`: what the caller was answered.
  void Change(const std::string& who, std::string_view did, std::string_view what,
              const Status& outcome);
  void Look(const std::string& who, std::string_view did, std::string_view what,
            const Status& outcome);
  // Waits until what it was told is written. False: the disk has not taken it within `limit`.
  bool Flush(Millis limit);

 private:
  // What waits for the disk goes on without this object.
  struct Shared {
    Shared(std::string path, std::uint64_t most_bytes) : log(std::move(path), most_bytes) {}
    void NoteWritten();
    AuditLog log;
    Mutex mutex;
    Condition written;
    std::size_t waiting MUSTER_GUARDED_BY(mutex) = 0;
    std::atomic<std::uint64_t> lost{0};
  };
  struct Seen {
    RateLimit limit{kPause};
    TimePoint last;
  };
  void Write(AuditEntry entry);
  bool HasRoom(const std::string& key) MUSTER_REQUIRES(mutex_);

  LaneOffload& disks_;
  const Clock& clock_;
  const std::shared_ptr<Shared> shared_;
  Mutex mutex_;
  std::map<std::string, Seen, std::less<>> looks_ MUSTER_GUARDED_BY(mutex_);
  std::optional<TimePoint> next_sweep_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::coordinator
