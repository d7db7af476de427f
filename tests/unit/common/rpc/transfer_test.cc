// A transfer in time that stands still, without the call that it guards.
#include "common/rpc/transfer.h"

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::rpc {
namespace {

struct Fixture {
  FakeScheduler time;
  int cancelled = 0;
  Transfer transfer{time, Millis(60'000), [this] { ++cancelled; }, 600 << 20};

  void Move(std::uint64_t bytes, Millis takes) {
    transfer.Waits();
    time.Advance(takes);
    transfer.Went(bytes);
  }
};

TEST_CASE_METHOD(Fixture, "a transfer may take a day, as long as it moves", "[rpc][unit]") {
  for (int i = 0; i < 2'000; ++i) Move(1 << 10, Millis(59'999));

  CHECK(cancelled == 0);
  CHECK(transfer.Explain(Ok()).ok());
}

TEST_CASE_METHOD(Fixture,
                 "a transfer in which nothing moves is ended, and says how far it had come",
                 "[rpc][unit]") {
  Move(12 << 20, Millis(1));
  transfer.Waits();
  time.Advance(Millis(59'999));
  CHECK(cancelled == 0);
  time.Advance(Millis(1));
  CHECK(cancelled == 1);
  transfer.Went(0);

  const Status said = transfer.Explain(Cancelled("by us"));
  CHECK(said.code() == StatusCode::kUnavailable);
  CHECK(Message(said) == "nothing moved for 60 s, after 12.0 MiB of 600.0 MiB");
}

TEST_CASE_METHOD(Fixture, "what this end itself takes over a piece does not count", "[rpc][unit]") {
  Move(1 << 20, Millis(1));
  time.Advance(Millis(3'600'000));
  Move(1 << 20, Millis(1));

  CHECK(cancelled == 0);
}

TEST_CASE_METHOD(Fixture,
                 "a connection that breaks says how far it had come, other errors only why",
                 "[rpc][unit]") {
  CHECK(Message(transfer.Explain(Unavailable("no route"))) == "no route");
  Move(3 << 20, Millis(1));
  CHECK(Message(transfer.Explain(Unavailable("reset"))) == "reset (after 3.0 MiB of 600.0 MiB)");
  CHECK(Message(transfer.Explain(NotFound("no such file"))) == "no such file");
}

}  // namespace
}  // namespace muster::rpc
