// Which view of which job this server serves, and what was counted for it.
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

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
  // Held by one request: it ends on the shards that it began with.
  struct Served {
    std::shared_ptr<JobShards> shards;
    std::shared_ptr<JobCounters> counters;
  };

  void Publish(JobNumber job, std::shared_ptr<JobShards> shards);
  void Drop(JobNumber job);

  // kAborted: a newer view is served, or the job was dropped.  kUnavailable: this server does not
  // have that view (yet), or lost it in a restart.
  Result<Served> Find(JobNumber job, ViewId view) const;
  // Whether a client of that view may connect: kAborted as above; a view to come is fine.
  Status Admit(JobNumber job, ViewId view) const;

  ServerCounters counters(JobNumber job) const;

 private:
  struct Entry {
    ViewId view;
    bool dropped = false;
    Served served;
  };
  mutable Mutex mutex_;
  std::map<JobNumber, Entry> jobs_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
