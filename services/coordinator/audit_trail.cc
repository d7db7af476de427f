#include "services/coordinator/audit_trail.h"

#include <utility>

#include "common/base/wall_time.h"
#include "common/base/words.h"

namespace muster::coordinator {
namespace {

// A caller chooses them: longer ones are cut, so that a line is small whatever is sent.
constexpr std::size_t kMostBytes = 200;

std::string Cut(std::string_view text) {
  if (text.size() <= kMostBytes) return std::string(text);
  return std::string(text.substr(0, kMostBytes)) + "...";
}

AuditEntry Entry(const std::string& who, std::string_view did, std::string_view what,
                 const Status& outcome) {
  return {.who = Cut(who),
          .did = std::string(did),
          .what = Cut(what),
          .refused = outcome.ok() ? "" : Cut(Message(outcome))};
}

}  // namespace

void AuditTrail::Change(const std::string& who, std::string_view did, std::string_view what,
                        const Status& outcome) {
  Write(Entry(who, did, what, outcome));
}

void AuditTrail::Look(const std::string& who, std::string_view did, std::string_view what,
                      const Status& outcome) {
  AuditEntry entry = Entry(who, did, what, outcome);
  // Names of what there is not are the caller's invention: one line stands for all of them.
  std::string key = fmt::format(
      "{}\n{}\n{}", entry.who, did,
      outcome.ok() ? "+" + entry.what : fmt::format("-{}", static_cast<int>(outcome.code())));
  {
    const MutexLock lock(mutex_);
    if (!HasRoom(key)) key = fmt::format("{}\n{}", entry.who, did);  // whatever it is about
    Seen& seen = looks_.try_emplace(key).first->second;
    seen.last = clock_.Now();
    const auto held = seen.limit.Ask(seen.last);
    if (!held) return;
    entry.again = *held;
  }
  Write(std::move(entry));
}

// Whether it is remembered, or can be. What nobody has looked at for a while makes room.
bool AuditTrail::HasRoom(const std::string& key) {
  if (looks_.size() < kMostRemembered || looks_.contains(key)) return true;
  const TimePoint now = clock_.Now();
  if (next_sweep_ && now < *next_sweep_) return false;
  next_sweep_ = now + kPause / 60;
  std::erase_if(looks_, [now](const auto& one) { return now - one.second.last >= kPause; });
  return looks_.size() < kMostRemembered;
}

// Never waits for the disk. Lines that it could not take are counted, and the next one that it
// takes is preceded by their number.
void AuditTrail::Write(AuditEntry entry) {
  {
    const MutexLock lock(shared_->mutex);
    if (shared_->waiting >= kMostWaiting) {
      ++shared_->lost;
      return;
    }
    ++shared_->waiting;
  }
  entry.time = UtcText(clock_.WallNow());
  // Where no thread can be had the lane runs the second function alone.
  const auto begun = std::make_shared<bool>(false);
  disks_.Run(
      "audit",
      [shared = shared_, entry = std::move(entry), begun] {
        *begun = true;
        if (const std::uint64_t lost = shared->lost.exchange(0); lost > 0) {
          shared->log.Write({.time = entry.time,
                             .who = "the coordinator",
                             .did = "lose",
                             .what = fmt::format(
                                 "{}: the disk did not keep up, or there was no thread to write on",
                                 Counted(lost, "line"))});
        }
        shared->log.Write(entry);
        shared->NoteWritten();
      },
      [shared = shared_, begun] {
        if (*begun) return;
        ++shared->lost;
        shared->NoteWritten();
      });
}

void AuditTrail::Shared::NoteWritten() {
  const MutexLock lock(mutex);
  --waiting;
  written.notify_all();
}

bool AuditTrail::Flush(Millis limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(shared_->mutex);
  while (shared_->waiting > 0) {
    if (shared_->written.wait_until(shared_->mutex, deadline)) continue;
    return shared_->waiting == 0;
  }
  return true;
}

}  // namespace muster::coordinator
