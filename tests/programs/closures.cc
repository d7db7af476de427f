// A program for tests of programs: what it does is its first argument.
//
//   sum N [WORKERS]    adds up 1..N, a closure each, once so many executors are connected; prints
//   "sum S" counted N FILE     the same, and each execution appends a byte to the file sleep MS one
//   closure of that length print LINES        prints so many lines in the driver and in a closure
//   fail CODE          main returns this
//   throw              an exception leaves main
//   throw-closure      an exception leaves a closure
//   segfault           a closure reads address 0
//   exit-closure CODE  a closure ends its process
//   hang               a closure that never ends, and does not look whether it is cancelled
//   object N           closures that count in the executor's own object; prints "object S"
//   no-init            main returns 0 before Init(): its probe says nothing
//   no-init-hang       main never comes to Init()
//   stop               runs until the job is to stop, then says so and ends
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/program.h"
#include "program/runtime.h"
#include <fcntl.h>
#include <unistd.h>

namespace closures {

using muster::Result;
using muster::Status;

// CLOSURES_BROKEN in the environment: it cannot be built.
struct Tally {
  std::int64_t sum = 0;
};
std::unique_ptr<Tally> MakeTally() {
  if (std::getenv("CLOSURES_BROKEN") != nullptr) throw std::runtime_error("no tally here");
  return std::make_unique<Tally>(Tally{.sum = 100});
}

std::int64_t AddUp(Tally& tally, std::int64_t n) { return tally.sum += n; }

std::int64_t Same(std::int64_t n) { return n; }

std::int64_t Counted(std::int64_t n, const std::string& file) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  (void)!::write(fd, ".", 1);
  ::close(fd);
  return n;
}

void Sleep(std::int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void Print(std::int64_t lines) {
  for (std::int64_t i = 0; i < lines; ++i) std::printf("closure line %ld\n", static_cast<long>(i));
}

void Throw() { throw std::runtime_error("thrown by a closure"); }

int Segfault() {
  std::fprintf(stderr, "about to read address 0\n");
  (void)std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would end it in another way
  (void)std::raise(SIGSEGV);
  return 0;
}

void Exit(int code) { std::exit(code); }

void Hang() {
  for (volatile bool on = true; on;) ::usleep(1'000);
}

}  // namespace closures

MUSTER_PROGRAM(closures::MakeTally);
MUSTER_FUNCTION(closures::AddUp);
MUSTER_FUNCTION(closures::Same);
MUSTER_FUNCTION(closures::Counted);
MUSTER_FUNCTION(closures::Sleep);
MUSTER_FUNCTION(closures::Print);
MUSTER_FUNCTION(closures::Throw);
MUSTER_FUNCTION(closures::Segfault);
MUSTER_FUNCTION(closures::Exit);
MUSTER_FUNCTION(closures::Hang);

namespace {

using namespace closures;
using muster::TimePoint;
using muster::dispatch::Schedule;
using muster::dispatch::TypedValue;

TimePoint In(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// Prints an error as tests look for it.
int Told(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "closures: %s\n", muster::ToString(status).c_str());
  return 1;
}

template <class One>
int Sum(muster::program::Runtime& runtime, std::int64_t n, std::size_t workers, One one) {
  if (const Status ready = runtime.AwaitWorkers(workers, In(60)); !ready.ok()) return Told(ready);
  std::printf("begins with %zu\n", workers);
  std::vector<TypedValue<std::int64_t>> values;
  for (std::int64_t i = 1; i <= n; ++i) {
    auto value = one(i);
    if (!value.ok()) return Told(value.status());
    values.push_back(*std::move(value));
    runtime.Report("closure " + std::to_string(i));
  }
  std::int64_t sum = 0;
  for (const auto& value : values) {
    const Result<std::int64_t> got = value.Fetch(In(120));
    if (!got.ok()) return Told(got.status());
    sum += *got;
  }
  std::printf("sum %ld\n", static_cast<long>(sum));
  return Told(runtime.dispatch().Join(In(60)));
}

// Each round's sum is known: one closure lost or counted twice shows.
int Rounds(muster::program::Runtime& runtime, const std::string& file) {
  constexpr std::int64_t kClosures = 1'000;
  if (const Status ready = runtime.AwaitWorkers(2, In(60)); !ready.ok()) return Told(ready);
  std::printf("rounds begin\n");
  std::int64_t round = 0;
  do {
    runtime.Report("round " + std::to_string(++round));
    std::vector<TypedValue<std::int64_t>> values;
    for (std::int64_t i = 1; i <= kClosures; ++i) {
      auto value = Schedule<&Same>(runtime.dispatch(), i);
      if (!value.ok()) return Told(value.status());
      values.push_back(*std::move(value));
    }
    std::int64_t sum = 0;
    for (const auto& value : values) {
      const Result<std::int64_t> got = value.Fetch(In(120));
      if (!got.ok()) return Told(got.status());
      sum += *got;
    }
    if (sum != kClosures * (kClosures + 1) / 2) {
      std::printf("round %ld: sum %ld\n", static_cast<long>(round), static_cast<long>(sum));
      return 1;
    }
  } while (::access(file.c_str(), F_OK) != 0);
  std::printf("rounds exact\n");
  return Told(runtime.dispatch().Join(In(60)));
}

template <auto function, class... Given>
int JoinOne(muster::dispatch::Driver& driver, const Given&... given) {
  const auto value = Schedule<function>(driver, given...);
  if (!value.ok()) return Told(value.status());
  return Told(driver.Join());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const auto argument = [&](int i, long fallback) {
    return argc > i ? std::strtol(argv[i], nullptr, 10) : fallback;
  };
  if (mode == "no-init") return 0;
  if (mode == "no-init-hang") Hang();
  muster::program::Init(argc, argv);
  muster::program::Runtime& runtime = *muster::program::Driver();
  muster::dispatch::Driver& driver = runtime.dispatch();

  if (mode == "sum") {
    return Sum(runtime, argument(2, 1'000), static_cast<std::size_t>(argument(3, 1)),
               [&](std::int64_t i) { return Schedule<&Same>(driver, i); });
  }
  if (mode == "counted" && argc > 3) {
    const std::string file = argv[3];
    return Sum(runtime, argument(2, 1'000), 1,
               [&](std::int64_t i) { return Schedule<&Counted>(driver, i, file); });
  }
  if (mode == "object") {
    std::int64_t sum = 0;
    for (std::int64_t i = 1; i <= argument(2, 10); ++i) {
      const auto value = Schedule<&AddUp>(driver, i);
      if (!value.ok()) return Told(value.status());
      const Result<std::int64_t> got = value->Fetch(In(120));
      if (!got.ok()) return Told(got.status());
      sum = *got;
    }
    // This process's own has had none of it.
    const auto own = muster::dispatch::ProgramObject<Tally>();
    if (!own.ok()) return Told(own.status());
    std::printf("object %ld, own %ld\n", static_cast<long>(sum), static_cast<long>((*own)->sum));
    return 0;
  }
  if (mode == "rounds" && argc > 2) return Rounds(runtime, argv[2]);
  if (mode == "sleep") return JoinOne<&Sleep>(driver, argument(2, 1'000));
  if (mode == "print") {
    const long lines = argument(2, 10);
    for (long i = 0; i < lines; ++i) std::printf("driver line %ld\n", i);
    return JoinOne<&Print>(driver, lines);
  }
  if (mode == "fail") return static_cast<int>(argument(2, 3));
  if (mode == "throw") throw std::runtime_error("thrown by main");
  if (mode == "throw-closure") return JoinOne<&Throw>(driver);
  if (mode == "segfault") return JoinOne<&Segfault>(driver);
  if (mode == "exit-closure") return JoinOne<&Exit>(driver, static_cast<int>(argument(2, 4)));
  if (mode == "hang") return JoinOne<&Hang>(driver);
  if (mode == "stop") {
    std::printf("runs until it is to stop\n");
    while (!runtime.stop_requested().stop_requested()) ::usleep(10'000);
    std::printf("stops as asked\n");
    return 0;
  }
  std::fprintf(stderr, "closures: no mode \"%s\"; see tests/programs/closures.cc\n", mode.c_str());
  return 64;
}
