// Which view of which job this server serves, and what was counted for it.
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "ps/job_shards.h"
#include "ps/server/options.h"

namespace muster::ps {

struct JobCounters {
  std::atomic<std::uint64_t> pulls{0};
  std::atomic<std::uint64_t> pushes{0};
  std::atomic<std::uint64_t> duplicates{0};
  std::atomic<std::uint64_t> step_waits{0};
  std::atomic<std::uint64_t> tcp_bytes_in{0};
  std::atomic<std::uint64_t> tcp_bytes_out{0};
  std::atomic<std::uint64_t> local_bytes_in{0};
  std::atomic<std::uint64_t> local_bytes_out{0};
};

class JobTable {
 public:
  // So many of the jobs that were dropped last are remembered: who comes late hears of it.
  static constexpr std::size_t kMostDropped = 4'096;

  // Held by one request: it ends on the shards that it began with.
  struct Served {
    std::shared_ptr<JobShards> shards;
    std::shared_ptr<JobCounters> counters;
  };

  void Publish(JobNumber job, std::shared_ptr<JobShards> shards);
  void Drop(JobNumber job);

  // For a client of the job of that id.
  //   kPermissionDenied: the number is another job's.  kAborted: a newer view is served, or the job
  //   was dropped.  kUnavailable: this server does not have that view (yet), or lost it in a
  //   restart.
  Result<Served> Find(std::string_view job_id, JobNumber job, ViewId view) const;
  // Whether such a client may connect: errors as above, but that a view to come is fine.
  Status Admit(std::string_view job_id, JobNumber job, ViewId view) const;

  ServerCounters counters(JobNumber job) const;

 private:
  struct Entry {
    std::string id;
    ViewId view;
    bool dropped = false;
    Served served;
  };
  static Status CheckId(const Entry& entry, std::string_view job_id, JobNumber job);
  mutable Mutex mutex_;
  std::map<JobNumber, Entry> jobs_ MUSTER_GUARDED_BY(mutex_);
  // The oldest first; some have come back since.
  std::deque<std::pair<JobNumber, ViewId>> dropped_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
