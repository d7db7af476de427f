#include "common/process/message_pipe.h"

#include <array>
#include <memory>
#include <string>
#include <thread>

#include <sys/socket.h>

#include "muster/v1/common.pb.h"
#include "tests/support/catch.h"

namespace muster::process {
namespace {

struct Pair {
  std::unique_ptr<MessagePipe> a, b;
};

Pair MakePipes() {
  const auto ends = MessagePipe::MakePair().value();
  return {std::make_unique<MessagePipe>(ends.first), std::make_unique<MessagePipe>(ends.second)};
}

v1::StatusProto Text(std::string text) {
  v1::StatusProto message;
  message.set_message(std::move(text));
  return message;
}

void WriteRaw(const MessagePipe& pipe, const std::string& bytes) {
  REQUIRE(send(pipe.descriptor(), bytes.data(), bytes.size(), 0) ==
          static_cast<ssize_t>(bytes.size()));
}

TEST_CASE("messages arrive whole and in order, larger than the socket's buffer too",
          "[process][unit]") {
  const Pair pipes = MakePipes();
  std::array<Status, 3> sent;
  std::thread sender([&] {
    sent[0] = pipes.a->Send(Text("first"));
    sent[1] = pipes.a->Send(v1::StatusProto());
    sent[2] = pipes.a->Send(Text(std::string(5'000'000, 'x')));
  });

  v1::StatusProto first, empty, large;
  CHECK(pipes.b->Receive(first).ok());
  CHECK(pipes.b->Receive(empty).ok());
  CHECK(pipes.b->Receive(large, Millis(10'000)).ok());
  sender.join();

  for (const Status& status : sent) CHECK(status.ok());
  CHECK(first.message() == "first");
  CHECK(empty.message().empty());
  CHECK(large.message().size() == 5'000'000);
}

TEST_CASE("a peer that closes between messages is unavailable, within one data loss",
          "[process][unit]") {
  v1::StatusProto message;
  Pair clean = MakePipes();
  clean.a.reset();
  CHECK(clean.b->Receive(message).code() == StatusCode::kUnavailable);
  CHECK(clean.b->Send(Text("x")).code() == StatusCode::kUnavailable);

  Pair torn = MakePipes();
  WriteRaw(*torn.a, std::string("\x05\0\0\0ab", 6));
  torn.a.reset();
  CHECK(torn.b->Receive(message).code() == StatusCode::kDataLoss);
}

TEST_CASE("an oversized length and bytes that are no message are data loss", "[process][unit]") {
  v1::StatusProto message;
  const Pair oversized = MakePipes();
  WriteRaw(*oversized.a, "\xff\xff\xff\xff");
  CHECK(oversized.b->Receive(message).code() == StatusCode::kDataLoss);

  const Pair garbage = MakePipes();
  WriteRaw(*garbage.a, std::string("\x02\0\0\0\xff\xff", 6));
  CHECK(garbage.b->Receive(message).code() == StatusCode::kDataLoss);
}

TEST_CASE("a silent peer runs into the deadline, and shutdown wakes a waiting receive",
          "[process][unit]") {
  const Pair pipes = MakePipes();
  v1::StatusProto message;
  CHECK(pipes.b->Receive(message, Millis(1)).code() == StatusCode::kDeadlineExceeded);
  CHECK(pipes.a->Send(Text("late")).ok());
  CHECK(pipes.b->Receive(message, Millis(5'000)).ok());
  CHECK(message.message() == "late");

  Status woken;
  std::thread waiter([&] { woken = pipes.b->Receive(message); });
  pipes.b->Shutdown();
  waiter.join();
  CHECK(woken.code() == StatusCode::kUnavailable);
}

TEST_CASE("a peer that does not read runs a send into its deadline", "[process][unit]") {
  const Pair pipes = MakePipes();

  const Status status = pipes.a->Send(Text(std::string(8'000'000, 'x')), Millis(10));

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(pipes.a->Send(Text("x")).code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::process
