// Launches with their real folders, ports and threads, for a coordinator that this test plays.
#include "services/worker/launch_host.h"

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

constexpr std::chrono::seconds kLongest{20};

// SHA-256 of "hello\n".
constexpr const char* kHelloFile =
    "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

// How many ports this process has claimed (common/process/ports.cc).
std::size_t ClaimedPorts() {
  std::set<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of this very look
    open.insert(std::filesystem::read_symlink(entry.path(), gone).string());
  }
  std::size_t count = 0;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string field, inode;
    for (int i = 0; i < 7; ++i) fields >> inode;
    fields >> field;
    if (field.starts_with("@muster-port-") && open.contains("socket:[" + inode + "]")) ++count;
  }
  return count;
}

struct HostFixture : AttachHandler {
  class Stream final : public AttachStream {
   public:
    explicit Stream(HostFixture& owner) : owner_(owner) {}
    void Write(v1::DaemonMessage message) override {
      const std::lock_guard lock(owner_.mutex);
      if (message.has_result()) owner_.answers[message.result().command_id()] = message.result();
      if (message.launched().kind() == v1::LaunchEvent::KIND_EXITED) {
        owner_.ended = message.launched().how();
        owner_.why = message.launched().last_error();
      }
      owner_.changed.notify_all();
    }
    std::size_t Pending() const override { return 0; }
    void FinishWrites() override {}

   private:
    HostFixture& owner_;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, v1::CommandResult> answers;
  // How a launched process has ended, and what it said of that.
  std::string ended, why;
  bool fetching = false;
  bool may_go_on = false;
  std::uint64_t next_command = 1;

  testing::TempFolder dir;
  ThreadScheduler strand;
  AttachEvents events;
  AttachClient client{{.coordinator = "c:1", .seed = 1}, strand, *this, [this](AttachEvents given) {
                        events = std::move(given);
                        return std::make_unique<Stream>(*this);
                      }};
  // Its files are on their way until LetGoOn().
  LaunchHost host{
      {.listen_host = "127.0.0.1", .advertised_host = "", .folder = dir / "launches", .token = ""},
      strand,
      client,
      FileCache(dir / "files", [this](const std::string&, const FileCache::Sink& sink) {
        std::unique_lock lock(mutex);
        fetching = true;
        changed.notify_all();
        (void)changed.wait_for(lock, kLongest, [this] { return may_go_on; });
        return sink("hello\n");
      })};

  HostFixture() {
    std::promise<void> started;
    strand.Post([&] {
      client.Start();
      started.set_value();
    });
    started.get_future().wait();
    v1::CoordinatorMessage message;
    message.mutable_welcome()->set_epoch(1);
    message.mutable_welcome()->set_session(1);
    message.mutable_welcome()->set_heartbeat_ms(600'000);
    message.mutable_welcome()->set_lease_ms(6'000'000);
    events.on_message(message);
  }
  ~HostFixture() override {
    LetGoOn();
    strand.Stop();
    host.Close();
  }
  HostFixture(const HostFixture&) = delete;
  HostFixture& operator=(const HostFixture&) = delete;

  void OnAttached(const v1::Welcome&) override {}
  void OnDetached(const Status&) override {}
  void OnCommand(StreamId stream, const v1::Command& command) override {
    (void)host.launches().OnCommand(stream, command);
  }
  void FillHeartbeat(v1::Heartbeat&) override {}
  void OnRefused(const Status&) override {}

  bool AwaitFetch() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kLongest, [this] { return fetching; });
  }
  void LetGoOn() {
    const std::lock_guard lock(mutex);
    may_go_on = true;
    changed.notify_all();
  }
  std::uint64_t Say(v1::Command command) {
    command.set_id(next_command++);
    v1::CoordinatorMessage message;
    *message.mutable_command() = command;
    events.on_message(message);
    return command.id();
  }
  // `file`: one that has to be fetched.
  std::uint64_t Prepare(const std::string& job, bool file) {
    v1::Command command;
    v1::PrepareLaunch& prepare = *command.mutable_prepare_launch();
    prepare.set_job_id(job);
    prepare.set_launch(5);
    prepare.set_addresses(2);
    prepare.mutable_spec()->set_command("sh");
    if (file) {
      prepare.mutable_spec()->add_files()->set_path("hello");
      prepare.mutable_spec()->mutable_files(0)->set_sha256(kHelloFile);
    }
    return Say(command);
  }
  // How a process ends that runs this shell script with the variable EMPTY set to nothing.
  std::string EndOf(const std::string& script) {
    v1::Command prepare;
    prepare.mutable_prepare_launch()->set_job_id("e");
    prepare.mutable_prepare_launch()->set_launch(5);
    prepare.mutable_prepare_launch()->set_addresses(1);
    v1::LaunchSpec& spec = *prepare.mutable_prepare_launch()->mutable_spec();
    spec.set_command("sh");
    spec.add_arguments("-c");
    spec.add_arguments(script);
    (*spec.mutable_environment())["EMPTY"] = "";
    REQUIRE(AnswerTo(Say(prepare)));
    v1::Command start;
    start.mutable_start_launch()->set_job_id("e");
    start.mutable_start_launch()->set_launch(5);
    start.mutable_start_launch()->add_processes()->mutable_task()->set_type("worker");
    REQUIRE(AnswerTo(Say(start)));
    std::unique_lock lock(mutex);
    (void)changed.wait_for(lock, kLongest, [this] { return !ended.empty(); });
    return ended;
  }
  // Nothing after a long time: it is not answered.
  std::optional<v1::CommandResult> AnswerTo(std::uint64_t command) {
    std::unique_lock lock(mutex);
    (void)changed.wait_for(lock, kLongest, [&] { return answers.contains(command); });
    const auto found = answers.find(command);
    return found == answers.end() ? std::nullopt : std::optional(found->second);
  }
};

TEST_CASE_METHOD(HostFixture,
                 "A launch that is stopped while its files are fetched claims no addresses",
                 "[services][launch]") {
  REQUIRE(ClaimedPorts() == 0);
  (void)Prepare("j", true);
  REQUIRE(AwaitFetch());
  v1::Command stop;
  stop.mutable_stop_launch()->set_job_id("j");
  stop.mutable_stop_launch()->set_launch(5);
  stop.mutable_stop_launch()->set_forget(true);
  REQUIRE(AnswerTo(Say(stop)));

  LetGoOn();
  // What is prepared after it finds it done with.
  const auto other = AnswerTo(Prepare("k", false));

  REQUIRE(other);
  CHECK(other->launch().addresses_size() == 2);
  CHECK(ClaimedPorts() == 2);
  CHECK_FALSE(std::filesystem::exists(dir / "launches/j"));
}

TEST_CASE_METHOD(HostFixture, "A launch is told who is there while files of another are fetched",
                 "[services][launch]") {
  REQUIRE(AnswerTo(Prepare("k", false)));
  (void)Prepare("j", true);
  REQUIRE(AwaitFetch());
  v1::Command start;
  start.mutable_start_launch()->set_job_id("k");
  start.mutable_start_launch()->set_launch(5);
  start.mutable_start_launch()->set_workers("those");

  const auto begun = AnswerTo(Say(start));

  REQUIRE(begun);
  CHECK(begun->status().code() == 0);
  std::string text;
  std::getline(std::ifstream(dir / "launches/k.workers"), text);
  CHECK(text == "those");
}

TEST_CASE_METHOD(HostFixture, "A check of a launch names the command that this host lacks",
                 "[services][launch]") {
  v1::Command check;
  v1::LaunchSpec& spec = *check.mutable_check_job()->mutable_spec()->mutable_launch();
  spec.set_command("no-such-command");
  const auto lacking = AnswerTo(Say(check));
  spec.set_command("sh");
  const auto there = AnswerTo(Say(check));

  REQUIRE(lacking);
  REQUIRE(lacking->check().problems_size() == 1);
  CHECK(lacking->check().problems(0) ==
        "worker:0 has no command \"no-such-command\" in its PATH: install it on this host, or give "
        "the path of a file here that is sent");
  REQUIRE(there);
  CHECK(there->check().problems().empty());
}

TEST_CASE_METHOD(HostFixture, "A variable that a job sets to nothing is set and hides the worker's",
                 "[services][launch]") {
  ::setenv("EMPTY", "the worker's", 1);

  const std::string how = EndOf(R"(test "${EMPTY-unset}" = "" && exit 7)");
  ::unsetenv("EMPTY");

  CHECK(how == "exit code 7");
}

TEST_CASE_METHOD(HostFixture, "Why a process ended is no line of a log below an error",
                 "[services][launch]") {
  const std::string last = GENERATE("", "08:00:00.123 E the disk is full", "8:00 I am done");
  CAPTURE(last);
  const std::string how = EndOf("for line in '08:00:00.123 I it begins' 'it broke' '" + last +
                                "' '08:00:00.124 I it waits for the others' '08:00:00.125 W it is "
                                "slow' '08:00:00.126 D it has looked'; "
                                "do echo \"$line\" >&2; done; exit 7");

  CHECK(how == "exit code 7");
  CHECK(why == (last.empty() ? "it broke" : last));
}

}  // namespace
}  // namespace muster::services
