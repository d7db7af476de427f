#include "coordinator/journal_writer.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/unit/coordinator/fake_parts.h"

namespace muster::coordinator {
namespace {

using testing::FakeDisk;

// Remembers what was written, in words, and fails what a test names.
class RecordingJournal : public Journal {
 public:
  Epoch epoch() const override { return Epoch(1); }
  std::string cluster_id() const override { return "c"; }
  Result<std::vector<StoredJob>> LoadJobs() override { return std::vector<StoredJob>(); }
  Result<std::vector<v1::Event>> LoadEvents(const std::string& job) const override {
    (void)Note("load " + job);
    return std::vector<v1::Event>(3);
  }
  Status DeleteJob(const std::string& job) override { return Note("delete " + job); }
  Status SaveJob(const v1::JobRecord& record) override {
    return Note(fmt::format("job {} at {}", record.job().id(), record.steps_done()));
  }
  Status AddEvent(const std::string& job, const v1::Event& event) override {
    return Note(fmt::format("event {} of {}", event.sequence(), job));
  }
  Status SaveCheckpoint(const std::string& job, const v1::CheckpointInfo& info) override {
    return Note(fmt::format("checkpoint {} of {}", info.step(), job));
  }
  Status DeleteCheckpoint(const std::string& job, std::uint64_t step) override {
    return Note(fmt::format("no checkpoint {} of {}", step, job));
  }
  Result<std::vector<v1::TakenOut>> LoadTakenOut() override { return std::vector<v1::TakenOut>(); }
  Status SaveTakenOut(const v1::TakenOut& record) override {
    return Note("out: " + record.task().type());
  }
  Status DeleteTakenOut(const v1::Task& task) override { return Note("in: " + task.type()); }

  mutable std::vector<std::string> log;
  std::string fails;
  bool full = false;

 private:
  Status Note(const std::string& text) const {
    log.push_back(text);
    return full || text == fails ? ResourceExhausted("no room") : Ok();
  }
};

struct WriterTest {
  FakeScheduler time;
  RecordingJournal journal;
  FakeDisk disk{time};
  JournalWriter writer{journal, disk, time, Millis(5'000)};
  std::vector<std::string> heard;

  void Job(const std::string& id, std::uint64_t steps) {
    v1::JobRecord record;
    record.mutable_job()->set_id(id);
    record.set_steps_done(steps);
    writer.SaveJob(record, [this, id, steps](const Status& status) {
      heard.push_back(fmt::format("{} {} {}", id, steps, CodeName(status.code())));
    });
  }
  void Event(const std::string& id, std::uint64_t sequence, std::size_t bytes = 0) {
    v1::Event event;
    event.set_sequence(sequence);
    event.set_message(std::string(bytes, 'x'));
    writer.AddEvent(id, event, [this, sequence](const Status& status) {
      heard.push_back(fmt::format("event {} {}", sequence, CodeName(status.code())));
    });
  }
  void Checkpoint(const std::string& id, std::uint64_t step) {
    v1::CheckpointInfo info;
    info.set_step(step);
    writer.SaveCheckpoint(id, info);
  }
};

TEST_CASE_METHOD(WriterTest, "Rows are written, and told, in the order in which they were given",
                 "[coordinator][unit]") {
  Event("a", 1);
  Job("a", 10);
  Job("b", 20);
  Event("a", 2);
  Checkpoint("a", 10);
  writer.DeleteCheckpoint("a", 5);
  writer.DeleteJob("b");
  CHECK(heard.empty());  // never inside the call

  time.RunReady();

  CHECK(journal.log == std::vector<std::string>{"event 1 of a", "job a at 10", "job b at 20",
                                                "event 2 of a", "checkpoint 10 of a",
                                                "no checkpoint 5 of a", "delete b"});
  CHECK(heard == std::vector<std::string>{"event 1 OK", "a 10 OK", "b 20 OK", "event 2 OK"});
}

TEST_CASE_METHOD(WriterTest,
                 "A row that cannot be written is told to whoever gave it, and no other",
                 "[coordinator][unit]") {
  journal.fails = "job b at 20";
  Job("a", 10);
  Job("b", 20);
  Job("c", 30);
  time.RunReady();

  CHECK(heard == std::vector<std::string>{"a 10 OK", "b 20 RESOURCE_EXHAUSTED", "c 30 OK"});
}

TEST_CASE_METHOD(WriterTest, "On a disk that hangs newer rows of a job replace those that wait",
                 "[coordinator][unit]") {
  disk.hangs = true;
  Job("a", 1);  // on its way to the disk
  for (std::uint64_t step = 2; step <= 1'000; ++step) {
    Job("a", step);
    if (step % 2 == 0) Job("b", step);
  }
  Event("a", 1);
  Job("a", 1'001);  // not before the event
  time.RunReady();
  CHECK(journal.log.empty());
  CHECK(heard.empty());

  disk.Go();
  time.RunReady();

  CHECK(journal.log == std::vector<std::string>{"job a at 1", "job a at 1000", "job b at 1000",
                                                "event 1 of a", "job a at 1001"});
  CHECK(heard.size() == 1'000 + 500 + 1 + 1);
}

TEST_CASE_METHOD(WriterTest,
                 "What waits for a disk is bounded, and a job's own row has always room",
                 "[coordinator][unit]") {
  constexpr std::size_t kBytes = 1 << 20;
  disk.hangs = true;
  Job("a", 1);
  Job("a", 2);
  for (std::uint64_t event = 1; event <= 100; ++event) Event("a", event, kBytes);
  Job("a", 3);
  time.RunReady();

  const std::size_t refused = heard.size();
  CHECK(refused >= 100 - JournalWriter::kMostWaiting / kBytes);
  CHECK(refused < 100);
  CHECK(heard.back() == "event 100 RESOURCE_EXHAUSTED");

  disk.Go();
  time.RunReady();
  CHECK(journal.log.size() == 2 + 100 - refused);
  CHECK(std::find(journal.log.begin(), journal.log.end(), "job a at 3") != journal.log.end());
  CHECK(heard.size() == 3 + 100);
}

TEST_CASE_METHOD(WriterTest, "A disk that does not answer is told once, with how many rows wait",
                 "[coordinator][unit]") {
  std::vector<std::size_t> slow;
  writer.on_slow = [&](Millis waited, std::size_t rows) {
    CHECK(waited == Millis(5'000));
    slow.push_back(rows);
  };
  Job("a", 1);
  time.Advance(Millis(60'000));
  CHECK(slow.empty());  // it has answered

  disk.hangs = true;
  Job("a", 2);
  Event("a", 1);
  time.Advance(Millis(60'000));
  CHECK(slow == std::vector<std::size_t>{2});
}

TEST_CASE_METHOD(WriterTest, "Whoever waits until everything is written waits for all of it",
                 "[coordinator][unit]") {
  bool idle = false;
  writer.WhenIdle([&] { idle = true; });
  CHECK(idle);  // nothing waits

  idle = false;
  disk.hangs = true;
  for (std::uint64_t event = 1; event <= 200; ++event) Event("a", event);
  writer.WhenIdle([&] { idle = true; });
  time.Advance(Millis(60'000));
  CHECK_FALSE(idle);

  disk.Go();
  time.RunReady();
  CHECK(idle);
  CHECK(journal.log.size() == 200);
}

TEST_CASE_METHOD(WriterTest, "What was written before is in what is read", "[coordinator][unit]") {
  std::size_t read = 0;
  Event("a", 1);
  writer.LoadEvents("a", [&](Result<std::vector<v1::Event>> events) { read = events->size(); });
  time.RunReady();

  CHECK(read == 3);
  CHECK(journal.log == std::vector<std::string>{"event 1 of a", "load a"});
}

TEST_CASE_METHOD(WriterTest, "What keeps rows from the disk is told until they are written",
                 "[coordinator][unit]") {
  CHECK_FALSE(writer.trouble());
  journal.fails = "job a at 10";
  Job("a", 10);
  Job("b", 10);
  time.RunReady();
  time.Advance(Millis(3'000));
  REQUIRE(writer.trouble());
  CHECK(Message(writer.trouble()->error) == "no room");
  CHECK(writer.trouble()->rows == 1);
  CHECK(writer.trouble()->jobs == std::set<std::string>{"a"});
  CHECK(time.Now() - writer.trouble()->since == Millis(3'000));

  Job("a", 20);
  time.RunReady();
  CHECK_FALSE(writer.trouble());
}

TEST_CASE_METHOD(WriterTest, "Events and checkpoints that a full disk refuses are written later",
                 "[coordinator][unit]") {
  journal.full = true;
  Event("a", 1);
  Checkpoint("b", 10);
  time.RunReady();
  Event("a", 2);
  time.Advance(Millis(10'000));
  CHECK(heard.empty());
  REQUIRE(writer.trouble());
  CHECK(Message(writer.trouble()->error) == "no room");
  CHECK(writer.trouble()->rows == 3);
  CHECK(writer.trouble()->jobs == std::set<std::string>{"a", "b"});
  CHECK(time.Now() - writer.trouble()->since == Millis(10'000));

  journal.full = false;
  journal.log.clear();
  time.Advance(Millis(2'000));

  std::ranges::sort(journal.log);
  CHECK(journal.log ==
        std::vector<std::string>{"checkpoint 10 of b", "event 1 of a", "event 2 of a"});
  CHECK(heard.size() == 2);
  CHECK_FALSE(writer.trouble());
}

TEST_CASE_METHOD(WriterTest, "What a newer row replaces is not tried again",
                 "[coordinator][unit]") {
  const auto give = [this] {
    Checkpoint("a", 10);
    Event("b", 1);
    Checkpoint("a", 20);
  };
  journal.full = true;
  SECTION("it is given after the other has failed") {
    give();
    time.RunReady();
  }
  SECTION("it is given while the other is on its way") { give(); }
  SECTION("it is given with the other") {
    Job("c", 1);
    give();
  }
  writer.DeleteCheckpoint("a", 10);
  writer.DeleteJob("b");
  time.RunReady();

  journal.full = false;
  journal.log.clear();
  time.Advance(Millis(2'000));

  std::ranges::sort(journal.log);
  CHECK(journal.log ==
        std::vector<std::string>{"checkpoint 20 of a", "delete b", "no checkpoint 10 of a"});
}

TEST_CASE_METHOD(WriterTest, "On a full disk what waits is bounded, and how much is lost is said",
                 "[coordinator][unit]") {
  constexpr std::size_t kBytes = 1 << 20;
  constexpr std::size_t kGiven = 300;
  journal.full = true;
  for (std::uint64_t event = 1; event <= kGiven; ++event) {
    Event("a", event, kBytes);
    time.RunReady();
  }
  Checkpoint("a", 10);
  time.Advance(Millis(3'000));
  const std::size_t refused = heard.size();
  CHECK(refused >= kGiven - JournalWriter::kMostWaiting / kBytes);
  CHECK(refused < kGiven);
  CHECK(heard.back() == "event 300 RESOURCE_EXHAUSTED");
  REQUIRE(writer.trouble());
  CHECK(Message(writer.trouble()->error) ==
        fmt::format("no room; {} rows had no room to wait and are lost when the coordinator is "
                    "restarted",
                    refused));

  journal.full = false;
  journal.log.clear();
  time.Advance(Millis(2'000));
  CHECK(journal.log.size() == kGiven - refused + 1);
  CHECK_FALSE(writer.trouble());
}

TEST_CASE_METHOD(WriterTest, "Many rows that were kept are written as soon as there is room",
                 "[coordinator][unit]") {
  journal.full = true;
  for (std::uint64_t event = 1; event <= 1'000; ++event) Event("a", event);
  time.Advance(Millis(5'000));
  CHECK(journal.log.size() < 1'000 + 10 * 64);  // not all of them each time

  SECTION("by themselves") {
    journal.full = false;
    time.Advance(Millis(1'000));
  }
  SECTION("before the coordinator ends") {
    bool idle = false;
    writer.WhenIdle([&] { idle = true; });
    time.RunReady();
    CHECK(idle);  // a disk that is full does not keep it
    journal.full = false;
    idle = false;
    writer.WhenIdle([&] { idle = true; });
    CHECK_FALSE(idle);
    time.RunReady();
    CHECK(idle);
  }
  CHECK(heard.size() == 1'000);
}

TEST_CASE_METHOD(WriterTest, "A disk that does not answer is told, with who waits for it",
                 "[coordinator][unit]") {
  disk.hangs = true;
  Job("a", 10);
  Event("b", 1);
  time.RunReady();
  CHECK_FALSE(writer.trouble());
  time.Advance(Millis(5'000));
  REQUIRE(writer.trouble());
  CHECK(writer.trouble()->error.ok());
  CHECK(writer.trouble()->rows == 2);
  CHECK(writer.trouble()->jobs == std::set<std::string>{"a", "b"});
  disk.Go();
  time.RunReady();
  CHECK_FALSE(writer.trouble());
}

}  // namespace
}  // namespace muster::coordinator
