// Frames between driver and executors.
#include "dispatch/wire.h"

#include "dispatch/functions.h"

#include "tests/support/catch.h"

namespace muster::dispatch {
namespace {

TEST_CASE("an error keeps everything on its way", "[dispatch][unit]") {
  const ClosureError error{.status = Unavailable("no \xc3\xa9ntry"),
                           .origin = Origin::kPs,
                           .phase = Phase::kWrites,
                           .task = "ps:3",
                           .incarnation = Incarnation(1ULL << 40),
                           .retries = 7};
  const auto back = DecodeError(EncodeError(error));
  REQUIRE(back.ok());
  CHECK(back->ToString() == error.ToString());
  CHECK(ErrorOf(ToStatus(error))->ToString() == error.ToString());
  CHECK_FALSE(ErrorOf(error.status).has_value());
}

TEST_CASE("a cut or invented error is refused", "[dispatch][unit]") {
  std::vector<std::byte> bytes = EncodeError({.status = NotFound("x"), .task = "t"});
  CHECK_FALSE(DecodeError(std::span(bytes).first(15)).ok());
  bytes[15] = std::byte{200};  // a longer name than there are bytes
  CHECK_FALSE(DecodeError(bytes).ok());
  bytes = EncodeError({.status = NotFound("x")});
  bytes[13] = std::byte{9};  // an unknown origin
  CHECK_FALSE(DecodeError(bytes).ok());
}

TEST_CASE("records that do not add up are refused", "[dispatch][unit]") {
  const auto ignore = [](const WireRecord&, std::span<const std::byte>) { return Ok(); };
  const WireRecord record{.closure = ClosureId(1), .bytes = 4};
  const auto meta = std::as_bytes(std::span(&record, 1));
  const std::vector<std::byte> payload(5);
  CHECK(ReadBatch(meta, std::span(payload).first(4), ignore).ok());
  CHECK(ReadBatch(meta, payload, ignore).code() == StatusCode::kDataLoss);
  CHECK(ReadBatch(meta, std::span(payload).first(3), ignore).code() == StatusCode::kDataLoss);
  CHECK(ReadBatch(meta.first(31), {}, ignore).code() == StatusCode::kDataLoss);
}

TEST_CASE("tables of functions agree by names and order", "[dispatch][unit]") {
  const auto nothing = [](ClosureContext&) { return Ok(); };
  FunctionTable a, b, c, d;
  CHECK(a.Add("one", nothing) == 0);
  CHECK(a.Add("two", nothing) == 1);
  b.Add("one", nothing), b.Add("two", nothing);
  c.Add("two", nothing), c.Add("one", nothing);
  d.Add("onet", nothing), d.Add("wo", nothing);
  CHECK(a.hash() == b.hash());
  CHECK(a.hash() != c.hash());
  CHECK(a.hash() != d.hash());
  CHECK(a.Find(2) == nullptr);
}

}  // namespace
}  // namespace muster::dispatch
