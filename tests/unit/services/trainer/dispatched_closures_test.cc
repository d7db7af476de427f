// A model's closures between a driver, the coordinator's end of its pipe and a real executor.
#include "services/trainer/dispatched_closures.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "dispatch/executor.h"
#include "program/model_functions.h"

#include "common/base/mutex.h"
#include "common/net/socket.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::trainer {
namespace {

constexpr Millis kWait{30'000};

struct Kept {
  Kept(int descriptor, const v1::OpenJobReply& opened) : pipe(descriptor) {
    start.set_job_id("job-1");
    start.set_epoch(3);
    start.set_incarnation(1);
    start.set_key("key");
    start.set_host_id("here");
    start.set_link("auto");
    api = std::make_unique<DriverPipe>(pipe, start, [](const Status&) {});
    closures = std::make_unique<DispatchedClosures>(start, *api, opened);
  }
  v1::ProgramStart start;
  process::MessagePipe pipe;
  std::unique_ptr<DriverPipe> api;
  std::unique_ptr<DispatchedClosures> closures;
};

// Two steps are done when it begins. Its threads end with the process.
struct Bench {
  explicit Bench(std::uint64_t scheduled = 2, std::uint32_t at_a_time = 1) {
    const auto pair = process::MessagePipe::MakePair();
    REQUIRE(pair.ok());
    coordinator = new process::MessagePipe(pair->first);
    v1::OpenJobReply opened;
    opened.set_steps_done(2);
    opened.set_scheduled(scheduled);
    opened.mutable_plan()->set_total_steps(100);
    static auto* const all = new std::vector<std::unique_ptr<Kept>>;
    all->push_back(std::make_unique<Kept>(pair->second, opened));
    static auto* const ends = new std::vector<process::MessagePipe*>;
    ends->push_back(coordinator);
    closures = all->back()->closures.get();

    const auto run = [this](dispatch::ClosureContext& context) -> Status {
      v1::ClosureAssignment assignment;
      if (!assignment.ParseFromArray(context.arguments().data(),
                                     static_cast<int>(context.arguments().size()))) {
        return InvalidArgument("no assignment");
      }
      ++begun;
      const std::uint64_t id = assignment.closure().id();
      {
        const MutexLock lock(mutex);
        while (held && (slow == 0 || slow == id)) changed.wait(mutex);
      }
      if (id >= fails_from) {
        // The first one fails when it is told that another one has.
        while (id == fails_from && !context.cancelled()) std::this_thread::yield();
        return DataLoss("the data of step {} are damaged", id);
      }
      v1::ClosureResult result;
      result.mutable_metrics()->set_examples(assignment.closure().id());
      result.set_executor(7);
      context.value().resize(result.ByteSizeLong());
      result.SerializeToArray(context.value().data(), static_cast<int>(context.value().size()));
      return Ok();
    };
    functions = program::ModelFunctions(run, run);
    auto listener = net::ListenUnix(folder / "socket");
    REQUIRE(listener.ok());
    listeners.push_back(*std::move(listener));
    auto made = dispatch::Executor::Create(
        {.identity = {.token = "key", .host_id = "here"}, .closures_at_a_time = at_a_time},
        functions);
    REQUIRE(made.ok());
    executor = *std::move(made);
    server = std::thread([this] { (void)executor->Serve(listeners); });
  }
  ~Bench() {
    Hold(false);
    SendMembers(false);
    executor->Stop();
    server.join();
  }

  void Hold(bool hold) {
    const MutexLock lock(mutex);
    held = hold;
    changed.notify_all();
  }
  void SendMembers(bool there) {
    v1::ToProgram message;
    v1::ProgramMembers& members = *message.mutable_members();
    members.set_version(++version);
    if (there) {
      v1::ProgramWorker& worker = *members.add_workers();
      worker.mutable_task()->set_type("worker");
      worker.set_incarnation(7);
      worker.mutable_endpoint()->set_unix_path(folder / "socket");
      worker.mutable_endpoint()->set_host_id("here");
    }
    REQUIRE(coordinator->Send(message).ok());
  }
  void SendPace(v1::ModelPace::Kind kind, std::uint64_t number) {
    v1::ToProgram message;
    message.mutable_pace()->set_kind(kind);
    message.mutable_pace()->set_number(number);
    REQUIRE(coordinator->Send(message).ok());
  }
  // The first message of which that is true.
  v1::FromProgram Await(const std::function<bool(const v1::FromProgram&)>& wanted) {
    for (;;) {
      v1::FromProgram message;
      REQUIRE(coordinator->Receive(message, kWait).ok());
      if (wanted(message)) return message;
    }
  }
  // Takes until so many have come.
  std::vector<v1::ClosureResult> Take(std::size_t count) {
    std::vector<v1::ClosureResult> results;
    while (results.size() < count) {
      auto some = closures->Take(Millis(50));
      REQUIRE(some.ok());
      results.insert(results.end(), some->begin(), some->end());
    }
    return results;
  }

  testing::TempFolder folder;
  process::MessagePipe* coordinator = nullptr;
  DispatchedClosures* closures = nullptr;
  dispatch::FunctionTable functions;
  std::vector<net::Listener> listeners;
  std::unique_ptr<dispatch::Executor> executor;
  std::thread server;
  std::atomic<int> begun{0};
  std::uint64_t version = 0;
  Mutex mutex;
  Condition changed;
  bool held MUSTER_GUARDED_BY(mutex) = false;
  std::uint64_t fails_from = 1'000;
  std::uint64_t slow = 0;  // only this one is held
};

TEST_CASE("The coordinator is told how far steps may be begun before any of them is given out",
          "[trainer][integration]") {
  Bench bench;
  REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 3, 6, 0).ok());
  const v1::FromProgram first = bench.Await([](const auto& one) { return one.has_model(); });
  CHECK(first.model().scheduled() == 6);
  CHECK(first.model().done() == 2);
  CHECK(bench.begun == 0);

  bench.SendMembers(true);
  const std::vector<v1::ClosureResult> results = bench.Take(4);
  for (std::size_t i = 0; i < results.size(); ++i) {
    CHECK(results[i].closure().id() == 3 + i);
    CHECK(results[i].metrics().examples() == 3 + i);
  }
  const v1::ModelReport position = bench.closures->Position();
  CHECK(position.done() == 6);
  REQUIRE(position.executors_size() == 1);
  CHECK(position.executors(0).executor() == 7);
  CHECK(position.executors(0).steps() == 4);

  SECTION("an evaluation has numbers of its own, and steps go on after it") {
    REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_EVALUATE, 1, 2, 5).ok());
    const auto scored = bench.Take(2);
    CHECK(scored[1].closure().kind() == v1::CLOSURE_KIND_EVALUATE);
    CHECK(scored[1].metrics().examples() == 2);
    REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 7, 7, 0).ok());
    CHECK(bench.Take(1)[0].metrics().examples() == 7);
    CHECK(bench.closures->Position().done() == 7);
  }
}

TEST_CASE("A driver that is to drain says so when what was given out is done",
          "[trainer][integration]") {
  Bench bench;
  bench.Hold(true);
  bench.SendMembers(true);
  REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 3, 90, 0).ok());
  while (bench.begun == 0) REQUIRE(bench.closures->Take(Millis(10)).ok());
  bench.SendPace(v1::ModelPace::KIND_DRAIN, 4);
  // It has read what came before its answer to this.
  v1::ToProgram verdict;
  verdict.mutable_verdict()->mutable_task()->set_type("worker");
  verdict.mutable_verdict()->mutable_task()->set_index(9);
  verdict.mutable_verdict()->set_number(1);
  REQUIRE(bench.coordinator->Send(verdict).ok());
  (void)bench.Await([](const auto& one) { return one.has_answer(); });
  CHECK(bench.closures->Position().drained() == 0);

  bench.Hold(false);
  std::uint64_t done = 2;
  while (bench.closures->Position().drained() != 4) {
    const auto some = bench.closures->Take(Millis(10));
    REQUIRE(some.ok());
    done += some->size();
  }
  CHECK(done < 90);
  CHECK(bench.closures->Position().done() == done);
  const v1::FromProgram told =
      bench.Await([](const auto& one) { return one.model().drained() == 4; });
  CHECK(told.model().done() == done);

  bench.SendPace(v1::ModelPace::KIND_FREE, 5);
  (void)bench.Take(90 - done);
  CHECK(bench.closures->Position().done() == 90);
}

TEST_CASE("A verdict is answered with what the executor had", "[trainer][integration]") {
  Bench bench;
  bench.Hold(true);
  bench.SendMembers(true);
  REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 3, 3, 0).ok());
  while (bench.begun == 0) REQUIRE(bench.closures->Take(Millis(10)).ok());

  v1::ToProgram message;
  v1::ExecutorVerdict& verdict = *message.mutable_verdict();
  verdict.mutable_task()->set_type("worker");
  verdict.set_incarnation(7);
  verdict.set_cause(v1::ExecutorVerdict::CAUSE_CRASHED);
  verdict.set_how("signal SIGSEGV");
  verdict.set_number(11);
  REQUIRE(bench.coordinator->Send(message).ok());
  const v1::FromProgram answered = bench.Await([](const auto& one) { return one.has_answer(); });
  CHECK(answered.answer().number() == 11);
  REQUIRE(answered.answer().closures_size() == 1);
  CHECK(answered.answer().closures(0).id() == 3);
  CHECK(answered.answer().closures(0).kind() == v1::CLOSURE_KIND_TRAIN);
  CHECK_FALSE(answered.answer().has_given_up());
}

TEST_CASE("The error of a job names the step that has failed first, whichever fail after it",
          "[trainer][integration]") {
  Bench bench(2, 2);
  bench.fails_from = 3;
  bench.SendMembers(true);
  REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 3, 4, 0).ok());

  Status failed;
  for (int takes = 0; failed.ok() && takes < 6'000; ++takes) {
    failed = bench.closures->Take(Millis(10)).status();
  }

  CHECK(failed.code() == StatusCode::kDataLoss);
  CHECK(Message(failed) == "closure 4 on worker:0: the data of step 4 are damaged");
}

TEST_CASE("Who takes waits for the oldest step though those after it have ended",
          "[trainer][integration]") {
  Bench bench(2, 4);
  bench.slow = 3;
  bench.Hold(true);
  bench.SendMembers(true);
  REQUIRE(bench.closures->Schedule(v1::CLOSURE_KIND_TRAIN, 3, 6, 0).ok());
  while (bench.begun < 4) REQUIRE(bench.closures->Take(Millis(10)).ok());
  REQUIRE(bench.closures->Take(Millis(50)).ok());

  const TimePoint begin = std::chrono::steady_clock::now();
  const auto none = bench.closures->Take(Millis(100));
  const auto took = std::chrono::steady_clock::now() - begin;

  REQUIRE(none.ok());
  CHECK(none->empty());
  CHECK(took >= Millis(100));
  bench.Hold(false);
  CHECK(bench.Take(4)[0].closure().id() == 3);
}

TEST_CASE("A driver is stopped by its pipe", "[trainer][integration]") {
  Bench bench;
  v1::ToProgram message;
  message.mutable_stop();
  REQUIRE(bench.coordinator->Send(message).ok());
  while (!bench.closures->stop_requested()) REQUIRE(bench.closures->Take(Millis(10)).ok());
}

}  // namespace
}  // namespace muster::trainer
