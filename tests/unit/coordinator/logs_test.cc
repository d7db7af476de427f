#include "coordinator/logs.h"

#include <future>
#include <optional>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

// A disk that answers when the test says so.
class SlowDisk : public Offload {
 public:
  void Run(Function work, Function then) override {
    queue.emplace_back(std::move(work), std::move(then));
  }
  void Answer() {
    for (auto& [work, then] : std::exchange(queue, {})) {
      work();
      then();
    }
  }
  std::vector<std::pair<Function, Function>> queue;
};

google::protobuf::RepeatedPtrField<v1::LogLine> Line(const std::string& text) {
  v1::LogLines lines;
  lines.add_lines()->set_text(text);
  return lines.lines();
}

struct Fixture {
  muster::testing::TempFolder dir;
  SlowDisk disk;
  Logs logs{{.directory = dir.path()}, disk};

  std::vector<std::string> ReadAll() {
    std::vector<std::string> texts;
    logs.Read("job", {.limit = 100'000}, [&](Result<LogStore::Page> page) {
      REQUIRE(page.ok());
      for (const v1::LogRecord& record : page->records) texts.push_back(record.line().text());
    });
    disk.Answer();
    return texts;
  }
};

TEST_CASE("Nobody waits for the disk that logs are written to", "[coordinator][unit]") {
  Fixture f;
  f.logs.Append("job", "worker:0", Line("first"));
  f.logs.Append("job", "worker:0", Line("second"));
  std::optional<std::size_t> read;
  f.logs.Read("job", {}, [&](Result<LogStore::Page> page) { read = page->records.size(); });

  // What an event quotes is known although nothing has been written.
  CHECK(f.logs.Last("job", "worker:0") == std::vector<std::string>{"first", "second"});
  CHECK_FALSE(read);
  f.disk.Answer();
  CHECK(read == 2);
}

TEST_CASE("Lines that wait for the disk are bounded, and the next one says how many were lost",
          "[coordinator][unit]") {
  Fixture f;
  const std::string text(1 << 14, 'x');
  const std::size_t fit = Logs::kMostWaiting / text.size();
  for (std::size_t i = 0; i < fit + 10; ++i) f.logs.Append("job", "worker:0", Line(text));
  CHECK(f.disk.queue.size() < fit);
  const std::size_t lost = fit + 10 - f.disk.queue.size();
  f.disk.Answer();

  f.logs.Append("job", "worker:0", Line("after"));

  const auto lines = f.ReadAll();
  REQUIRE(lines.size() == fit + 11 - lost);
  CHECK(lines.back() == fmt::format("after [{} lines before this one were lost]", lost));
}

TEST_CASE("Lines of an earlier coordinator are recalled, and a forgotten job's are gone",
          "[coordinator][unit]") {
  Fixture f;
  f.logs.Append("job", "worker:0", Line("before"));
  f.disk.Answer();
  Logs later({.directory = f.dir.path()}, f.disk);
  CHECK(later.Last("job", "worker:0").empty());

  later.Recall("job");
  f.disk.Answer();

  CHECK(later.Last("job", "worker:0") == std::vector<std::string>{"before"});
  later.Forget("job");
  f.disk.Answer();
  CHECK(later.Last("job", "worker:0").empty());
}

TEST_CASE("The newest lines of a task are those of its present process", "[coordinator][unit]") {
  Fixture f;
  f.logs.Append("job", "worker:0", Line("of the first"));
  f.logs.NoteStart("job", "worker:0");
  CHECK(f.logs.Last("job", "worker:0").empty());
  // What is read of an earlier coordinator's comes late.
  f.logs.Recall("job");
  f.disk.Answer();
  CHECK(f.logs.Last("job", "worker:0").empty());
  f.logs.Append("job", "worker:0", Line("of the second"));
  CHECK(f.logs.Last("job", "worker:0") == std::vector<std::string>{"of the second"});
  CHECK(f.ReadAll() == std::vector<std::string>{"of the first", "of the second"});
}

TEST_CASE("The newest lines of the jobs that wrote last are kept, of the others none",
          "[coordinator][unit]") {
  Fixture f;
  Logs logs({.directory = f.dir.path(), .open_jobs = 2}, f.disk);
  for (const char* job : {"a", "b", "a", "c"}) logs.Append(job, "trainer", Line(job));

  CHECK(logs.Last("a", "trainer").size() == 2);
  CHECK(logs.Last("b", "trainer").empty());
  CHECK(logs.Last("c", "trainer").size() == 1);
  f.disk.Answer();
}

TEST_CASE("A disk that hangs is not waited for longer than it is given", "[coordinator][unit]") {
  ThreadScheduler strand;
  ThreadOffload disk(strand);
  std::promise<void> answers;
  disk.Run([hangs = answers.get_future().share()] { hangs.wait(); }, [] {});
  CHECK_FALSE(disk.Finish(Millis(0)));
  answers.set_value();
  CHECK(disk.Finish(Millis(600'000)));
}

}  // namespace
}  // namespace muster::coordinator
