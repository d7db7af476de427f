#include "common/storage/sha256.h"

#include "tests/support/catch.h"

namespace muster::storage {
namespace {

TEST_CASE("SHA-256 is that of FIPS 180 however the bytes are cut", "[storage][unit]") {
  constexpr std::string_view kAbc =
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  Sha256 whole;
  whole.Add("abc");
  CHECK(whole.Hex() == kAbc);

  Sha256 pieces;
  pieces.Add("a");
  pieces.Add("");
  pieces.Add("bc");
  CHECK(pieces.Hex() == kAbc);
}

TEST_CASE("only 64 lower-case digits are a SHA-256 in hex", "[storage][unit]") {
  CHECK(IsSha256Hex(std::string(64, 'f')));
  for (const std::string& text : {std::string(63, '0'), std::string(65, '0'), std::string(64, 'F'),
                                  std::string(64, 'g'), std::string()}) {
    CHECK_FALSE(IsSha256Hex(text));
  }
}

}  // namespace
}  // namespace muster::storage
