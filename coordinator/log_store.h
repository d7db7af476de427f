// The output of every task of every job, in bounded files, read from a cursor on.
//
// A line's cursor is its number within the job, from 1; it never repeats and survives a restart, so
// a reader goes on where it stopped. Files: <directory>/<job>/<first cursor>.log, one line each
// ("time_us<TAB>task<TAB>text"; behind a time that another clock says, by how much later, "+N" or
// "-N", the line came); the oldest file of a job goes when it has too many. The newest one
// is gone on with until it is full, also after a restart. What there is and cannot be read now is
// an error, never a log that begins anew or has a gap.
//
// Threading: not thread-safe; one strand.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "muster/v1/jobs.pb.h"

namespace muster::coordinator {

class LogStore {
 public:
  // So many of the newest lines of each task are kept in memory.
  static constexpr std::size_t kNewest = 20;

  struct Options {
    std::string directory;
    std::uint64_t segment_bytes = 4 << 20;
    std::size_t segments_per_job = 16;
    // Longer lines are cut, with a note.
    std::size_t line_bytes = 16 << 10;
    // Jobs whose files are open and indexed in memory; another one's are read again when needed.
    std::size_t open_jobs = 64;
    // Files that could not be read are read again after this time: it may be a lot.
    std::chrono::milliseconds reread_after{1'000};
  };
  struct Query {
    // Empty: all tasks.
    std::string task = {};
    // Lines after this one; 0: from the start.
    std::uint64_t cursor = 0;
    // Only the last n of what matches; 0: all.
    std::uint32_t tail = 0;
    // By the clock of this host: one whose clock is more than a minute off counts by when its lines
    // came.
    std::int64_t since_us = 0;
    // At most so many in one reply (tail aside).
    std::size_t limit = 1'000;
  };
  struct Page {
    std::vector<v1::LogRecord> records;
    // Pass it on to get what follows, also when no record matched.
    std::uint64_t cursor = 0;
    // Nothing is left after `cursor` at this moment.
    bool end = true;
  };

  explicit LogStore(Options options);
  ~LogStore();

  // As it is stored when it is longer than `line_bytes`: cut, with a note. Any thread.
  std::string Cut(const std::string& text) const;
  // kResourceExhausted: the disk is full, or there are too many open files; the lines are lost,
  // which a later line says. `came_us`: when they came, by this host's clock; 0: it is theirs, too.
  Status Append(const std::string& job, const std::string& task,
                const google::protobuf::RepeatedPtrField<v1::LogLine>& lines,
                std::int64_t came_us = 0);
  // An unknown job has no lines. Errors are the disk's: asked again, it goes on from the same
  // cursor.
  Result<Page> Read(const std::string& job, const Query& query);
  // The newest lines of each task, oldest first.
  const std::map<std::string, std::deque<std::string>>& Newest(const std::string& job);
  // So many lines never came here; the next one says it.
  void NoteLost(const std::string& job, std::uint64_t lines);
  // Its files are deleted.
  void Forget(const std::string& job);

 private:
  struct Segment;
  struct JobLog;
  JobLog& Open(const std::string& job);
  // Load(), unless it has failed just now.
  void Reread(JobLog& log);
  // Which files there are, and what is in them.
  Status Load(JobLog& log);
  // The one that was not used for the longest time is closed; one that is only read goes first.
  void CloseOne();
  // The newest file is open and has room.
  Status OpenToWrite(JobLog& log);
  // The newest file is opened to go on in it.
  Result<bool> Reopen(JobLog& log);
  Status StartSegment(JobLog& log);
  Status Write(JobLog& log, const std::string& task, const std::string& time, std::string text);

  const Options options_;
  std::map<std::string, std::unique_ptr<JobLog>> jobs_;
  std::uint64_t uses_ = 0;
};

}  // namespace muster::coordinator
