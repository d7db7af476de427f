#include "common/net/frame.h"

#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "common/base/crc32c.h"
#include "common/net/channel.h"
#include "tests/support/catch.h"
#include "tests/unit/common/net/deadline.h"

namespace muster::net {
namespace {

using Raw = std::array<std::byte, kHeaderBytes>;

// Which one is the business of a protocol.
constexpr FrameKind kAnyKind = 200;

Raw Encode(const FrameHeader& header) {
  Raw raw{};
  EncodeHeader(header, raw);
  return raw;
}

Raw FromHex(const std::string& text) {
  Raw raw{};
  std::size_t n = 0;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    while (text[i] == ' ') ++i;
    raw[n++] = static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return raw;
}

struct Pair {
  explicit Pair(FrameLimits limits = {}) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    a = std::make_unique<Channel>(Fd(ends[0]), LinkKind::kUnix, "a", SpinMode::kOff, nullptr,
                                  limits);
    b = std::make_unique<Channel>(Fd(ends[1]), LinkKind::kUnix, "b", SpinMode::kOff, nullptr,
                                  limits);
  }
  std::unique_ptr<Channel> a;
  std::unique_ptr<Channel> b;
};

}  // namespace

TEST_CASE("the checksum is CRC32C", "[net][unit]") {
  const std::string text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));

  CHECK(Crc32c(bytes) == 0xe3069283);
  CHECK(Crc32c(bytes.subspan(4), Crc32c(bytes.first(4))) == 0xe3069283);
}

TEST_CASE("the header of docs/formats/frame.md reads as it says", "[net][unit]") {
  const Raw example = FromHex(
      "4d535452 01 12 0000 0300000000000000 0700000000000000 0100000000000000 2a00000000000000"
      "0100000001000000 1000000000000000 28000000 00000000 a00cd405 00000000 00000000 e373d3a9");

  const auto header = DecodeHeader(example, {});

  REQUIRE(header.ok());
  CHECK(header->kind == 18);
  CHECK(header->request == 3);
  const auto ids = std::bit_cast<std::array<std::uint64_t, 4>>(header->ids);
  CHECK(ids == std::array<std::uint64_t, 4>{7, 1, 42, (std::uint64_t{1} << 32) | 1});
  CHECK(header->payload_bytes == 16);
  CHECK(header->meta_bytes == 40);
  CHECK(header->meta_crc == 0x05d40ca0);
  CHECK(Encode(*header) == example);
}

TEST_CASE("a header with any bit changed is refused", "[net][unit]") {
  const Raw good = Encode({.kind = kAnyKind, .request = 1, .payload_bytes = 100});
  for (std::size_t bit = 0; bit < 8 * kHeaderBytes; ++bit) {
    Raw bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));

    CHECK_FALSE(DecodeHeader(bad, {}).ok());
  }
}

TEST_CASE("lengths and versions are checked before they are used", "[net][unit]") {
  const FrameLimits limits{.meta_bytes = 100, .payload_bytes = 1000};

  CHECK(DecodeHeader(Encode({.kind = kAnyKind, .meta_bytes = 101}), limits).status().code() ==
        StatusCode::kResourceExhausted);
  CHECK(DecodeHeader(Encode({.kind = kAnyKind, .payload_bytes = 1001}), limits).status().code() ==
        StatusCode::kResourceExhausted);
  Raw other = Encode({.kind = kAnyKind});
  other[4] = std::byte{kFrameVersion + 1};
  const std::uint32_t crc = Crc32c(std::span(other).first(kHeaderBytes - 4));
  std::memcpy(&other[kHeaderBytes - 4], &crc, sizeof(crc));
  CHECK(DecodeHeader(other, limits).status().code() == StatusCode::kUnimplemented);
  CHECK(DecodeHeader(Encode({.kind = kAnyKind, .meta_bytes = 100}), limits).ok());
}

TEST_CASE("a frame's meta and payload arrive as they were sent", "[net][unit]") {
  const bool checksums = GENERATE(false, true);
  Pair pair;
  if (checksums) {
    pair.a->UsePayloadCrc();
    pair.b->UsePayloadCrc();
  }
  const std::string meta = "a table";
  std::string first = "first part, ";
  std::string second = "second part";
  const std::array<iovec, 2> parts = {iovec{first.data(), first.size()},
                                      iovec{second.data(), second.size()}};

  REQUIRE(
      pair.a->Send({.kind = kAnyKind, .request = 5}, std::as_bytes(std::span(meta)), parts, Soon())
          .ok());
  const auto header = pair.b->ReadFrame(Soon(), Millis(1'000));
  REQUIRE(header.ok());
  std::string got((*header)->payload_bytes, ' ');
  REQUIRE(pair.b->ReadPayload(std::as_writable_bytes(std::span(got)), Soon()).ok());

  CHECK((*header)->request == 5);
  CHECK(((*header)->flags & kFlagPayloadCrc) == (checksums ? kFlagPayloadCrc : 0));
  CHECK(std::memcmp(pair.b->meta().data(), meta.data(), meta.size()) == 0);
  CHECK(got == "first part, second part");
}

TEST_CASE("a payload changed on its way fails its checksum", "[net][unit]") {
  Pair pair;
  pair.b->UsePayloadCrc();
  std::string payload = "tensor";
  FrameHeader header{.kind = kAnyKind, .flags = kFlagPayloadCrc};
  header.payload_bytes = payload.size();
  header.payload_crc = Crc32c(std::as_bytes(std::span(payload))) ^ 1;
  Raw raw = Encode(header);
  std::array<iovec, 2> parts = {iovec{raw.data(), raw.size()},
                                iovec{payload.data(), payload.size()}};

  REQUIRE(WriteAll(pair.a->link(), RealClock(), parts, Soon()).ok());
  REQUIRE(pair.b->ReadFrame(Soon(), Millis(1'000)).ok());
  std::vector<std::byte> got(payload.size());
  const Status status = pair.b->ReadPayload(got, Soon());

  CHECK(status.code() == StatusCode::kDataLoss);
}

TEST_CASE("the end between two frames is no error, inside one it is", "[net][unit]") {
  Pair pair;
  Raw raw = Encode({.kind = kAnyKind});
  const std::size_t bytes = GENERATE(0, 1, 79);
  iovec part{raw.data(), bytes};

  REQUIRE(WriteAll(pair.a->link(), RealClock(), std::span(&part, 1), Soon()).ok());
  pair.a.reset();
  const auto header = pair.b->ReadFrame(Soon(), Millis(1'000));

  if (bytes == 0) {
    REQUIRE(header.ok());
    CHECK_FALSE(header->has_value());
  } else {
    CHECK(header.status().code() == StatusCode::kDataLoss);
  }
}

}  // namespace muster::net
