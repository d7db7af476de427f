#include "common/telemetry/event_file.h"

#include <cmath>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/event_reader.h"
#include "tests/support/small_files.h"
#include "tests/support/temp_folder.h"

namespace muster::telemetry {
namespace {

using testing::Event;
using testing::ReadEvents;

TEST_CASE("an event file reads back through the TFRecord reader", "[telemetry][unit]") {
  const testing::TempFolder folder;
  auto file = EventFile::Create(folder / "logs/train");
  REQUIRE(file.ok());
  const std::chrono::system_clock::time_point time{std::chrono::milliseconds(1'767'340'800'250)};
  REQUIRE((*file)->Scalar("loss", 0, 2.5F, time).ok());
  REQUIRE((*file)->Scalar("accuracy/\xc3\xa4", 300, -0.0F, time).ok());
  REQUIRE((*file)->Scalar("loss", std::int64_t{1} << 40, 1e-30F, time).ok());
  REQUIRE((*file)->Close().ok());

  const std::vector<Event> events = ReadEvents((*file)->path());

  REQUIRE(events.size() == 4);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[0].wall_time > 1.7e9);
  CHECK(events[1].tag == "loss");
  CHECK(events[1].step == 0);
  CHECK(events[1].value == 2.5F);
  CHECK(std::abs(events[1].wall_time - 1'767'340'800.25) < 1e-6);
  CHECK(events[2].tag == "accuracy/\xc3\xa4");
  CHECK(events[2].step == 300);
  CHECK(std::signbit(events[2].value));
  CHECK(events[3].step == std::int64_t{1} << 40);
  CHECK(events[3].value == 1e-30F);
}

TEST_CASE("a flush brings events to readers while the file is open", "[telemetry][unit]") {
  const testing::TempFolder folder;
  auto file = EventFile::Create(folder.path());
  REQUIRE(file.ok());
  CHECK(ReadEvents((*file)->path()).size() == 1);

  REQUIRE((*file)->Scalar("x", 1, 1.0F).ok());
  REQUIRE((*file)->Flush().ok());

  CHECK(ReadEvents((*file)->path()).size() == 2);
}

TEST_CASE("two event files of one process and second are two files", "[telemetry][unit]") {
  const testing::TempFolder folder;

  const auto first = EventFile::Create(folder.path());
  const auto second = EventFile::Create(folder.path());

  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK((*first)->path() != (*second)->path());
}

TEST_CASE("an event file that a full disk does not take leaves none that is empty",
          "[telemetry][unit]") {
  const testing::TempFolder folder;
  Status refused;
  {
    const testing::SmallFiles full(10);
    refused = EventFile::Create(folder.path()).status();
  }

  CHECK_FALSE(refused.ok());
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(EventFile::Create(folder.path()).ok());
}

TEST_CASE("what follows events that a full disk has not taken can be read", "[telemetry][unit]") {
  const testing::TempFolder folder;
  auto file = EventFile::Create(folder.path());
  REQUIRE(file.ok());
  REQUIRE((*file)->Scalar("before", 1, 1.0F).ok());
  REQUIRE((*file)->Flush().ok());
  Status kept, at_flush, at_write;
  {
    // A piece of the next event fits.
    const testing::SmallFiles full(std::filesystem::file_size((*file)->path()) + 10);
    kept = (*file)->Scalar("lost", 2, 2.0F);
    at_flush = (*file)->Flush();
    // More than is kept until then.
    at_write = (*file)->Scalar(std::string(100'000, 'x'), 3, 3.0F);
  }

  CHECK(kept.ok());
  CHECK(at_flush.code() == StatusCode::kResourceExhausted);
  CHECK(at_write.code() == StatusCode::kResourceExhausted);
  REQUIRE((*file)->Scalar("after", 4, 4.0F).ok());
  REQUIRE((*file)->Close().ok());
  const std::vector<Event> events = ReadEvents((*file)->path());
  REQUIRE(events.size() == 3);
  CHECK(events[1].tag == "before");
  CHECK(events[2].tag == "after");
}

TEST_CASE("a closed event file and an impossible folder say so", "[telemetry][unit]") {
  const testing::TempFolder folder;
  auto file = EventFile::Create(folder.path());
  REQUIRE(file.ok());
  REQUIRE((*file)->Close().ok());

  const Status late = (*file)->Scalar("x", 1, 1.0F);
  const auto inside_a_file = EventFile::Create((*file)->path() + "/logs");

  CHECK(late.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(late).find((*file)->path()) != std::string::npos);
  CHECK((*file)->Close().ok());
  CHECK_FALSE(inside_a_file.ok());
  CHECK(Message(inside_a_file.status()).find("/logs") != std::string::npos);
}

}  // namespace
}  // namespace muster::telemetry
