// A driver and executors over real sockets.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>

#include "dispatch/wire.h"
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/support/no_descriptors.h"
#include "tests/unit/dispatch/doors.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a value is fetched and join returns when all have ended",
          "[dispatch][unit][CCO-06][CCO-07]") {
  const net::LinkKind kind = GENERATE(net::LinkKind::kUnix, net::LinkKind::kTcp);
  const std::uint32_t slots = GENERATE(1, 3);
  Program program;
  RunningExecutor a(program.functions, kind, slots);
  RunningExecutor b(program.functions, kind, slots);
  Driver driver(DriverOptions(program.functions));
  CHECK(driver.Join(Soon()).ok());  // nothing is scheduled
  REQUIRE(ToString(ConnectTo(driver, "worker:0", a)) == "OK");
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());

  const std::int64_t number = 21;
  auto value = driver.Schedule(program.twice, BytesOfValue(number), Soon());
  REQUIRE(value.ok());
  const auto fetched = driver.Fetch(*value, Soon());
  REQUIRE(fetched.ok());
  CHECK(NumberIn(*fetched) == 42);

  for (int i = 0; i < 20'000; ++i) REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  REQUIRE(ToString(driver.Join(Soon())) == "OK");
  CHECK(program.counted == 20'000);
  CHECK(driver.Done().value());
  CHECK(driver.Join(Soon()).ok());
  CHECK(driver.counts().succeeded == 20'001);
  CHECK(driver.counts().settled == ClosureId(20'001));
}

TEST_CASE("closures go on while nobody waits for them", "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  for (int i = 0; i < 1'000; ++i) REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  const TimePoint end = Soon();
  while (program.counted < 1'000 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  CHECK(program.counted == 1'000);
}

TEST_CASE("many threads schedule and fetch at once", "[dispatch][unit]") {
  Program program;
  RunningExecutor a(program.functions, net::LinkKind::kUnix, 2);
  RunningExecutor b(program.functions, net::LinkKind::kTcp, 1);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", a).ok());
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 200; ++i) {
        const std::int64_t number = 1'000 * t + i;
        auto value = driver.Schedule(program.twice, BytesOfValue(number), Soon());
        if (!value.ok()) continue;
        const RemoteValue copy = *value;
        const auto fetched = driver.Fetch(copy, Soon());
        if (fetched.ok() && NumberIn(*fetched) == 2 * number) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 1'600);
  CHECK(driver.Join(Soon()).ok());
  CHECK(driver.counts().futures == 0);
}

TEST_CASE("the user's error is returned once, with its origin, and all is new afterwards",
          "[dispatch][unit][CCE-01][CCE-02]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
    const auto bad = driver.Schedule(round == 0 ? program.fail : program.thrower, {}, Soon());
    REQUIRE(bad.ok());

    const Status status = driver.Join(Soon());

    CHECK(status.code() == (round == 0 ? StatusCode::kUnavailable : StatusCode::kUnknown));
    const auto error = ErrorOf(status);
    REQUIRE(error.has_value());
    CHECK(error->origin == Origin::kUser);
    CHECK(error->task == "worker:0");
    CHECK(driver.Fetch(*bad, Soon()).status().code() == status.code());
    CHECK(driver.Join(Soon()).ok());
    CHECK(program.counted == 3 * (round + 1));
  }
}

TEST_CASE("a failure cancels what runs and what waits", "[dispatch][unit][CCE-04][CCE-05]") {
  Program program;
  RunningExecutor a(program.functions, net::LinkKind::kUnix);
  RunningExecutor b(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", a).ok());
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());
  const auto slow = driver.Schedule(program.wait, {}, Soon());
  REQUIRE(slow.ok());
  program.gate.AwaitArrivals(1);
  const auto failing = driver.Schedule(program.fail, {}, Soon());
  std::vector<RemoteValue> queued;
  for (int i = 0; i < 20; ++i) {
    auto one = driver.Schedule(program.wait, {}, Soon());
    if (!one.ok()) break;  // the error came already, here
    queued.push_back(*one);
  }
  (void)driver.Join(Soon());

  CHECK(driver.Fetch(*slow, Soon()).status().code() == StatusCode::kCancelled);
  for (const RemoteValue& one : queued) {
    CHECK(driver.Fetch(one, Soon()).status().code() == StatusCode::kCancelled);
  }
  CHECK(driver.counts().in_flight == 0);
  CHECK(driver.Schedule(program.empty, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
}

TEST_CASE("closures of an executor that is gone run elsewhere, a zombie changes nothing",
          "[dispatch][unit][CCF-02]") {
  Program program;
  auto lost = std::make_unique<RunningExecutor>(program.functions, net::LinkKind::kUnix);
  RunningExecutor stays(program.functions, net::LinkKind::kTcp);
  std::mutex mutex;
  std::vector<std::string> told;
  Driver::Options options = DriverOptions(program.functions);
  options.on_lost = [&](const std::string& task, Incarnation, const Status&) {
    const std::lock_guard lock(mutex);
    told.push_back(task);
  };
  Driver driver(std::move(options));
  REQUIRE(ConnectTo(driver, "worker:0", *lost).ok());
  std::vector<RemoteValue> values;
  for (std::int64_t i = 0; i < 10; ++i) {
    auto value = driver.Schedule(i == 0 ? program.wait : program.twice, BytesOfValue(i), Soon());
    REQUIRE(value.ok());
    values.push_back(*value);
  }
  program.gate.AwaitArrivals(1);
  REQUIRE(ConnectTo(driver, "worker:1", stays).ok());
  driver.Disconnect("worker:0", Unavailable("its network is cut"));
  program.gate.AwaitArrivals(2);
  program.gate.Open();

  CHECK(ToString(driver.Join(Soon())) == "OK");
  for (std::int64_t i = 1; i < 10; ++i) {
    CHECK(NumberIn(driver.Fetch(values[i], Soon()).value()) == 2 * i);
  }
  CHECK(driver.counts().succeeded == 10);
  lost.reset();
  const std::lock_guard lock(mutex);
  CHECK(told == std::vector<std::string>{"worker:0"});
}

TEST_CASE("a place of data that is too long to be kept fails the closure that leaves it",
          "[dispatch][unit]") {
  Program program;
  const std::uint32_t leave = program.functions.Add("leave", [](ClosureContext& context) {
    const auto bytes = static_cast<std::size_t>(NumberIn(context.arguments()));
    return context.LeaveBookmark(ClosureId(1), 1, std::string(bytes, 'x'));
  });
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());

  REQUIRE(driver.Schedule(leave, BytesOfValue(std::int64_t{65'536}), Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
  REQUIRE(driver.Schedule(leave, BytesOfValue(std::int64_t{65'537}), Soon()).ok());

  const Status status = driver.Join(Soon());
  CHECK(status.code() == StatusCode::kResourceExhausted);
  CHECK(ErrorOf(status)->origin == Origin::kUser);
  CHECK(Message(status).find("takes 65537 bytes, at most 65536 are kept") != std::string::npos);
}

TEST_CASE("a closure that runs longer than it may is given up, and its executor told to end",
          "[dispatch][unit]") {
  Program program;
  std::promise<std::string> stuck;
  Executor::Options options;
  options.on_stuck = [&](const std::string& what) { stuck.set_value(what); };
  RunningExecutor executor(program.functions, net::LinkKind::kUnix, 1, "key", std::move(options));
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  // One with time enough is not hurried.
  const auto quick = driver.Schedule(program.twice, BytesOfValue(std::int64_t{4}), Soon(), {}, 0,
                                     {.run_limit = std::chrono::hours(1)});
  CHECK(NumberIn(*quick->Fetch(Soon())) == 8);

  const auto endless = driver.Schedule(program.deaf, {}, Soon(), {}, 0, {.run_limit = 20ms});
  const Status status = endless->Fetch(Soon()).status();

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  const auto error = ErrorOf(status);
  REQUIRE(error);
  CHECK(error->origin == Origin::kUser);
  CHECK(error->task == "worker:0");
  CHECK(Message(status).find("closure 2: deaf has run for 20 ms") != std::string::npos);
  // It fails the queue as any error does, though its function goes on.
  CHECK(driver.Join(Soon()).code() == StatusCode::kDeadlineExceeded);
  CHECK(driver.Join(Soon()).ok());
  auto told = stuck.get_future();
  REQUIRE(told.wait_until(Soon()) == std::future_status::ready);
  CHECK(told.get() == "closure 2: deaf has run for 20 ms, its deadline");
  program.gate.Open();
  const auto after = driver.Schedule(program.twice, BytesOfValue(std::int64_t{5}), Soon());
  CHECK(NumberIn(*after->Fetch(Soon())) == 10);
}

TEST_CASE("the only executor is lost and the next one takes over", "[dispatch][unit][CCF-05]") {
  Program program;
  auto first = std::make_unique<RunningExecutor>(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", *first).ok());
  REQUIRE(driver.Schedule(program.wait, {}, Soon()).ok());
  REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  first.reset();
  CHECK(driver.Join(std::chrono::steady_clock::now() + 50ms).code() ==
        StatusCode::kDeadlineExceeded);

  RunningExecutor second(program.functions, net::LinkKind::kUnix);
  program.gate.Open();
  REQUIRE(ConnectTo(driver, "worker:0", second).ok());

  CHECK(ToString(driver.Join(Soon())) == "OK");
  CHECK(program.counted == 1);
}

// Proves itself, takes one closure at a time, and then reads nothing any more.
class StoppedExecutor {
 public:
  explicit StoppedExecutor(const net::Listener& listener) {
    thread_ = std::thread([this, &listener] {
      auto accepted = net::Accept(std::span(&listener, 1), -1, Millis(20'000));
      if (!accepted.ok()) return;
      fd_ = std::move(accepted->fd);
      net::Channel channel(net::Fd(::dup(fd_.get())), listener.kind, "driver", net::SpinMode::kOff,
                           nullptr);
      (void)net::WelcomeClient(channel, {.token = "key", .host_id = "host"}, Soon(),
                               [](const net::Hello&) { return Ok(); });
      (void)channel.ReadFrame(Soon());
      const WireRecord credit{.function = 1};
      (void)channel.Send({.kind = static_cast<net::FrameKind>(Verb::kCredit)},
                         std::as_bytes(std::span(&credit, 1)), {}, Soon());
    });
  }
  ~StoppedExecutor() { thread_.join(); }

 private:
  net::Fd fd_;
  std::thread thread_;
};

TEST_CASE(
    "an executor that stands still loses its closures to the others, though its kernel answers",
    "[dispatch][unit]") {
  Program program;
  const auto listener = net::ListenTcp("127.0.0.1:0");
  REQUIRE(listener.ok());
  StoppedExecutor stopped(*listener);
  RunningExecutor works(program.functions, net::LinkKind::kUnix);
  std::mutex mutex;
  Status why;
  Driver::Options options = DriverOptions(program.functions);
  options.link.ping_every = 50ms;
  options.link.silence = 200ms;
  options.on_lost = [&](const std::string&, Incarnation, const Status& status) {
    const std::lock_guard lock(mutex);
    why = status;
  };
  Driver driver(std::move(options));
  constexpr Incarnation kFirst(1);
  REQUIRE(driver.Connect("worker:0", kFirst, listener->kind, listener->address, Soon()).ok());
  REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  REQUIRE(ConnectTo(driver, "worker:1", works).ok());

  CHECK(ToString(driver.Join(Soon())) == "OK");

  CHECK(program.counted == 1);
  const std::lock_guard lock(mutex);
  CHECK(why.code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("an executor refuses a wrong key, another program and a superseded driver",
          "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kTcp);
  Driver::Options options = DriverOptions(program.functions);
  options.identity.token = "guess";
  Driver stranger(options);
  CHECK(ConnectTo(stranger, "worker:0", executor).code() == StatusCode::kUnauthenticated);

  options = DriverOptions(program.functions);
  ++options.functions;
  Driver other(options);
  CHECK(ConnectTo(other, "worker:0", executor).code() == StatusCode::kInvalidArgument);

  options = DriverOptions(program.functions);
  options.dispatch.incarnation = 2;
  Driver newer(options);
  REQUIRE(ConnectTo(newer, "worker:0", executor).ok());
  Driver older(DriverOptions(program.functions));
  CHECK(ConnectTo(older, "worker:0", executor).code() == StatusCode::kAborted);
  REQUIRE(newer.Schedule(program.count, {}, Soon()).ok());
  CHECK(newer.Join(Soon()).ok());
}

TEST_CASE("a new driver takes an executor over from one that hangs on to it", "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver old(DriverOptions(program.functions));
  REQUIRE(ConnectTo(old, "worker:0", executor).ok());
  REQUIRE(old.Schedule(program.wait, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  Driver::Options options = DriverOptions(program.functions);
  options.dispatch.incarnation = 2;
  Driver driver(options);

  REQUIRE(ToString(ConnectTo(driver, "worker:0", executor)) == "OK");  // what ran was cancelled

  REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
  CHECK(program.counted == 1);
}

TEST_CASE("each worker builds its own value before closures use it", "[dispatch][unit][CCO-17]") {
  Program program;
  RunningExecutor a(program.functions, net::LinkKind::kUnix, 2);
  RunningExecutor b(program.functions, net::LinkKind::kUnix, 2);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", a).ok());
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());

  const std::int64_t argument = 1;
  const ClosureId value = *driver.CreatePerWorker(program.build, BytesOfValue(argument));
  const std::uint64_t id = value.value();
  std::set<std::int64_t> seen;
  std::vector<RemoteValue> uses;
  for (int i = 0; i < 50; ++i)
    uses.push_back(*driver.Schedule(program.use, BytesOfValue(id), Soon()));
  for (const RemoteValue& use : uses) seen.insert(NumberIn(driver.Fetch(use, Soon()).value()));

  CHECK(seen == std::set<std::int64_t>{101, 102});
  CHECK(driver.AwaitPerWorker(value, "worker:0", Soon()).ok());
  CHECK(driver.AwaitPerWorker(value, "worker:7", Soon()).status().code() == StatusCode::kNotFound);
  driver.ReleasePerWorker(value);
  CHECK(driver.AwaitPerWorker(value, "worker:0", Soon()).status().code() == StatusCode::kNotFound);
}

TEST_CASE("a closure whose per-worker value could not be built fails as its input",
          "[dispatch][unit][CCE-07]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  const std::uint64_t id = driver.CreatePerWorker(program.build, {})->value();
  CHECK(driver.AwaitPerWorker(ClosureId(id), "worker:0", Soon()).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(driver.Join(Soon()).ok());  // nobody has used it

  const auto use = driver.Schedule(program.use, BytesOfValue(id), Soon());
  const Status status = driver.Join(Soon());

  REQUIRE(ErrorOf(status).has_value());
  CHECK(ErrorOf(status)->origin == Origin::kInput);
  CHECK(ErrorOf(driver.Fetch(*use, Soon()).status())->origin == Origin::kInput);
}

TEST_CASE("a per-worker value that takes long to end holds up no closure and no link",
          "[dispatch][unit]") {
  Program program;
  struct Slow {
    explicit Slow(Gate& at) : gate(at) {}
    ~Slow() { gate.PassDeaf(); }
    Gate& gate;
  };
  const std::uint32_t build = program.functions.Add("slow", [&](ClosureContext& context) {
    context.Build(std::make_shared<Slow>(program.gate));
    return Ok();
  });
  RunningExecutor executor(program.functions, net::LinkKind::kUnix, 2);
  struct Opens {
    ~Opens() { gate.Open(); }
    Gate& gate;
  } opens{program.gate};  // also where this test fails
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  const ClosureId value = *driver.CreatePerWorker(build, {});
  REQUIRE(driver.AwaitPerWorker(value, "worker:0", Soon()).ok());

  driver.ReleasePerWorker(value);
  program.gate.AwaitArrivals(1);

  // Who watches over the executor sees what runs.
  CHECK(executor.executor().running().Now().size() == 1);
  for (int i = 0; i < 100; ++i) REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  CHECK(ToString(driver.Join(Soon())) == "OK");
  CHECK(program.counted == 100);
  CHECK(driver.counts().losses == 0);
}

TEST_CASE(
    "a fetch of what another closure's error leaves behind ends, and the error is still raised",
    "[dispatch][unit][CCE-05]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  REQUIRE(driver.Schedule(program.wait, {}, Soon()).ok());
  program.gate.AwaitArrivals(1);
  REQUIRE(driver.Schedule(program.fail, {}, Soon()).ok());
  std::vector<RemoteValue> behind;
  // More than a worker is given ahead.
  for (int i = 0; i < 1'000; ++i) behind.push_back(*driver.Schedule(program.empty, {}, Soon()));
  program.gate.Open();

  const Status fetched = driver.Fetch(behind.back(), Soon()).status();

  CHECK(fetched.code() == StatusCode::kCancelled);
  CHECK(ErrorOf(fetched).has_value());
  CHECK(Message(driver.Join(Soon())) == "closure 2: the user's own");
  CHECK(driver.Fetch(behind.back(), Soon()).status() == fetched);
  REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
}

TEST_CASE("large values of closures that run at the same time each come in a frame that is taken",
          "[dispatch][unit]") {
  // Over TCP a frame takes its time to be summed, and results gather meanwhile.
  Program program;
  constexpr std::size_t kLarge = std::size_t{70} << 20;
  const std::uint32_t large = program.functions.Add("large", [&](ClosureContext& context) {
    context.value().resize(kLarge);
    return Ok();
  });
  // Under a sanitizer seconds, in which nothing else is heard of either side.
  Executor::Options executes;
  Driver::Options options = DriverOptions(program.functions);
  executes.link.silence = options.link.silence = Millis(60'000);
  RunningExecutor executor(program.functions, net::LinkKind::kTcp, 4, "key", executes);
  Driver driver(options);
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  std::vector<RemoteValue> values;
  for (int i = 0; i < 16; ++i) values.push_back(*driver.Schedule(large, {}, Soon()));

  for (RemoteValue& value : values) {
    const auto fetched = driver.Fetch(value, Soon());
    REQUIRE(ToString(fetched.status()) == "OK");
    CHECK(fetched->size() == kLarge);
    value = {};
  }
  CHECK(driver.counts().losses == 0);
}

TEST_CASE("large arguments and values pass both ways at once", "[dispatch][unit]") {
  const net::LinkKind kind = GENERATE(net::LinkKind::kUnix, net::LinkKind::kTcp);
  Program program;
  RunningExecutor executor(program.functions, kind);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  const std::vector<std::byte> large(6 << 20, std::byte{7});
  std::vector<RemoteValue> values;
  for (int i = 0; i < 8; ++i) values.push_back(*driver.Schedule(program.echo, large, Soon()));
  for (const RemoteValue& value : values)
    CHECK(std::ranges::equal(driver.Fetch(value, Soon()).value(), large));
  CHECK(driver.Schedule(program.echo, std::vector<std::byte>(kMostBytes + 1), Soon())
            .status()
            .code() == StatusCode::kInvalidArgument);
  // Such a build would end every link that it goes out on.
  const Status build =
      driver.CreatePerWorker(program.build, std::vector<std::byte>(kMostBytes + 1)).status();
  CHECK(build.code() == StatusCode::kInvalidArgument);
  CHECK(Message(build) ==
        "arguments of 134217729 bytes for a per-worker value, at most 134217728 fit");
}

TEST_CASE("schedule waits while the queue is full", "[dispatch][unit][CCO-22]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver::Options options = DriverOptions(program.functions);
  options.dispatch.capacity = 2;
  Driver driver(std::move(options));
  REQUIRE(driver.Schedule(program.count, {}).ok());
  REQUIRE(driver.Schedule(program.count, {}).ok());
  CHECK(
      driver.Schedule(program.count, {}, std::chrono::steady_clock::now() + 20ms).status().code() ==
      StatusCode::kDeadlineExceeded);
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  for (int i = 0; i < 500; ++i) REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
  CHECK(program.counted == 502);
}

TEST_CASE("a number that is no function is an error of the closure", "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(program.functions));
  REQUIRE(ConnectTo(driver, "worker:0", executor).ok());
  REQUIRE(driver.Schedule(99, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("strangers that say nothing hold up no driver", "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  std::vector<net::Fd> strangers;
  for (int i = 0; i < 40; ++i) {
    auto stranger = net::ConnectUnix(executor.address(), Soon());
    REQUIRE(stranger.ok());
    strangers.push_back(*std::move(stranger));
  }
  Driver driver(DriverOptions(program.functions));

  // Far below what each of them may take for its proof.
  const auto begin = std::chrono::steady_clock::now();
  while (!ConnectTo(driver, "worker:0", executor).ok()) {
    REQUIRE(std::chrono::steady_clock::now() - begin < 20s);
  }

  REQUIRE(driver.Schedule(program.count, {}, Soon()).ok());
  CHECK(driver.Join(Soon()).ok());
}

TEST_CASE("an executor without descriptors serves again when there are some", "[dispatch][unit]") {
  Program program;
  RunningExecutor executor(program.functions, net::LinkKind::kUnix);
  const net::Fd late(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  executor.address().copy(address.sun_path, sizeof(address.sun_path) - 1);
  testing::KnockWithoutDescriptors(late.get(), address, 250, [] {});
}

TEST_CASE("an executor that drains gets no more, others do its work", "[dispatch][unit]") {
  Program draining;
  Program staying;
  RunningExecutor a(draining.functions, net::LinkKind::kUnix);
  RunningExecutor b(staying.functions, net::LinkKind::kUnix);
  Driver driver(DriverOptions(staying.functions));
  REQUIRE(ConnectTo(driver, "worker:0", a).ok());
  REQUIRE(ConnectTo(driver, "worker:1", b).ok());
  const auto run = [&](int n) {
    const int before = draining.counted;
    for (int i = 0; i < n; ++i) REQUIRE(driver.Schedule(staying.count, {}, Soon()).ok());
    REQUIRE(driver.Join(Soon()).ok());
    return draining.counted - before;
  };
  CHECK(run(1'000) > 0);

  a.executor().Drain();

  const TimePoint limit = Soon();
  while (run(100) > 0) REQUIRE(std::chrono::steady_clock::now() < limit);
  CHECK(run(1'000) == 0);
  // Nor does it take a driver that comes now.
  Driver late(DriverOptions(staying.functions));
  CHECK(ConnectTo(late, "worker:0", a).code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::dispatch
