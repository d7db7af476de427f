#include "ps/server/job_table.h"

#include <utility>

namespace muster::ps {

void JobTable::Publish(JobNumber job, std::shared_ptr<JobShards> shards) {
  // The older view's memory is freed outside the lock.
  std::shared_ptr<JobShards> older;
  const MutexLock lock(mutex_);
  Entry& entry = jobs_[job];
  const ViewId view = shards->view();
  if (view < entry.view) return;
  if (entry.served.counters == nullptr) entry.served.counters = std::make_shared<JobCounters>();
  entry.id = shards->job_id();
  older = std::exchange(entry.served.shards, std::move(shards));
  entry.view = view;
  entry.dropped = false;
}

void JobTable::Drop(JobNumber job) {
  std::shared_ptr<JobShards> older;
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.dropped = true;
  older = std::exchange(found->second.served.shards, nullptr);
  dropped_.emplace_back(job, found->second.view);
  if (dropped_.size() <= kMostDropped) return;
  const auto [oldest, view] = dropped_.front();
  dropped_.pop_front();
  const auto over = jobs_.find(oldest);
  if (over != jobs_.end() && over->second.dropped && over->second.view == view) jobs_.erase(over);
}

// A client has proven an id, and says the number itself.
Status JobTable::CheckId(const Entry& entry, std::string_view job_id, JobNumber job) {
  if (entry.id == job_id) return Ok();
  return PermissionDenied("job number {} is not that of {}, whose key this client has", job,
                          job_id);
}

Status JobTable::Admit(std::string_view job_id, JobNumber job, ViewId view) const {
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return Ok();
  MUSTER_TRY(CheckId(found->second, job_id, job));
  if (view > found->second.view) return Ok();
  if (view < found->second.view) {
    return Aborted("job {} is at view {}; view {} is over", job, found->second.view, view);
  }
  if (found->second.dropped) return Aborted("job {}: view {} was dropped here", job, view);
  return Ok();
}

Result<JobTable::Served> JobTable::Find(std::string_view job_id, JobNumber job, ViewId view) const {
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) {
    return Unavailable("no variables of job {} here: not created yet, or lost in a restart", job);
  }
  const Entry& entry = found->second;
  MUSTER_TRY(CheckId(entry, job_id, job));
  if (entry.view == view && !entry.dropped) return entry.served;
  if (view > entry.view) {
    return Unavailable("job {} is at view {} here; view {} is not created yet", job, entry.view,
                       view);
  }
  if (view < entry.view) {
    return Aborted("job {} is at view {}; view {} is over", job, entry.view, view);
  }
  return Aborted("job {}: view {} was dropped here", job, view);
}

ServerCounters JobTable::counters(JobNumber job) const {
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  const JobCounters& c = *found->second.served.counters;
  return {.pulls = c.pulls,
          .pushes = c.pushes,
          .duplicates = c.duplicates,
          .step_waits = c.step_waits,
          .tcp_bytes_in = c.tcp_bytes_in,
          .tcp_bytes_out = c.tcp_bytes_out,
          .local_bytes_in = c.local_bytes_in,
          .local_bytes_out = c.local_bytes_out};
}

}  // namespace muster::ps
