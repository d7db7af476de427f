#include "coordinator/journal_writer.h"

#include <utility>

namespace muster::coordinator {
namespace {

// Rows of one piece of work: their answers come together.
constexpr std::size_t kMostAtOnce = 64;

}  // namespace

JournalWriter::JournalWriter(Journal& journal, Offload& offload, Scheduler& strand, Millis slow)
    : journal_(journal), offload_(offload), strand_(strand), slow_(slow) {}

JournalWriter::~JournalWriter() { (void)strand_.Cancel(slow_timer_); }

void JournalWriter::SaveJob(const v1::JobRecord& record, Done done) {
  Row row;
  row.job = record.job().id();
  row.bytes = record.ByteSizeLong();
  row.is_job = true;
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
  row.bytes = info.ByteSizeLong();
  row.write = [job_id, info](Journal& journal) { return journal.SaveCheckpoint(job_id, info); };
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::DeleteCheckpoint(const std::string& job_id, std::uint64_t step) {
  Row row;
  row.job = job_id;
  row.write = [job_id, step](Journal& journal) { return journal.DeleteCheckpoint(job_id, step); };
  if (!Refuse(row)) Add(std::move(row));
}

void JournalWriter::DeleteJob(const std::string& job_id) {
  Row row;
  row.job = job_id;
  failing_.erase(job_id);
  row.write = [job_id](Journal& journal) { return journal.DeleteJob(job_id); };
  Add(std::move(row));
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
  if (waiting_.empty() && writing_.empty()) return then();
  idle_.push_back(std::move(then));
}

void JournalWriter::Abandon() {
  waiting_.clear();
  waiting_bytes_ = 0;
  for (Writing& row : writing_) row.done.clear();
  idle_.clear();
}

// Nothing of the job was given after it; where rows are many, their number counts more than that.
JournalWriter::Row* JournalWriter::Replaceable(const std::string& job) {
  const bool crowded = waiting_bytes_ > kMostWaiting / 2;
  for (auto row = waiting_.rbegin(); row != waiting_.rend(); ++row) {
    if (row->job != job) continue;
    if (row->is_job) return &*row;
    if (!crowded) return nullptr;
  }
  return nullptr;
}

bool JournalWriter::Refuse(const Row& row) {
  if (waiting_bytes_ + row.bytes <= kMostWaiting) return false;
  const Status full = ResourceExhausted(
      "journal: {} rows wait for the disk, which does not answer: no room for more",
      waiting_.size() + writing_.size());
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
  struct Work {
    std::vector<std::function<Status(Journal&)>> writes;
    std::vector<Status> statuses;
  };
  auto work = std::make_shared<Work>();
  while (!waiting_.empty() && writing_.size() < kMostAtOnce) {
    Row& row = waiting_.front();
    waiting_bytes_ -= row.bytes;
    work->writes.push_back(std::move(row.write));
    writing_.push_back({row.job, row.is_job, std::move(row.done)});
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
      [weak = std::weak_ptr(self_), work] {
        if (const auto self = weak.lock()) (*self)->OnWritten(work->statuses);
      });
}

// Whoever hears of it may ask for more, or end this.
void JournalWriter::OnWritten(const std::vector<Status>& statuses) {
  (void)strand_.Cancel(slow_timer_);
  const auto written = std::exchange(writing_, {});
  for (std::size_t i = 0; i < written.size(); ++i) {
    // Other rows are not tried again: who gave them was told.
    if (written[i].is_job) NoteJob(written[i].job, statuses[i]);
  }
  WriteNext();
  const std::weak_ptr<JournalWriter*> weak = self_;
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (const Done& done : written[i].done) done(statuses[i]);
  }
  if (weak.expired() || !writing_.empty() || !waiting_.empty()) return;
  for (const auto& then : std::exchange(idle_, {})) then();
}

void JournalWriter::NoteJob(const std::string& job, const Status& status) {
  if (status.ok()) {
    failing_.erase(job);
    return;
  }
  if (failing_.empty()) failing_since_ = strand_.Now();
  failing_.insert(job);
  failure_ = status;
}

std::optional<JournalWriter::Trouble> JournalWriter::trouble() const {
  const bool slow = !writing_.empty() && strand_.Now() - writing_since_ >= slow_;
  if (failing_.empty() && !slow) return std::nullopt;
  Trouble trouble{.error = failing_.empty() ? Ok() : failure_,
                  .since = failing_.empty() ? writing_since_ : failing_since_,
                  .rows = writing_.size() + waiting_.size(),
                  .jobs = failing_};
  std::set<std::string> waiting;
  for (const Writing& row : writing_) waiting.insert(row.job);
  for (const Row& row : waiting_) waiting.insert(row.job);
  for (const std::string& job : failing_) trouble.rows += waiting.contains(job) ? 0 : 1;
  waiting.erase("");
  trouble.jobs.merge(waiting);
  return trouble;
}

}  // namespace muster::coordinator
