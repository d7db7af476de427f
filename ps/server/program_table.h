// Which programs have variables on this server, and in whose time. Threading: any thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "ps/program_space.h"
#include "ps/server/options.h"

namespace muster::ps {

class ProgramTable {
 public:
  // The space of that job and time, an empty one where there is none yet. A later time closes the
  // earlier one's.
  //   kAborted: a later driver or coordinator is known, or the job was dropped.
  Result<std::shared_ptr<ProgramSpace>> Open(const std::string& job_id, ProgramTime time,
                                             ApplyPool& pool);
  // Frees the job's variables; who comes again in the same time is refused.
  void Drop(const std::string& job_id);
  // Frees what belongs to earlier epochs: their programs are over.
  void BeginEpoch(Epoch epoch);

  std::vector<ProgramUse> uses() const;

 private:
  struct Entry {
    ProgramTime time;
    std::shared_ptr<ProgramSpace> space;  // null: dropped
  };
  mutable Mutex mutex_;
  Epoch epoch_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, Entry> jobs_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::ps
