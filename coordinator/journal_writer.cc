#include "coordinator/journal_writer.h"

#include <algorithm>
#include <utility>

#include "common/base/words.h"

namespace muster::coordinator {
namespace {

// Rows of one piece of work: their answers come together.
constexpr std::size_t kMostAtOnce = 64;

}  // namespace

JournalWriter::JournalWriter(Journal& journal, Offload& offload, Scheduler& strand, Millis slow)
    : journal_(journal), offload_(offload), strand_(strand), slow_(slow) {}

JournalWriter::~JournalWriter() {
  (void)strand_.Cancel(slow_timer_);
  (void)strand_.Cancel(again_timer_);
}

void JournalWriter::SaveJob(const v1::JobRecord& record, Done done) {
  Row row;
  row.job = record.job().id();
  row.bytes = record.ByteSizeLong();
  row.kind = Kind::kJob;
  row.write = [record](Journal& journal) { return journal.SaveJob(record); };
  if (Row* const old = Replaceable(row.job)) {
    waiting_bytes_ += row.bytes - old->bytes;
    old->bytes = row.bytes;
    old->write = std::move(row.write);
    if (done) old->done.push_back(std::move(done));
    return;
  }
  if (done) row.done.push_back(std::move(done));
  Add(std::move(row));
}

void JournalWriter::AddEvent(const std::string& job_id, v1::Event event, Done done) {
  Row row;
  row.job = job_id;
  row.kind = Kind::kEvent;
  row.bytes = event.ByteSizeLong();
  row.write = [job_id, event = std::move(event)](Journal& journal) {
    return journal.AddEvent(job_id, event);
  };
  if (done) row.done.push_back(std::move(done));
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info) {
  Row row;
  row.job = job_id;
  row.kind = Kind::kCheckpoint;
  row.step = info.step();
  row.bytes = info.ByteSizeLong();
  row.write = [job_id, info](Journal& journal) { return journal.SaveCheckpoint(job_id, info); };
  DropKept(row);
  Add(std::move(row));
}

void JournalWriter::DeleteCheckpoint(const std::string& job_id, std::uint64_t step) {
  Row row;
  row.job = job_id;
  row.kind = Kind::kCheckpoint;
  row.step = step;
  row.write = [job_id, step](Journal& journal) { return journal.DeleteCheckpoint(job_id, step); };
  DropKept(row);
  Add(std::move(row));
}

void JournalWriter::DeleteJob(const std::string& job_id) {
  Row row;
  row.job = job_id;
  row.kind = Kind::kForget;
  failing_.erase(job_id);
  row.write = [job_id](Journal& journal) { return journal.DeleteJob(job_id); };
  DropKept(row);
  Add(std::move(row));
}

void JournalWriter::Forget(const std::string& job_id) {
  failing_.erase(job_id);
  if (!Failing() && waiting_.empty() && writing_.empty()) refused_ = 0;
}

void JournalWriter::SaveTakenOut(const v1::TakenOut& record, Done done) {
  Row row;
  row.bytes = record.ByteSizeLong();
  row.write = [record](Journal& journal) { return journal.SaveTakenOut(record); };
  row.done.push_back(std::move(done));
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::DeleteTakenOut(const v1::Task& task, Done done) {
  Row row;
  row.write = [task](Journal& journal) { return journal.DeleteTakenOut(task); };
  row.done.push_back(std::move(done));
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::LoadEvents(const std::string& job_id,
                               std::function<void(Result<std::vector<v1::Event>>)> then) {
  auto events = std::make_shared<Result<std::vector<v1::Event>>>(std::vector<v1::Event>());
  Row row;
  row.job = job_id;
  row.write = [job_id, events](Journal& journal) {
    *events = journal.LoadEvents(job_id);
    return Ok();
  };
  row.done.push_back([events, then = std::move(then)](const Status& status) {
    then(status.ok() ? std::move(*events) : Result<std::vector<v1::Event>>(status));
  });
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::WhenIdle(std::function<void()> then) {
  TryAgain();
  if (waiting_.empty() && writing_.empty()) return then();
  idle_.push_back(std::move(then));
}

void JournalWriter::Abandon() {
  waiting_.clear();
  kept_.clear();
  waiting_bytes_ = 0;
  for (Row& row : writing_) row.done.clear();
  idle_.clear();
}

// Nothing of the job was given after it; where rows are many, their number counts more than that.
JournalWriter::Row* JournalWriter::Replaceable(const std::string& job) {
  const bool crowded = waiting_bytes_ > kMostWaiting / 2;
  for (auto row = waiting_.rbegin(); row != waiting_.rend(); ++row) {
    if (row->job != job) continue;
    if (row->kind == Kind::kJob) return &*row;
    if (!crowded) return nullptr;
  }
  return nullptr;
}

bool JournalWriter::Refuse(const Row& row) {
  if (waiting_bytes_ + row.bytes <= kMostWaiting) return false;
  ++refused_;
  const Status full =
      ResourceExhausted("journal: {} rows wait for the disk, which {}: no room for more",
                        waiting_.size() + writing_.size() + kept_.size(),
                        Failing() ? "cannot be written" : "does not answer");
  for (const Done& done : row.done) {
    strand_.Post([done, full] { done(full); });
  }
  return true;
}

void JournalWriter::Add(Row row) {
  waiting_bytes_ += row.bytes;
  waiting_.push_back(std::move(row));
  WriteNext();
}

// One piece of work at a time; what comes meanwhile waits here, where newer rows can replace it.
void JournalWriter::WriteNext() {
  if (!writing_.empty() || waiting_.empty()) return;
  auto work = std::make_shared<Work>();
  while (!waiting_.empty() && writing_.size() < kMostAtOnce) {
    Row& row = waiting_.front();
    waiting_bytes_ -= row.bytes;
    work->writes.push_back(std::move(row.write));
    writing_.push_back(std::move(row));
    waiting_.pop_front();
  }
  writing_since_ = strand_.Now();
  slow_timer_ = strand_.RunAfter(slow_, [this] {
    if (on_slow) on_slow(slow_, writing_.size() + waiting_.size());
  });
  offload_.Run(
      [&journal = journal_, work] {
        for (const auto& write : work->writes) work->statuses.push_back(write(journal));
      },
      [this, here = lifeline_.Watch(), work] {
        if (here()) OnWritten(*work);
      });
}

// Whoever hears of it may ask for more, or end this.
void JournalWriter::OnWritten(Work& work) {
  (void)strand_.Cancel(slow_timer_);
  const std::vector<Status>& statuses = work.statuses;
  if (!Failing()) failing_since_ = strand_.Now();
  std::vector<Row> written = std::exchange(writing_, {});
  bool failed = false;
  for (std::size_t i = 0; i < written.size(); ++i) {
    Row& row = written[i];
    if (row.kind == Kind::kJob) NoteJob(row.job, statuses[i]);
    if (statuses[i].ok()) continue;
    failed = true;
    // Who gave these is told, and tries again or not.
    if (row.kind == Kind::kJob || row.kind == Kind::kOther) continue;
    failure_ = statuses[i];
    const auto replaces = [&row](const Row& newer) { return Replaces(newer, row); };
    if (std::any_of(written.begin() + static_cast<std::ptrdiff_t>(i) + 1, written.end(),
                    replaces) ||
        std::ranges::any_of(waiting_, replaces)) {
      continue;
    }
    row.failed = true;
    row.write = std::move(work.writes[i]);
    waiting_bytes_ += row.bytes;
    kept_.push_back(std::move(row));
    row.done.clear();
  }
  if (!failed) {
    TryAgain();
  } else if (!kept_.empty() && again_timer_ == 0) {
    again_timer_ = strand_.RunAfter(kTryAgain, [this] {
      again_timer_ = 0;
      TryAgain();
    });
  }
  WriteNext();
  if (!Failing() && waiting_.empty() && writing_.empty()) refused_ = 0;
  const auto here = lifeline_.Watch();
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const Done& done : written[i].done) done(statuses[i]);
  }
  if (!here() || !writing_.empty() || !waiting_.empty()) return;
  for (const auto& then : std::exchange(idle_, {})) then();
}

// Among what is tried again: everything of a job that is forgotten, and a checkpoint's older row.
bool JournalWriter::Replaces(const Row& newer, const Row& older) {
  if (newer.job != older.job) return false;
  return newer.kind == Kind::kForget ||
         (newer.kind == Kind::kCheckpoint && older.kind == Kind::kCheckpoint &&
          newer.step == older.step);
}

void JournalWriter::DropKept(const Row& newer) {
  std::erase_if(kept_, [&](const Row& row) {
    const bool gone = Replaces(newer, row);
    if (gone) waiting_bytes_ -= row.bytes;
    return gone;
  });
}

// Not all of them: on a disk that is still full each costs a try.
void JournalWriter::TryAgain() {
  for (std::size_t left = kMostAtOnce; left > 0 && !kept_.empty(); --left) {
    waiting_.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
  WriteNext();
}

bool JournalWriter::Failing() const {
  const auto failed = [](const Row& row) { return row.failed; };
  return !failing_.empty() || !kept_.empty() || std::ranges::any_of(writing_, failed) ||
         std::ranges::any_of(waiting_, failed);
}

void JournalWriter::NoteJob(const std::string& job, const Status& status) {
  if (status.ok()) {
    failing_.erase(job);
    return;
  }
  failing_.insert(job);
  failure_ = status;
}

std::optional<JournalWriter::Trouble> JournalWriter::trouble() const {
  const bool slow = !writing_.empty() && strand_.Now() - writing_since_ >= slow_;
  const bool failing = Failing();
  if (!failing && !slow) return std::nullopt;
  Trouble trouble{.error = failing ? failure_ : Ok(),
                  .since = failing ? failing_since_ : writing_since_,
                  .rows = writing_.size() + waiting_.size() + kept_.size(),
                  .jobs = failing_};
  if (refused_ > 0) {
    trouble.error = ResourceExhausted(
        "{}; {} had no room to wait and {} lost when the coordinator is restarted",
        failing ? Message(failure_) : "it does not answer", Counted(refused_, "row"),
        Agreeing(refused_, "is", "are"));
  }
  std::set<std::string> waiting;
  for (const Row& row : writing_) waiting.insert(row.job);
  for (const Row& row : waiting_) waiting.insert(row.job);
  for (const std::string& job : failing_) trouble.rows += waiting.contains(job) ? 0 : 1;
  for (const Row& row : kept_) waiting.insert(row.job);
  waiting.erase("");
  trouble.jobs.merge(waiting);
  return trouble;
}

}  // namespace muster::coordinator
