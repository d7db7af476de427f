// The output of all jobs' tasks, as the strand sees it: the files (LogStore) are read and written
// elsewhere, so that neither a slow disk nor a long log holds up the leases.
//
// Lines that wait for the disk are bounded by kMostWaiting; what does not fit is lost, and the next
// line that is kept says how many were.
//
// Threading: one strand, that of `offload`. Lifetime: `offload` outlives it, or has been stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coordinator/log_store.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

class Logs {
 public:
  // Bytes of lines on their way to the disk.
  static constexpr std::size_t kMostWaiting = 32 << 20;

  Logs(const LogStore::Options& options, Offload& offload)
      : most_jobs_(options.open_jobs), store_(options), offload_(offload) {}

  // `came_us`: see LogStore::Append().
  void Append(const std::string& job, const std::string& task,
              const google::protobuf::RepeatedPtrField<v1::LogLine>& lines,
              std::int64_t came_us = 0);
  // What was appended before is in the page.
  void Read(const std::string& job, const LogStore::Query& query,
            std::function<void(Result<LogStore::Page>)> then);
  // The newest lines of a task, oldest first, as far as they were appended or recalled here.
  std::vector<std::string> Last(const std::string& job, const std::string& task) const;
  // Another process of the task begins: Last() knows nothing of what was before it.
  void NoteStart(const std::string& job, const std::string& task) { NewestOf(job)[task].clear(); }
  // Whether it is a task that has said something, or has begun.
  bool Knows(const std::string& job, const std::string& task) const;
  // Reads what an earlier coordinator kept of a job: Last() knows its lines, some moments later.
  void Recall(const std::string& job);
  // Its files are deleted.
  void Forget(const std::string& job);

 private:
  using Tails = std::map<std::string, std::deque<std::string>>;
  struct Newest {
    Tails tasks;
    std::uint64_t used = 0;
  };
  Tails& NewestOf(const std::string& job);

  const std::size_t most_jobs_;
  // Touched by the offload's thread alone.
  LogStore store_;
  Offload& offload_;
  // What is kept of the `most_jobs_` jobs that were used last.
  std::map<std::string, Newest> newest_;
  std::uint64_t uses_ = 0;
  std::map<std::string, std::uint64_t> lost_;
  std::size_t waiting_ = 0;
};

}  // namespace muster::coordinator
