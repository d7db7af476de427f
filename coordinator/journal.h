// What the coordinator must know again after a restart: its epoch, jobs, events, checkpoints, and
// which tasks are taken out.
//
// Every call is one durable transaction: when it returns OK, the rows survive kill -9 and a power
// cut. Assignments and heartbeats are not journaled.
// Threading: not thread-safe; one caller at a time, whichever thread. Every call may block for as
// long as the disk does: behind a JournalWriter it blocks nobody else.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "muster/v1/journal.pb.h"

namespace muster::coordinator {

struct StoredJob {
  v1::JobRecord record;
  std::vector<v1::Event> events;                // oldest first; none of a job that has ended
  std::vector<v1::CheckpointInfo> checkpoints;  // oldest first
  std::uint64_t last_event = 0;  // sequence of the newest, also of one that has ended
};

class Journal {
 public:
  virtual ~Journal() = default;
  // Raised by one, durably, when the journal was opened.
  virtual Epoch epoch() const = 0;
  // Random, made with the database: tells this cluster from others.
  virtual std::string cluster_id() const = 0;
  virtual Result<std::vector<StoredJob>> LoadJobs() = 0;
  // All events of one job, oldest first.
  virtual Result<std::vector<v1::Event>> LoadEvents(const std::string& job_id) const = 0;
  // All its rows.
  virtual Status DeleteJob(const std::string& job_id) = 0;
  virtual Status SaveJob(const v1::JobRecord& record) = 0;
  // Keeps kMaxEvents of each job: of more the oldest that is routine goes, but for the newest
  // kNewestEvents, then the oldest.
  virtual Status AddEvent(const std::string& job_id, const v1::Event& event) = 0;
  // Replaces the row of the same step.
  virtual Status SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info) = 0;
  virtual Status DeleteCheckpoint(const std::string& job_id, std::uint64_t step) = 0;
  // Tasks that operators have taken out; replaces the task's row.
  virtual Result<std::vector<v1::TakenOut>> LoadTakenOut() = 0;
  virtual Status SaveTakenOut(const v1::TakenOut& record) = 0;
  virtual Status DeleteTakenOut(const v1::Task& task) = 0;

  static constexpr std::size_t kMaxEvents = 1'000;
  static constexpr std::size_t kNewestEvents = 100;
  // Reasons that are told again and again while all is well: of a fast job they would push out
  // what was lost and what failed.
  static constexpr std::array<std::string_view, 2> kRoutine{"CHECKPOINT_SAVED", "EVALUATED"};
};

// "NFS", "SMB" and so on, which `folder` is on; empty: a file system of this host.
std::string NetworkFileSystemOf(const std::string& folder);

// <state_directory>/coordinator.db, made if missing (directory 0700). WAL, synchronous=FULL;
// on a network file system a rollback journal in place of the WAL.
//   kFailedPrecondition: another coordinator holds the directory (named by its pid); of a later
//   write: the database is in its place no more.
//   kDataLoss: the database is damaged, or was written by a newer version.
Result<std::unique_ptr<Journal>> OpenSqliteJournal(const std::string& state_directory);

}  // namespace muster::coordinator
