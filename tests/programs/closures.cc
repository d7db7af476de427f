// A program for tests of programs: what it does is its first argument.
//
//   sum N [WORKERS]    adds up 1..N, a closure each, once so many executors are connected; prints
//                      "sum S"
//   counted N FILE     the same, and each execution appends a byte to the file
//   rounds FILE        sums of 1..1000 until the file is there; prints "rounds exact, the longest N
//                      ms"
//   sleep MS           one closure of that length
//   print LINES        prints so many lines in the driver and in a closure
//   flood MB           prints so many megabytes in a closure
//   fail CODE          main returns this
//   throw              an exception leaves main
//   fork CODE          main forks a process that exits and one that an exception leaves, and
//                      returns this when both have ended; prints "forked ones have ended"
//   throw-closure      an exception leaves a closure
//   segfault           a closure reads address 0
//   beside FOLDER      three closures that end when they run for a second time, and one that reads
//                      address 0 when those and it run; prints "beside S", the sum of the three
//   exit-closure CODE  a closure ends its process
//   hang               a closure that never ends, and does not look whether it is cancelled
//   object N           closures that count in the executor's own object; prints "object S"
//   no-init            main returns 0 before Init(): its probe says nothing
//   no-init-hang       main never comes to Init()
//   stop               runs until the job is to stop, then says so and ends
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/driver.h"
#include "dispatch/functions.h"
#include "program/runtime.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using muster::Ok;
using muster::Result;
using muster::Status;
using muster::TimePoint;
using muster::dispatch::ClosureContext;
using muster::dispatch::Driver;
using muster::dispatch::RemoteValue;

// Functions here take a number and a text and give a number: those of users, whose types travel,
// are strategy/cluster's.
using Function = std::int64_t (*)(std::int64_t number, const std::string& text);

std::vector<std::byte> Encode(std::int64_t number, const std::string& text) {
  std::vector<std::byte> bytes(sizeof(number) + text.size());
  std::memcpy(bytes.data(), &number, sizeof(number));
  std::memcpy(bytes.data() + sizeof(number), text.data(), text.size());
  return bytes;
}

std::int64_t NumberIn(std::span<const std::byte> bytes) {
  std::int64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

// Its number, in every process of this executable alike.
std::uint32_t Register(const char* name, Function function) {
  return muster::dispatch::ProgramFunctions().Add(name, [function](ClosureContext& context) {
    const std::span<const std::byte> given = context.arguments();
    const auto text = given.subspan(sizeof(std::int64_t));
    context.value() =
        Encode(function(NumberIn(given),
                        std::string(reinterpret_cast<const char*>(text.data()), text.size())),
               "");
    return Ok();
  });
}

// An object of each process; executors make it before they serve. CLOSURES_BROKEN in the
// environment: it cannot be made.
struct Tally {
  std::mutex mutex;
  std::optional<std::int64_t> sum;
  ~Tally() {
    const char* role = std::getenv("MUSTER_ROLE");
    if (role != nullptr && std::string(role) == "executor") std::printf("the tally is destroyed\n");
  }
};
Tally tally;

const bool tally_added = muster::dispatch::internal::AddProgramObject([]() -> Status {
  if (std::getenv("CLOSURES_BROKEN") != nullptr) return muster::Unknown("no tally here");
  const std::lock_guard lock(tally.mutex);
  if (!tally.sum) tally.sum = 100;
  return Ok();
});

std::int64_t AddUp(std::int64_t n, const std::string&) {
  const std::lock_guard lock(tally.mutex);
  return *tally.sum += n;
}

std::int64_t Same(std::int64_t n, const std::string&) { return n; }

std::int64_t Counted(std::int64_t n, const std::string& file) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  (void)!::write(fd, ".", 1);
  ::close(fd);
  return n;
}

std::int64_t Sleep(std::int64_t ms, const std::string&) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  return 0;
}

std::int64_t Print(std::int64_t lines, const std::string&) {
  for (std::int64_t i = 0; i < lines; ++i) std::printf("closure line %ld\n", static_cast<long>(i));
  return lines;
}

// So many megabytes, in lines of 1,000 bytes.
std::int64_t Flood(std::int64_t megabytes, const std::string&) {
  std::string lines;
  for (int i = 0; i < 1'000; ++i) lines += std::string(999, 'x') + "\n";
  for (std::int64_t i = 0; i < megabytes; ++i) {
    (void)std::fwrite(lines.data(), 1, lines.size(), stdout);
  }
  std::printf("flood ends\n");
  return megabytes;
}

std::int64_t Throw(std::int64_t, const std::string&) {
  throw std::runtime_error("thrown by a closure");
}

std::int64_t Segfault(std::int64_t, const std::string&) {
  std::fprintf(stderr, "about to read address 0\n");
  (void)std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would end it in another way
  (void)std::raise(SIGSEGV);
  return 0;
}

// Waking a thousand times a second would use the processor, which is not to stand still.
std::int64_t Hang(std::int64_t, const std::string&) {
  for (volatile bool on = true; on;) ::sleep(1);
  return 0;
}

bool IsThere(const std::string& file) { return ::access(file.c_str(), F_OK) == 0; }

void Touch(const std::string& file) { ::close(::open(file.c_str(), O_WRONLY | O_CREAT, 0600)); }

constexpr std::int64_t kInnocent = 3;

// Runs until its executor ends, the first time.
std::int64_t Innocent(std::int64_t n, const std::string& folder) {
  const std::string begun = folder + "/" + std::to_string(n);
  if (IsThere(begun)) return n;
  Touch(begun);
  return Hang(n, folder);
}

std::int64_t Guilty(std::int64_t n, const std::string& folder) {
  for (std::int64_t i = 1; i <= kInnocent; ++i) {
    while (!IsThere(folder + "/" + std::to_string(i))) ::usleep(1'000);
  }
  return Segfault(n, folder);
}

std::int64_t Exit(std::int64_t code, const std::string&) {
  std::printf("exits with %ld and no end of the line", static_cast<long>(code));
  std::exit(static_cast<int>(code));
}

const std::uint32_t kAddUp = Register("AddUp", AddUp);
const std::uint32_t kSame = Register("Same", Same);
const std::uint32_t kCounted = Register("Counted", Counted);
const std::uint32_t kSleep = Register("Sleep", Sleep);
const std::uint32_t kPrint = Register("Print", Print);
const std::uint32_t kFlood = Register("Flood", Flood);
const std::uint32_t kThrow = Register("Throw", Throw);
const std::uint32_t kSegfault = Register("Segfault", Segfault);
const std::uint32_t kExit = Register("Exit", Exit);
const std::uint32_t kHang = Register("Hang", Hang);
const std::uint32_t kInnocentOne = Register("Innocent", Innocent);
const std::uint32_t kGuilty = Register("Guilty", Guilty);

TimePoint In(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// Prints an error as tests look for it.
int Told(const Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "closures: %s\n", muster::ToString(status).c_str());
  return 1;
}

Result<RemoteValue> Schedule(Driver& driver, std::uint32_t function, std::int64_t number,
                             const std::string& text = "") {
  return driver.Schedule(function, Encode(number, text));
}

Result<std::int64_t> Fetch(Driver& driver, const RemoteValue& value) {
  MUSTER_TRY_ASSIGN(const muster::KeptBytes bytes, driver.Fetch(value, In(120)));
  return NumberIn(bytes);
}

Result<std::int64_t> SumOf(Driver& driver, const std::vector<RemoteValue>& values) {
  std::int64_t sum = 0;
  for (const RemoteValue& value : values) {
    MUSTER_TRY_ASSIGN(const std::int64_t got, Fetch(driver, value));
    sum += got;
  }
  return sum;
}

int Sum(muster::program::Runtime& runtime, std::int64_t n, std::size_t workers,
        std::uint32_t function, const std::string& file = "") {
  if (const Status ready = runtime.AwaitWorkers(workers, In(60)); !ready.ok()) return Told(ready);
  std::printf("begins with %zu\n", workers);
  std::vector<RemoteValue> values;
  for (std::int64_t i = 1; i <= n; ++i) {
    auto value = Schedule(runtime.dispatch(), function, i, file);
    if (!value.ok()) return Told(value.status());
    values.push_back(*std::move(value));
    runtime.Report("closure " + std::to_string(i));
  }
  const Result<std::int64_t> sum = SumOf(runtime.dispatch(), values);
  if (!sum.ok()) return Told(sum.status());
  std::printf("sum %ld\n", static_cast<long>(*sum));
  return Told(runtime.dispatch().Join(In(60)));
}

// Each round's sum is known: one closure lost or counted twice shows.
int Rounds(muster::program::Runtime& runtime, const std::string& file) {
  constexpr std::int64_t kClosures = 1'000;
  if (const Status ready = runtime.AwaitWorkers(2, In(60)); !ready.ok()) return Told(ready);
  std::printf("rounds begin\n");
  std::int64_t round = 0;
  std::chrono::milliseconds longest{0};
  do {
    const auto begun = std::chrono::steady_clock::now();
    runtime.Report("round " + std::to_string(++round));
    std::vector<RemoteValue> values;
    for (std::int64_t i = 1; i <= kClosures; ++i) {
      auto value = Schedule(runtime.dispatch(), kSame, i);
      if (!value.ok()) return Told(value.status());
      values.push_back(*std::move(value));
    }
    const Result<std::int64_t> sum = SumOf(runtime.dispatch(), values);
    if (!sum.ok()) return Told(sum.status());
    if (*sum != kClosures * (kClosures + 1) / 2) {
      std::printf("round %ld: sum %ld\n", static_cast<long>(round), static_cast<long>(*sum));
      return 1;
    }
    longest = std::max(longest, std::chrono::ceil<std::chrono::milliseconds>(
                                    std::chrono::steady_clock::now() - begun));
  } while (::access(file.c_str(), F_OK) != 0);
  std::printf("rounds exact, the longest %ld ms\n", static_cast<long>(longest.count()));
  return Told(runtime.dispatch().Join(In(60)));
}

// Closures on the executors' own tallies; this process's own has had none of it.
int Object(Driver& driver, std::int64_t n) {
  std::int64_t sum = 0;
  for (std::int64_t i = 1; i <= n; ++i) {
    const auto value = Schedule(driver, kAddUp, i);
    if (!value.ok()) return Told(value.status());
    const Result<std::int64_t> got = Fetch(driver, *value);
    if (!got.ok()) return Told(got.status());
    sum = *got;
  }
  if (const Status own = muster::dispatch::BuildProgramObjects(); !own.ok()) return Told(own);
  std::printf("object %ld, own %ld\n", static_cast<long>(sum), static_cast<long>(*tally.sum));
  return 0;
}

int Beside(Driver& driver, const std::string& folder) {
  std::vector<RemoteValue> values;
  for (std::int64_t i = 1; i <= kInnocent; ++i) {
    auto value = Schedule(driver, kInnocentOne, i, folder);
    if (!value.ok()) return Told(value.status());
    values.push_back(*std::move(value));
  }
  if (const auto guilty = Schedule(driver, kGuilty, 0, folder); !guilty.ok()) {
    return Told(guilty.status());
  }
  const Result<std::int64_t> sum = SumOf(driver, values);
  if (!sum.ok()) return Told(sum.status());
  std::printf("beside %ld\n", static_cast<long>(*sum));
  return Told(driver.Join(In(120)));
}

// Runs this in a process that is forked, until that has ended.
template <class Life>
void Fork(Life life) {
  const pid_t pid = ::fork();
  if (pid == 0) life();
  (void)::waitpid(pid, nullptr, 0);
}

int Forked(int code) {
  Fork([] { std::exit(7); });
  Fork([] { throw std::runtime_error("of a forked one"); });
  std::printf("forked ones have ended\n");
  return code;
}

int JoinOne(Driver& driver, std::uint32_t function, std::int64_t number = 0) {
  const auto value = Schedule(driver, function, number);
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
  if (mode == "no-init-hang") (void)Hang(0, "");
  muster::program::Init(argc, argv);
  muster::program::Runtime& runtime = *muster::program::Driver();
  Driver& driver = runtime.dispatch();

  if (mode == "sum") {
    return Sum(runtime, argument(2, 1'000), static_cast<std::size_t>(argument(3, 1)), kSame);
  }
  if (mode == "counted" && argc > 3) {
    return Sum(runtime, argument(2, 1'000), 1, kCounted, argv[3]);
  }
  if (mode == "object") return Object(driver, argument(2, 10));
  if (mode == "rounds" && argc > 2) return Rounds(runtime, argv[2]);
  if (mode == "sleep") return JoinOne(driver, kSleep, argument(2, 1'000));
  if (mode == "print") {
    const long lines = argument(2, 10);
    for (long i = 0; i < lines; ++i) std::printf("driver line %ld\n", i);
    return JoinOne(driver, kPrint, lines);
  }
  if (mode == "flood") return JoinOne(driver, kFlood, argument(2, 1));
  if (mode == "fail") return static_cast<int>(argument(2, 3));
  if (mode == "throw") {
    const auto dots = static_cast<std::size_t>(argument(2, 0));
    const std::string what = "thrown by main" + std::string(dots, '.');
    runtime.Report(what);
    throw std::runtime_error(what);
  }
  if (mode == "fork") return Forked(static_cast<int>(argument(2, 3)));
  if (mode == "throw-closure") return JoinOne(driver, kThrow);
  if (mode == "segfault") return JoinOne(driver, kSegfault);
  if (mode == "beside" && argc > 2) return Beside(driver, argv[2]);
  if (mode == "exit-closure") return JoinOne(driver, kExit, argument(2, 4));
  if (mode == "hang") return JoinOne(driver, kHang);
  if (mode == "stop") {
    std::printf("runs until it is to stop\n");
    while (!runtime.stop_requested().stop_requested()) ::usleep(10'000);
    std::printf("stops as asked\n");
    return 0;
  }
  std::fprintf(stderr, "closures: no mode \"%s\"; see tests/programs/closures.cc\n", mode.c_str());
  return 64;
}
