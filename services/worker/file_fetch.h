// Uploaded files from the coordinator, for the caches of this host.
//
// Threading: any thread, several fetches at a time. Lifetime: `timers` outlives it; it outlives
// every Fetch().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/rpc/transfer.h"
#include "services/common/grpc_channel.h"
#include "services/worker/file_cache.h"

namespace muster::services {

class FileFetch {
 public:
  FileFetch(const ControlPlane& control, Scheduler& timers, Millis limit = rpc::kStandsStill);

  // Hands the file's bytes to `sink` in order. May take as long as bytes keep coming.
  //   kUnavailable: nothing came for `limit`, or the coordinator has gone; says how far it had
  //   come. kCancelled: closed.  kNotFound: the coordinator has no such file.  Errors of `sink`.
  Status Fetch(const std::string& sha256, const FileCache::Sink& sink);
  // Ends the fetches under way at once, and every later one, with kCancelled.
  void Close();
  // The bytes that have come in all fetches so far.
  std::uint64_t moved() const { return moved_; }

 private:
  class Call;
  bool closed() const;

  const std::shared_ptr<grpc::Channel> channel_;
  const Token token_;
  Scheduler& timers_;
  const Millis limit_;
  std::atomic<std::uint64_t> moved_ = 0;
  mutable Mutex mutex_;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::services
