#include "services/trainer/driver_pipe.h"

#include <atomic>
#include <thread>

#include "tests/support/catch.h"

namespace muster::trainer {
namespace {

constexpr Millis kAnswered{30'000};

// A driver's end of a pipe, and the coordinator's.
struct Ends {
  Ends() {
    const auto pair = process::MessagePipe::MakePair();
    REQUIRE(pair.ok());
    coordinator = std::make_unique<process::MessagePipe>(pair->first);
    own = std::make_unique<process::MessagePipe>(pair->second);
    v1::ProgramStart start;
    start.set_job_id("words-1");
    start.set_incarnation(5);
    driver = std::make_unique<DriverPipe>(*own, start, [this](const Status&) { closed = true; });
  }
  v1::DriverCall Asked() {
    v1::FromProgram message;
    REQUIRE(coordinator->Receive(message, kAnswered).ok());
    REQUIRE(message.has_call());
    return message.call();
  }
  void Answer(std::uint64_t number, std::uint64_t steps_done) {
    v1::ToProgram message;
    message.mutable_answer()->set_number(number);
    message.mutable_answer()->mutable_open_job()->set_steps_done(steps_done);
    REQUIRE(coordinator->Send(message).ok());
  }

  std::atomic<bool> closed{false};
  std::unique_ptr<process::MessagePipe> coordinator;
  std::unique_ptr<process::MessagePipe> own;
  std::unique_ptr<DriverPipe> driver;
};

TEST_CASE_METHOD(Ends, "a call is answered among other messages, which keep their order",
                 "[trainer][unit]") {
  std::thread serving([this] {
    const v1::DriverCall call = Asked();
    CHECK(call.open_job().job_id() == "words-1");
    CHECK(call.open_job().driver() == 5);
    Answer(call.number() + 7, 1);  // of no call of this driver's
    for (const std::uint64_t pace : {1, 2, 3}) {
      v1::ToProgram message;
      message.mutable_pace()->set_number(pace);
      REQUIRE(coordinator->Send(message).ok());
    }
    // By then the wrong answer has come, too.
    CHECK(driver->Next()->pace().number() == 1);
    Answer(call.number(), 2);
  });

  const auto opened = driver->OpenJob();
  serving.join();

  REQUIRE(opened.ok());
  CHECK(opened->steps_done() == 2);
  CHECK(driver->Next()->pace().number() == 2);
  CHECK(driver->Next()->pace().number() == 3);
}

TEST_CASE_METHOD(Ends, "a refusal is the call's error, as it was said", "[trainer][unit]") {
  std::thread serving([this] {
    const v1::DriverCall call = Asked();
    CHECK(call.finish_job().view() == 3);
    v1::ToProgram message;
    message.mutable_answer()->set_number(call.number());
    message.mutable_answer()->mutable_status()->set_code(static_cast<int>(StatusCode::kAborted));
    message.mutable_answer()->mutable_status()->set_message("another process drives it");
    REQUIRE(coordinator->Send(message).ok());
  });

  const Status finished = driver->Finish(ViewId(3), Ok(), nullptr, {});
  serving.join();

  CHECK(finished == Aborted("another process drives it"));
}

TEST_CASE_METHOD(Ends, "a coordinator that goes ends what waits for it", "[trainer][unit]") {
  std::thread serving([this] {
    (void)Asked();
    coordinator->Shutdown();
  });

  const auto saved = driver->SaveCheckpoint(ViewId(1), 10, {});
  serving.join();

  CHECK(saved.status().code() == StatusCode::kUnavailable);
  CHECK(Message(saved.status()) == "coordinator: the pipe to it has closed");
  CHECK_FALSE(driver->Next().has_value());
  driver.reset();
  CHECK(closed);
}

}  // namespace
}  // namespace muster::trainer
