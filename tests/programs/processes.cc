// What multi_process_test runs in several processes; the first argument says what each does.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "strategy/testing/multi_process.h"

namespace {

std::string IndexOfTask() {
  const std::string config = std::getenv("TF_CONFIG");
  return config.substr(config.find("\"index\":") + 8, 1);
}

std::string greet() { return "hello from " + IndexOfTask(); }
MUSTER_PROCESS_FUNCTION(greet);

std::string refuse() { throw std::runtime_error("task " + IndexOfTask() + " refuses"); }
MUSTER_PROCESS_FUNCTION(refuse);

void Say(const std::string& text) {
  std::puts(text.c_str());
  (void)std::fflush(stdout);
}

[[noreturn]] void WaitForSignal() {
  while (true) ::pause();
}

// Two processes of this same program run one of its functions.
int RunFunction(const std::string& name) {
  try {
    muster::MultiProcessRun run({.function = name, .cluster = {{"worker", 2}}, .print = false});
    for (const auto& [task, values] : run.join().values) Say(task + ": " + values.at(0));
    return 0;
  } catch (const muster::Error& error) {
    Say(error.message());
    return 1;
  }
}

int MeetAtBarrier(int times) {
  for (int i = 1; i <= times; ++i) {
    muster::process_barrier();
    Say("passed " + std::to_string(i));
  }
  return 0;
}

// Four threads hand over eight values each, of one letter and more than a socket holds.
int HandOverAtOnce() {
  std::vector<std::thread> threads;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    threads.emplace_back([letter] {
      for (int i = 0; i < 8; ++i) muster::process_result(std::string(256 << 10, letter));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// Lines on the run's descriptor that are none of the run's; then a value.
int WriteStrayLines() {
  const std::string lines = "result\nresult of mine\nresults: 5\n\n";
  if (::write(3, lines.data(), lines.size()) < 0) return 5;
  muster::process_result("whole");
  return 0;
}

// Two processes of this same program, whose lines go through this one's stdout.
int ShowBarrier() {
  muster::MultiProcessRun run(
      {.command = {"/proc/self/exe", "barrier", "1"}, .cluster = {{"worker", 2}}});
  run.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = muster::process_function_main()) return *code;
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "function") return RunFunction(argv[2]);
  if (what == "config") {
    muster::process_result(std::getenv("TF_CONFIG"));
    return 0;
  }
  try {
    if (what == "shown") return ShowBarrier();
    if (what == "barrier") return MeetAtBarrier(std::atoi(argv[2]));
    if (what == "threads") return HandOverAtOnce();
    if (what == "stray") return WriteStrayLines();
    // Task 1 never comes, nor does task 2, which stays.
    if (what == "broken-barrier") {
      if (IndexOfTask() == "1") return 0;
      if (IndexOfTask() == "2") WaitForSignal();
      return MeetAtBarrier(1);
    }
  } catch (const muster::Error& error) {
    Say(error.message());
    return 4;
  }
  Say("begins");
  // Task 0 leaves with a code, the others stay.
  if (what == "chief-ends" && IndexOfTask() == "0") return std::atoi(argv[2]);
  WaitForSignal();
}
