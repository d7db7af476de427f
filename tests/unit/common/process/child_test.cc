#include "common/process/child.h"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/memory_group.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_folder.h"

namespace muster::process {
namespace {

using std::chrono::seconds;

// Collects the lines of a child and lets a test wait for the nth.
struct Lines {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> lines;

  std::function<void(std::chrono::system_clock::time_point, std::string)> Sink() {
    return [this](std::chrono::system_clock::time_point, std::string line) {
      const std::scoped_lock lock(mutex);
      lines.push_back(std::move(line));
      changed.notify_all();
    };
  }
  bool WaitFor(std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(10), [&] { return lines.size() >= count; });
  }
};

Child::Options Shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

// Runs, or at least is no zombie (which only waits for whoever adopted it).
bool Exists(int pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(stat, text);
  const std::size_t after_name = text.rfind(')');
  return after_name != std::string::npos && text.substr(after_name, 3) != ") Z";
}

// A process that is not our child cannot be waited for: poll until it has gone.
bool GoneWithin(int pid, seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    if (!Exists(pid)) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST_CASE("a child's exit code is reported", "[process][unit]") {
  auto child = Child::Start(Shell("exit 3"));
  REQUIRE(child.ok());

  const auto exit = (*child)->Wait(seconds(10));

  REQUIRE(exit.ok());
  CHECK(exit->code == 3);
  CHECK(exit->signal == 0);
  CHECK_FALSE(exit->ok());
  CHECK(exit->ToString() == "exit code 3");
}

TEST_CASE("a child that a signal ends is reported by the signal's name", "[process][unit]") {
  auto child = Child::Start(Shell("kill -KILL $$"));
  REQUIRE(child.ok());

  const auto exit = (*child)->Wait(seconds(10));

  REQUIRE(exit.ok());
  CHECK(exit->signal == SIGKILL);
  CHECK(exit->ToString() == "signal SIGKILL");
}

TEST_CASE("stdout and stderr arrive as merged lines before the exit", "[process][unit]") {
  Lines lines;
  std::promise<std::size_t> lines_at_exit;
  Child::Options options = Shell("echo one; echo two >&2; echo; printf 'no newline'; exit 1");
  options.on_line = lines.Sink();
  options.on_exit = [&](Exit) { lines_at_exit.set_value(lines.lines.size()); };
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());

  CHECK(lines_at_exit.get_future().get() == 4);

  CHECK(lines.lines == std::vector<std::string>{"one", "two", "", "no newline"});
}

TEST_CASE("a line without end is handed on in bounded pieces", "[process][unit]") {
  Lines lines;
  Child::Options options = Shell("head -c 200000 /dev/zero | tr '\\0' x; echo; echo last");
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());

  std::size_t bytes = 0;
  for (const std::string& line : lines.lines) {
    CHECK(line.size() <= 65'536);
    bytes += line.size();
  }
  CHECK(bytes == 200'004);
  CHECK(lines.lines.back() == "last");
}

TEST_CASE("a program that does not exist is NOT_FOUND", "[process][unit]") {
  const auto absolute = Child::Start({.argv = {"/no/such/program"}});
  const auto by_name = Child::Start({.argv = {"no-such-program-of-muster"}});

  CHECK(absolute.status().code() == StatusCode::kNotFound);
  CHECK(Message(absolute.status()).find("/no/such/program") != std::string::npos);
  CHECK(by_name.status().code() == StatusCode::kNotFound);
}

TEST_CASE("a folder in PATH that has the program's name is passed over", "[process][unit]") {
  const muster::testing::TempFolder folder;
  REQUIRE(::mkdir((folder / "sh").c_str(), 0700) == 0);
  const char* const given = std::getenv("PATH");
  const std::string before = given == nullptr ? "/usr/bin:/bin" : given;
  ::setenv("PATH", (folder.path() + ":/usr/bin:/bin").c_str(), 1);

  auto child = Child::Start({.argv = {"sh", "-c", "exit 4"}});

  ::setenv("PATH", before.c_str(), 1);
  REQUIRE(child.ok());
  CHECK((*child)->Wait(seconds(10)).value().code == 4);
}

TEST_CASE("a host that starts no more threads is told of, and with threads again it starts one",
          "[process][unit]") {
  Result<std::unique_ptr<Child>> none = NotFound("not tried");
  {
    const testing::NoThreads full;
    none = Child::Start(Shell("exit 0"));
  }

  CHECK(none.status().code() == StatusCode::kResourceExhausted);
  CHECK(Message(none.status()).find("a thread for /bin/sh: ") != std::string::npos);
  CHECK(Message(none.status()).find("TasksMax") != std::string::npos);
  auto child = Child::Start(Shell("exit 0"));
  REQUIRE(child.ok());
  CHECK((*child)->Wait(seconds(10)).ok());
}

TEST_CASE("an environment value is set, an empty one removes the name", "[process][unit]") {
  ::setenv("MUSTER_TEST_GOES", "here", 1);
  Lines lines;
  Child::Options options = Shell("echo \"${MUSTER_TEST_NEW}|${MUSTER_TEST_GOES-unset}\"");
  options.environment = {{"MUSTER_TEST_NEW", "a b"}, {"MUSTER_TEST_GOES", ""}};
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());
  ::unsetenv("MUSTER_TEST_GOES");

  CHECK(lines.lines == std::vector<std::string>{"a b|unset"});
}

TEST_CASE("a variable can be set and empty", "[process][unit]") {
  ::setenv("MUSTER_TEST_HIDES", "0,1", 1);
  Lines lines;
  Child::Options options = Shell("echo \"${MUSTER_TEST_HIDES-unset}|${MUSTER_TEST_NEW-unset}|\"");
  options.environment = {{"MUSTER_TEST_NEW", "a"}};
  options.empty_variables = {"MUSTER_TEST_HIDES", "MUSTER_TEST_NEW"};
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());
  ::unsetenv("MUSTER_TEST_HIDES");

  CHECK(lines.lines == std::vector<std::string>{"||"});
}

TEST_CASE("how a child ends is known to a process that was started with SIGCHLD ignored",
          "[process][unit]") {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  auto failed = Child::Start(Shell("exit 3"));
  REQUIRE(failed.ok());
  const auto code = (*failed)->Wait(seconds(10));
  (void)std::signal(SIGCHLD, SIG_IGN);
  auto killed = Child::Start(Shell("kill -KILL $$"));
  REQUIRE(killed.ok());
  const auto end = (*killed)->Wait(seconds(10));
  (void)std::signal(SIGCHLD, before);

  REQUIRE(code.ok());
  CHECK(code->ToString() == "exit code 3");
  REQUIRE(end.ok());
  CHECK(end->ToString() == "signal SIGKILL");
}

TEST_CASE("a child under another name is the first that the kernel ends when memory runs out",
          "[process][unit]") {
  Lines lines;
  Child::Options options;
  options.program = "/bin/sh";
  options.argv = {"words", "-c", "tr '\\0' ' ' < /proc/$$/cmdline; cat /proc/self/oom_score_adj"};
  options.oom_score = 500;
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());

  REQUIRE(lines.lines.size() == 1);
  CHECK(lines.lines[0].starts_with("words -c "));
  CHECK(lines.lines[0].ends_with(" 500"));
}

TEST_CASE("a child that the kernel ends for want of memory is told from one that somebody kills",
          "[process][unit]") {
  const testing::MemoryGroup group(std::uint64_t{64} << 20);
  if (!group.works()) {
    WARN("skipped: no control group of its own with a limit to its memory");
    return;
  }
  REQUIRE(group.Add(::getpid()));
  const auto start = [](std::vector<std::string> argv) {
    Child::Options options;
    options.argv = std::move(argv);
    options.oom_score = 1000;
    return Child::Start(std::move(options));
  };
  auto idle = start({"sleep", "600"});
  auto stopped = start({"sleep", "600"});
  auto greedy = start({"python3", "-c", "x = bytearray(300 << 20)"});
  REQUIRE((idle.ok() && stopped.ok() && greedy.ok()));

  const auto end = (*greedy)->Wait(seconds(60));
  REQUIRE(end.ok());
  CHECK(end->ToString() == "signal SIGKILL (out of memory: the limit is 64 MiB)");
  CHECK(end->from_outside());

  // The kernel's one kill has been told.
  REQUIRE(::kill((*idle)->pid(), SIGKILL) == 0);
  const auto killed = (*idle)->Wait(seconds(60));
  REQUIRE(killed.ok());
  CHECK(killed->ToString() == "signal SIGKILL");

  // What we do ourselves is nobody else's, whatever the kernel does meanwhile.
  auto greedy_again = start({"python3", "-c", "x = bytearray(300 << 20)"});
  REQUIRE(greedy_again.ok());
  REQUIRE((*stopped)->Signal(SIGKILL).ok());
  const auto ours = (*stopped)->Wait(seconds(60));
  REQUIRE(ours.ok());
  CHECK(ours->ToString() == "signal SIGKILL");
  const auto again = (*greedy_again)->Wait(seconds(60));
  REQUIRE(again.ok());
  CHECK(again->out_of_memory);
}

TEST_CASE("only the given descriptors reach the child, under their numbers", "[process][unit]") {
  // Without close-on-exec, so that a leak would show.
  const int stray = ::open("/dev/null", O_RDONLY);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Lines lines;
  Child::Options options = Shell("echo through >&3; ls /proc/self/fd | tr '\\n' ' '");
  options.descriptors = {{ends[1], 3}};
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());
  ::close(ends[1]);
  char buffer[16] = {};
  const ssize_t got = ::read(ends[0], buffer, sizeof buffer);
  ::close(ends[0]);
  ::close(stray);

  CHECK(std::string(buffer, got > 0 ? got : 0) == "through\n");
  REQUIRE(lines.lines.size() == 1);
  CHECK(lines.lines[0] == "0 1 2 3 4 ");  // 4 is the folder that ls itself has open
}

TEST_CASE("descriptors may swap their numbers on the way", "[process][unit]") {
  int a[2];
  int b[2];
  REQUIRE(::pipe(a) == 0);
  REQUIRE(::pipe(b) == 0);
  Child::Options options = Shell(fmt::format("echo to-b >&{}; echo to-a >&{}", a[1], b[1]));
  options.descriptors = {{a[1], b[1]}, {b[1], a[1]}};
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE((*child)->Wait(seconds(10)).ok());
  char from_a[8] = {};
  char from_b[8] = {};
  CHECK(::read(a[0], from_a, 5) == 5);
  CHECK(::read(b[0], from_b, 5) == 5);
  for (int fd : {a[0], a[1], b[0], b[1]}) ::close(fd);

  CHECK(std::string(from_a) == "to-a\n");
  CHECK(std::string(from_b) == "to-b\n");
}

TEST_CASE("the destructor kills the whole process group", "[process][unit]") {
  Lines lines;
  Child::Options options = Shell("sleep 1000 & echo $!; wait");
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE(lines.WaitFor(1));
  const int grandchild = std::stoi(lines.lines[0]);
  const int pid = (*child)->pid();
  REQUIRE(Exists(grandchild));

  child->reset();

  CHECK_FALSE(Exists(pid));
  CHECK(GoneWithin(grandchild, seconds(10)));
}

TEST_CASE("End kills a child that ignores SIGTERM", "[process][unit]") {
  Lines lines;
  Child::Options options = Shell("trap '' TERM; echo ready; while :; do sleep 1000; done");
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE(lines.WaitFor(1));

  const Exit exit = (*child)->End(std::chrono::milliseconds(50));

  CHECK(exit.signal == SIGKILL);
  CHECK((*child)->Signal(SIGTERM).code() == StatusCode::kNotFound);
}

TEST_CASE("End lets a child that obeys SIGTERM finish", "[process][unit]") {
  Lines lines;
  Child::Options options = Shell("trap 'echo bye; exit 5' TERM; echo ready; read x <&3");
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  options.descriptors = {{ends[0], 3}};
  options.on_line = lines.Sink();
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());
  REQUIRE(lines.WaitFor(1));

  const Exit exit = (*child)->End(seconds(10));
  ::close(ends[0]);
  ::close(ends[1]);

  CHECK(exit.code == 5);
  CHECK(lines.lines.back() == "bye");
}

TEST_CASE("a child's end is seen while others of its group print without a pause",
          "[process][unit]") {
  std::atomic<bool> printed = false;
  Child::Options options =
      Shell("yes $(head -c 4000 /dev/zero | tr '\\0' x) & read word <&3; exit 3");
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  options.descriptors = {{ends[0], 3}};
  options.on_line = [&](std::chrono::system_clock::time_point, const std::string&) {
    if (!printed.exchange(true)) (void)!::write(ends[1], "go\n", 3);
    std::this_thread::yield();  // the pipe is full again
  };
  auto child = Child::Start(std::move(options));
  REQUIRE(child.ok());

  const auto exit = (*child)->Wait(seconds(30));
  child->reset();  // its thread has ended, too
  ::close(ends[0]);
  ::close(ends[1]);

  REQUIRE(exit.ok());
  CHECK(exit->code == 3);
}

TEST_CASE("waiting for a running child ends at the deadline and names it", "[process][unit]") {
  auto child = Child::Start(Shell("exec sleep 1000"));
  REQUIRE(child.ok());

  const auto exit = (*child)->Wait(std::chrono::milliseconds(10));

  CHECK(exit.status().code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(exit.status()).find("/bin/sh") != std::string::npos);
}

TEST_CASE("a child outlives the thread that started it", "[process][unit]") {
  std::unique_ptr<Child> child;
  std::thread([&child] { child = *Child::Start(Shell("exec sleep 1000")); }).join();

  CHECK(child->Wait(std::chrono::milliseconds(50)).status().code() ==
        StatusCode::kDeadlineExceeded);
}

TEST_CASE("a child dies with the process that started it", "[process][unit]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    auto child = Child::Start(Shell("exec sleep 1000"));
    const int pid = child.ok() ? (*child)->pid() : 0;
    (void)!::write(ends[1], &pid, sizeof pid);
    ::pause();
    ::_exit(0);
  }
  int grandchild = 0;
  REQUIRE(::read(ends[0], &grandchild, sizeof grandchild) == sizeof grandchild);
  REQUIRE(grandchild > 0);
  REQUIRE(Exists(grandchild));

  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);

  CHECK(GoneWithin(grandchild, seconds(10)));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a program of ours is found beside this one or in ../bin", "[process][unit]") {
  const std::string path = SiblingProgram("process_test");

  CHECK(path.starts_with("/"));
  CHECK(path.ends_with("/process_test"));
  CHECK(::access(path.c_str(), X_OK) == 0);
}

}  // namespace
}  // namespace muster::process
