// muster-guard, with shells for commands.
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "common/process/child.h"
#include "tests/support/catch.h"

namespace muster::process {
namespace {

using std::chrono::seconds;

// A shell script under a guard, and what it writes to stdout and stderr.
class Guarded {
 public:
  explicit Guarded(std::vector<std::string> command, std::map<int, int> descriptors = {}) {
    command.insert(command.begin(), {SiblingProgram("muster-guard"), "--cwd", "/tmp", "--"});
    Result<std::unique_ptr<Child>> started = Child::Start(
        {.argv = std::move(command),
         .descriptors = std::move(descriptors),
         .on_line = [this](auto, std::string line) { Add(lines_, std::move(line)); },
         .on_error_line = [this](auto, std::string line) { Add(errors_, std::move(line)); }});
    REQUIRE(started.ok());
    child_ = *std::move(started);
  }

  // The nth line on stdout.
  std::string Line(std::size_t n) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, seconds(60), [&] { return lines_.size() > n; }));
    return lines_[n];
  }
  // What follows `prefix` on the first line that begins with it.
  std::string LineWith(const std::string& prefix) {
    for (std::size_t n = 0;; ++n) {
      if (const std::string line = Line(n); line.starts_with(prefix)) {
        return line.substr(prefix.size());
      }
    }
  }
  std::string LastError() {
    const std::scoped_lock lock(mutex_);
    return errors_.empty() ? "" : errors_.back();
  }
  std::string End() {
    const Result<Exit> exit = child_->Wait(seconds(60));
    return exit.ok() ? exit->ToString() : Message(exit.status());
  }
  Child& child() { return *child_; }

 private:
  void Add(std::vector<std::string>& lines, std::string line) {
    const std::scoped_lock lock(mutex_);
    lines.push_back(std::move(line));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::vector<std::string> errors_;
  std::unique_ptr<Child> child_;
};

std::vector<std::string> Shell(const std::string& script) { return {"sh", "-c", script}; }

bool Runs(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.substr(end, 3) != ") Z";
}

bool IsGone(const std::string& pid) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    if (!Runs(pid)) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST_CASE("a guard ends as its command does", "[guard]") {
  CHECK(Guarded(Shell("exit 0")).End() == "exit code 0");
  CHECK(Guarded(Shell("exit 42")).End() == "exit code 42");
  CHECK(Guarded(Shell("kill -SEGV $$")).End() == "signal SIGSEGV");
  CHECK(Guarded(Shell("kill -KILL $$")).End() == "signal SIGKILL");
  Guarded missing({"no-such-command"});
  CHECK(missing.End() == "exit code 127");
  CHECK(missing.LastError() ==
        "muster-guard: cannot run no-such-command: No such file or directory");
  Guarded folder({"/tmp"});
  CHECK(folder.End() == "exit code 126");
  Guarded where(Shell("pwd; echo failed >&2"));
  CHECK(where.Line(0) == "/tmp");
  CHECK(where.End() == "exit code 0");
  CHECK(where.LastError() == "failed");
}

TEST_CASE("a command runs though nobody waits for its pid any more", "[guard]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::close(ends[0]) == 0);

  Guarded guarded(Shell("exit 5"), {{ends[1], 3}});

  CHECK(guarded.End() == "exit code 5");
  ::close(ends[1]);
}

TEST_CASE("nothing that a command has started outlives it, in whatever session it is", "[guard]") {
  Guarded guarded(
      Shell("pid=$(setsid sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $!'); "
            "echo $pid; sleep 1000 & echo $!; exit 3"));
  const std::string first = guarded.Line(0);
  const std::string second = guarded.Line(1);
  CHECK(guarded.End() == "exit code 3");
  CHECK_FALSE(Runs(first));
  CHECK_FALSE(Runs(second));
}

TEST_CASE("a guard hands SIGTERM on and kills everything at SIGQUIT", "[guard]") {
  Guarded polite(Shell("trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.01; done"));
  REQUIRE(polite.Line(0) == "ready");
  REQUIRE(polite.child().Signal(SIGTERM).ok());
  CHECK(polite.Line(1) == "asked");
  CHECK(polite.End() == "exit code 5");

  Guarded stubborn(Shell("trap '' TERM; setsid sleep 1000 & echo $!; while :; do sleep 1; done"));
  const std::string child = stubborn.Line(0);
  REQUIRE(stubborn.child().Signal(SIGTERM).ok());
  REQUIRE(stubborn.child().Signal(SIGQUIT).ok());
  CHECK(stubborn.End() == "signal SIGKILL");
  CHECK_FALSE(Runs(child));
}

TEST_CASE("a command ends with its guard's parent, and with its guard", "[guard]") {
  // A shell stands for the daemon.
  const std::string guard = SiblingProgram("muster-guard");
  Guarded outer(Shell("sh -c '" + guard +
                      " -- sh -c \"setsid sleep 1000 >/dev/null 2>&1 & echo sleeper \\$!; "
                      "exec sleep 1000\" & echo daemon $$; wait' & while :; do sleep 1; done"));
  const std::string daemon = outer.LineWith("daemon ");
  const std::string sleeper = outer.LineWith("sleeper ");
  REQUIRE(::kill(std::stoi(daemon), SIGKILL) == 0);
  CHECK(IsGone(sleeper));

  Guarded plain(Shell("echo $$; exec sleep 1000"));
  const std::string command = plain.Line(0);
  REQUIRE(::kill(plain.child().pid(), SIGKILL) == 0);
  CHECK(plain.End() == "signal SIGKILL");
  CHECK(IsGone(command));
}

}  // namespace
}  // namespace muster::process
