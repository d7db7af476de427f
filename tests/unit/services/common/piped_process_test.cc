#include "services/common/piped_process.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_folder.h"

namespace muster::services {
namespace {

struct PipeRecorder {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> story;

  void Note(const std::string& what) {
    const std::scoped_lock lock(mutex);
    story.push_back(what);
    changed.notify_all();
  }
  bool WaitFor(const std::string& what) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] {
      return std::find(story.begin(), story.end(), what) != story.end();
    });
  }
  ExecutorProcess::Events Events() {
    return {.on_line = [this](auto, const std::string& line) { Note("line " + line); },
            .on_message =
                [this](const v1::FromExecutor& message) {
                  Note("ready " + message.ready().torch_version());
                },
            .on_exit = [this](process::Exit exit) { Note("exit " + exit.ToString()); }};
  }
};

std::string ScriptIn(const testing::TempFolder& dir, const std::string& script) {
  const std::string path = dir / "executor";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  ::chmod(path.c_str(), 0700);
  return path;
}

TEST_CASE("an executor's lines, messages and end arrive in order", "[services][unit]") {
  const testing::TempFolder dir;
  PipeRecorder recorder;
  // FromExecutor{ready{torch_version: "9"}} is 0a 03 12 01 '9': five bytes after the length.
  const auto executor = ExecutorProcess::Start(
      {.argv = {ScriptIn(dir,
                         "echo \"token in $MUSTER_TOKEN_FILE\"\n"
                         "printf '\\005\\000\\000\\000\\012\\003\\022\\0019' >&3\nexit 4")},
       .environment = {{"MUSTER_TOKEN_FILE", "/t"}}},
      recorder.Events());

  REQUIRE(executor.ok());
  REQUIRE(recorder.WaitFor("exit exit code 4"));
  CHECK(recorder.story.back() == "exit exit code 4");
  CHECK(recorder.WaitFor("line token in /t"));
  CHECK(recorder.WaitFor("ready 9"));
}

TEST_CASE("an executor whose message cannot be read hears that nobody reads any more",
          "[services][unit]") {
  const testing::TempFolder dir;
  PipeRecorder recorder;
  // A length of 4 GiB; then it waits for the end of its pipe.
  const auto executor = ExecutorProcess::Start(
      {.argv = {ScriptIn(dir, "printf '\\377\\377\\377\\377' >&3\ncat <&3\nexit 7")}},
      recorder.Events());

  REQUIRE(executor.ok());
  CHECK(recorder.WaitFor("exit exit code 7"));
}

TEST_CASE("an executor dies with its object", "[services][unit]") {
  const testing::TempFolder dir;
  PipeRecorder recorder;
  auto executor = ExecutorProcess::Start({.argv = {ScriptIn(dir, "echo up; exec sleep 1000")}},
                                         recorder.Events());
  REQUIRE(executor.ok());
  REQUIRE(recorder.WaitFor("line up"));

  executor->reset();

  CHECK(recorder.story.back() == "exit signal SIGKILL");
}

// What it leaves has its own session, and its end of the pair: no signal to its group reaches it.
TEST_CASE("an executor's end is told though a process that it leaves behind keeps its pipe open",
          "[services][unit]") {
  const testing::TempFolder dir;
  PipeRecorder recorder;
  const std::string left = dir / "left";
  auto executor = ExecutorProcess::Start(
      {.argv = {ScriptIn(dir,
                         "setsid sh -c 'echo $$ >" + left + ".new; mv " + left + ".new " + left +
                             "; exec sleep 1000' >/dev/null 2>&1 &\n"
                             "until [ -e " +
                             left +
                             " ]; do :; done\n"
                             "printf '\\005\\000\\000\\000\\012\\003\\022\\0019' >&3\nexit 4")}},
      recorder.Events());
  REQUIRE(executor.ok());

  const bool told = recorder.WaitFor("exit exit code 4");

  int pid = 0;
  std::ifstream(left) >> pid;
  CHECK(told);
  CHECK(recorder.WaitFor("ready 9"));
  CHECK(pid > 0);
  if (pid > 0) CHECK(::kill(pid, SIGKILL) == 0);
  executor->reset();
}

TEST_CASE("a program that is not there is NOT_FOUND", "[services][unit]") {
  PipeRecorder recorder;
  const auto executor = ExecutorProcess::Start({.argv = {"/no/such/program"}}, recorder.Events());

  CHECK(executor.status().code() == StatusCode::kNotFound);
  CHECK(recorder.story.empty());
}

std::ptrdiff_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_CASE("a host that starts no more threads starts no executor, and keeps nothing of it open",
          "[services][unit]") {
  PipeRecorder recorder;
  const auto before = OpenDescriptors();
  Result<std::unique_ptr<ExecutorProcess>> executor = NotFound("not tried");
  {
    const muster::testing::NoThreads full;
    executor = ExecutorProcess::Start({.argv = {"/bin/true"}}, recorder.Events());
  }

  CHECK(executor.status().code() == StatusCode::kResourceExhausted);
  CHECK(Message(executor.status()).find("a thread for /bin/true: ") != std::string::npos);
  CHECK(OpenDescriptors() == before);
  CHECK(recorder.story.empty());
}

}  // namespace
}  // namespace muster::services
