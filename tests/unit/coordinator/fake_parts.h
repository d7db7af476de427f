// What a coordinator under test stands on: checkpoints and drivers that are names only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/checkpoints.h"
#include "coordinator/journal_writer.h"
#include "coordinator/world.h"

namespace muster::coordinator::testing {

// Checkpoints that are names only.
class FakeCheckpoints : public Checkpoints {
 public:
  explicit FakeCheckpoints(Scheduler& strand) : strand_(strand) {}

  void Look(const std::string&, const Claimant&, std::function<void(Status)> then) override {
    strand_.Post([then, status = look] { then(status); });
  }
  void FindNewest(const Search& search, std::function<void(Result<Found>)> then) override {
    searches.push_back(search);
    if (hangs) return;
    if (!unreadable.ok()) return strand_.Post([then, status = unreadable] { then(status); });
    const std::set<std::string>& refused = search.refused;
    Found found;
    found.taken_over = taken_over;
    for (auto one = steps.rbegin(); one != steps.rend(); ++one) {
      const std::string name = "step-" + std::to_string(*one);
      if (refused.contains(name)) continue;
      if (damaged.contains(*one)) {
        found.refused.push_back({name, *one, "shard-0.safetensors: chunk 3 differs"});
        continue;
      }
      found.directory = name;
      found.step = *one;
      found.job_id = saved_by;
      found.bytes = 8;
      found.buffers = buffers;
      break;
    }
    strand_.Post([found, then] { then(found); });
  }
  void SetAside(const std::string&, const Claimant&,
                std::function<void(Result<Aside>)> then) override {
    const Aside aside{
        .directory = steps.empty() ? "" : "set-aside-1", .removed = {}, .retention = {}};
    steps.clear();
    strand_.Post([aside, then] { then(aside); });
  }
  void Prepare(const std::string&, std::uint64_t step, const Claimant&,
               std::function<void(Result<std::string>)> then) override {
    if (hangs) return waiting.push_back([then, step] { then("step-" + std::to_string(step)); });
    if (!unwritable.ok()) return strand_.Post([then, status = unwritable] { then(status); });
    strand_.Post([step, then] { then("step-" + std::to_string(step)); });
  }
  void Commit(const std::string&, const std::string&, v1::CheckpointManifest manifest,
              std::uint32_t, const std::set<std::string>& not_counted,
              std::function<void(Result<Committed>)> then) override {
    if (commits_hang) return;
    uncounted = not_counted;
    manifests.push_back(manifest);
    steps.insert(manifest.step());
    Committed committed;
    committed.bytes = 8;
    committed.retention = retention;
    if (retention.ok()) {
      committed.kept.emplace();
      for (const std::uint64_t step : steps) {
        committed.kept->push_back("step-" + std::to_string(step));
      }
    }
    strand_.Post([committed, then] { then(committed); });
  }
  void WriteValues(const std::string&, v1::ModelValues values,
                   std::function<void(Result<std::vector<v1::SaveReport>>)> then) override {
    std::vector<v1::SaveReport> reports;
    reports.emplace_back().mutable_file()->set_name("buffers.safetensors");
    saved_values.push_back(std::move(values));
    strand_.Post([reports, then] { then(reports); });
  }
  void ReadManifest(const std::string&,
                    std::function<void(Result<v1::CheckpointManifest>)> then) override {
    then(manifests.back());
  }
  void Collect(const Sweep& sweep, std::function<void(Result<std::vector<Swept>>)> then) override {
    sweeps.push_back(sweep);
    if (hangs) return;
    strand_.Post([then, answer = swept] { then(answer); });
  }
  void ListRoots(const std::string&,
                 std::function<void(Result<std::vector<std::string>>)> then) override {
    if (lists_hang) {
      waiting.push_back([this, then] { then(roots); });
    } else {
      strand_.Post([then, answer = roots] { then(answer); });
    }
  }
  void Discard(const std::string& directory) override { discarded.push_back(directory); }
  void Release(const std::string& root, const v1::CheckpointOwner& mark) override {
    released.emplace_back(root, mark.job_id());
  }

  // What calls answer instead.
  Status look, unreadable, unwritable, retention;
  std::string taken_over;
  // What the last Commit() was told of damaged ones.
  std::set<std::string> uncounted;
  // Nothing answers; what Prepare() was asked waits.
  bool hangs = false;
  bool commits_hang = false;
  // What ListRoots() was asked waits, too.
  bool lists_hang = false;
  std::vector<std::function<void()>> waiting;
  std::vector<Search> searches;
  std::vector<Sweep> sweeps;
  Result<std::vector<Swept>> swept = std::vector<Swept>();
  Result<std::vector<std::string>> roots = std::vector<std::string>();
  std::vector<std::pair<std::string, std::string>> released;
  std::set<std::uint64_t> steps, damaged;
  std::string saved_by;  // the job of those that are found
  std::vector<v1::CheckpointManifest> manifests;
  std::vector<v1::ModelValues> saved_values;
  v1::TensorSet buffers;  // that every checkpoint holds
  std::vector<std::string> discarded;

 private:
  Scheduler& strand_;
};

class FakeDrivers : public Drivers {
 public:
  Status StartModel(const v1::ProgramStart& start) override {
    started.push_back(start.job_id());
    if (on_model) on_model(start);
    return Ok();
  }
  int Pid(const std::string&) const override { return 4'000 + static_cast<int>(started.size()); }
  void Stop(const std::string& job_id, Millis grace) override {
    (grace.count() > 0 ? stopped : killed).push_back(job_id);
  }
  Status StartProgram(const ProgramLaunch& launch) override {
    launched.push_back(launch);
    return Ok();
  }
  void Send(const std::string& job_id, const v1::ToProgram& message) override {
    sent.push_back(message);
    if (on_sent) on_sent(job_id, message);
  }

  std::vector<std::string> started, stopped, killed;
  // Programs' drivers, and what was sent to them.
  std::vector<ProgramLaunch> launched;
  std::vector<v1::ToProgram> sent;
  // Models' drivers begin, and hear.
  std::function<void(const v1::ProgramStart&)> on_model;
  std::function<void(const std::string& job_id, const v1::ToProgram&)> on_sent;
};

// The thread that writes the journal: what it is given is done at once, unless a test says
// otherwise, and never after a kill.
class FakeDisk : public Offload {
 public:
  explicit FakeDisk(Scheduler& strand) : strand_(strand) {}
  void Run(Function work, Function then) override {
    queue_.push_back({std::move(work), std::move(then)});
    if (!hangs) Post();
  }
  // It answers again.
  void Go() {
    hangs = false;
    Post();
  }
  // The process is killed: what has not begun never happens, and nobody hears of what is done.
  void Kill() {
    queue_.clear();
    mute_after.reset();
    hangs = false;
  }

  bool hangs = false;
  // After so many pieces of work rows still get to the disk, and nobody hears of it.
  std::optional<int> mute_after;

 private:
  void Post() {
    strand_.Post([this] {
      if (hangs || queue_.empty()) return;
      auto [work, then] = std::move(queue_.front());
      queue_.pop_front();
      work();
      if (!mute_after || (*mute_after)-- > 0) then();
      if (!queue_.empty()) Post();
    });
  }

  Scheduler& strand_;
  std::deque<std::pair<Function, Function>> queue_;
};

// A journal whose disk may be full.
class FlakyJournal : public Journal {
 public:
  FlakyJournal(std::unique_ptr<Journal> real, const bool& full)
      : real_(std::move(real)), full_(full) {}
  Epoch epoch() const override { return real_->epoch(); }
  std::string cluster_id() const override { return real_->cluster_id(); }
  Result<std::vector<StoredJob>> LoadJobs() override { return real_->LoadJobs(); }
  Result<std::vector<v1::Event>> LoadEvents(const std::string& job_id) const override {
    return real_->LoadEvents(job_id);
  }
  Status DeleteJob(const std::string& job_id) override {
    return full_ ? Full() : real_->DeleteJob(job_id);
  }
  Status SaveJob(const v1::JobRecord& record) override {
    return full_ ? Full() : real_->SaveJob(record);
  }
  Status AddEvent(const std::string& job_id, const v1::Event& event) override {
    return full_ ? Full() : real_->AddEvent(job_id, event);
  }
  Status SaveCheckpoint(const std::string& job_id, const v1::CheckpointInfo& info) override {
    return full_ ? Full() : real_->SaveCheckpoint(job_id, info);
  }
  Status DeleteCheckpoint(const std::string& job_id, std::uint64_t step) override {
    return full_ ? Full() : real_->DeleteCheckpoint(job_id, step);
  }
  Result<std::vector<v1::TakenOut>> LoadTakenOut() override { return real_->LoadTakenOut(); }
  Status SaveTakenOut(const v1::TakenOut& record) override {
    return full_ ? Full() : real_->SaveTakenOut(record);
  }
  Status DeleteTakenOut(const v1::Task& task) override {
    return full_ ? Full() : real_->DeleteTakenOut(task);
  }

 private:
  static Status Full() { return ResourceExhausted("database or disk is full"); }
  const std::unique_ptr<Journal> real_;
  const bool& full_;
};

// What a database would hold after the coordinator that wrote it is gone. Events are counted alone.
struct Rows {
  std::uint64_t epoch = 0;
  std::map<std::string, v1::JobRecord> jobs;
  std::map<std::string, std::uint64_t> last_event;
};

class MemoryJournal : public Journal {
 public:
  explicit MemoryJournal(Rows& rows) : rows_(rows) { ++rows_.epoch; }
  Epoch epoch() const override { return Epoch(rows_.epoch); }
  std::string cluster_id() const override { return "memory"; }
  Result<std::vector<StoredJob>> LoadJobs() override {
    std::vector<StoredJob> jobs;
    for (const auto& [id, record] : rows_.jobs) {
      StoredJob& job = jobs.emplace_back();
      job.record = record;
      job.last_event = rows_.last_event[id];
    }
    return jobs;
  }
  Result<std::vector<v1::Event>> LoadEvents(const std::string&) const override {
    return std::vector<v1::Event>();
  }
  Status DeleteJob(const std::string& job_id) override {
    rows_.jobs.erase(job_id);
    return Ok();
  }
  Status SaveJob(const v1::JobRecord& record) override {
    rows_.jobs[record.job().id()] = record;
    return Ok();
  }
  Status AddEvent(const std::string& job_id, const v1::Event& event) override {
    rows_.last_event[job_id] = event.sequence();
    return Ok();
  }
  Status SaveCheckpoint(const std::string&, const v1::CheckpointInfo&) override { return Ok(); }
  Status DeleteCheckpoint(const std::string&, std::uint64_t) override { return Ok(); }
  Result<std::vector<v1::TakenOut>> LoadTakenOut() override { return std::vector<v1::TakenOut>(); }
  Status SaveTakenOut(const v1::TakenOut&) override { return Ok(); }
  Status DeleteTakenOut(const v1::Task&) override { return Ok(); }

 private:
  Rows& rows_;
};

}  // namespace muster::coordinator::testing
