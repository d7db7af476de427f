#include "ps/server/program_table.h"

#include <cstring>
#include <utility>

#include "common/net/proof.h"

namespace muster::ps {
namespace {

// The number of a new space: no other one of this server, or of the server that was here before,
// has it.
SpaceId NewNumber() {
  const net::Nonce nonce = net::RandomNonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof(number));
  return SpaceId(number | 1);  // 0 means "not known"
}

}  // namespace

// The newest driver has the space. An older one is refused, and what it had is freed when a newer
// one opens; a space that was dropped is not opened again by the same driver.
Result<std::shared_ptr<ProgramSpace>> ProgramTable::Open(const std::string& job_id,
                                                         ProgramTime time, ApplyPool& pool) {
  std::shared_ptr<ProgramSpace> older;
  std::shared_ptr<ProgramSpace> opened;
  {
    const MutexLock lock(mutex_);
    if (time.epoch < epoch_) {
      return Aborted("job {}: epoch {} of the coordinator is over; it is at {}", job_id, time.epoch,
                     epoch_);
    }
    const auto [at, first] = jobs_.try_emplace(job_id);
    Entry& entry = at->second;
    if (time < entry.time) {
      return Aborted("job {}: driver {} of epoch {} has taken the place of driver {} of epoch {}",
                     job_id, entry.time.incarnation, entry.time.epoch, time.incarnation,
                     time.epoch);
    }
    if (!first && time == entry.time) {
      if (entry.space != nullptr) return entry.space;
      return Aborted("job {}: it was dropped here", job_id);
    }
    opened = std::make_shared<ProgramSpace>(job_id, time, NewNumber(), pool);
    older = std::exchange(entry.space, opened);
    entry.time = time;
  }
  // Frees its memory, which may take a while.
  if (older != nullptr) {
    older->Close(Aborted("job {}: driver {} of epoch {} has taken the place of this one", job_id,
                         time.incarnation, time.epoch));
  }
  return opened;
}

void ProgramTable::Drop(const std::string& job_id) {
  std::shared_ptr<ProgramSpace> dropped;
  {
    const MutexLock lock(mutex_);
    const auto found = jobs_.find(job_id);
    if (found != jobs_.end()) dropped = std::exchange(found->second.space, nullptr);
  }
  if (dropped != nullptr) dropped->Close(Aborted("job {}: it was dropped here", job_id));
}

void ProgramTable::BeginEpoch(Epoch epoch) {
  std::vector<std::shared_ptr<ProgramSpace>> over;
  {
    const MutexLock lock(mutex_);
    if (epoch <= epoch_) return;
    epoch_ = epoch;
    std::erase_if(jobs_, [&](auto& job) {
      if (job.second.time.epoch >= epoch) return false;
      if (job.second.space != nullptr) over.push_back(std::move(job.second.space));
      return true;
    });
  }
  for (const auto& space : over) {
    space->Close(Aborted("job {}: epoch {} of the coordinator is over; it is at {}",
                         space->job_id(), space->time().epoch, epoch));
  }
}

std::vector<ProgramUse> ProgramTable::uses() const {
  std::vector<std::shared_ptr<ProgramSpace>> spaces;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : jobs_) {
      if (entry.space != nullptr) spaces.push_back(entry.space);
    }
  }
  std::vector<ProgramUse> uses;
  for (const auto& space : spaces) {
    const ProgramSpace::Held held = space->held();
    uses.push_back({.job_id = space->job_id(),
                    .epoch = space->time().epoch,
                    .bytes = held.values + held.slots + held.staged,
                    .slot_bytes = held.slots,
                    .staged_bytes = held.staged});
  }
  return uses;
}

}  // namespace muster::ps
