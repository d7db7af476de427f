// Serves the shards of jobs, and the variables of programs, to workers over the data plane: TCP,
// and on one host a Unix socket whose peers hand over an arena that this process maps (never the
// other way round).
//
// One thread accepts, one thread serves each connection from its first byte to its last: a request
// finishes on the thread that received it (docs/decisions/0001-data-plane-threads.md). What a peer
// sends is bounded before it sizes anything, and never ends the server.
//
// Memory beyond the shards is bounded by `stage_budget_bytes`: pushes over TCP are received whole
// into it and pulls copied through it (half of it; senders wait), and it bounds how much of the
// workers' arenas stays resident here. One shard larger than its half goes alone.
//
// Threading: any thread. Lifetime: shards published here live until they are replaced or dropped
// and their last request has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/server/options.h"

namespace muster::v1 {
class DataEndpoint;
}

namespace muster::ps {

class JobShards;

class PsServer {
 public:
  using Options = ServerOptions;

  // kInvalidArgument: an address that is none.  kUnavailable: the address is in use (named).
  // kPermissionDenied, kFailedPrecondition: others may change `unix_directory`, or it is a link.
  // kResourceExhausted: no threads can be had.
  static Result<std::unique_ptr<PsServer>> Start(Options options);
  // Stops.
  virtual ~PsServer() = default;

  // Where this server listens; host_id included.
  virtual v1::DataEndpoint endpoint() const = 0;

  // Serves this view of the job from now on. Requests of an older view get kAborted, those of a
  // newer one kUnavailable. An older view than the one that is served is not published.
  virtual void Publish(JobNumber job, std::shared_ptr<JobShards> shards) = 0;
  // Forgets the job's shards; its requests get kAborted.
  virtual void Drop(JobNumber job) = 0;

  // A program's variables begin with its first connection (docs/formats/frame.md), which proves the
  // job's key. Frees them; its requests get kAborted.
  virtual void DropProgram(const std::string& job_id) = 0;
  // The same for all programs of earlier epochs of the coordinator: none comes back.
  virtual void BeginEpoch(Epoch epoch) = 0;
  virtual std::vector<ProgramUse> programs() const = 0;

  // Zeros for a job that was never published.
  virtual ServerCounters counters(JobNumber job) const = 0;
  virtual LinkCounters links() const = 0;

  // Closes every connection and waits for the running requests; idempotent.
  virtual void Stop() = 0;
};

}  // namespace muster::ps
