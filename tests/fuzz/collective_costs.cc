// The file of what collectives cost, which people edit, and what members tell each other of it.
#include <string>

#include "collectives/costs_file.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  using namespace muster::collectives;
  const auto parsed = ParseCosts(fuzz::Text(data, size), "costs");
  if (parsed.ok()) {
    const std::string packed = PackedCosts(*parsed);
    fuzz::Require(UnpackedCosts(std::as_bytes(std::span(packed))).ok(),
                  "members take what a file has");
    fuzz::Require(ParseCosts(CostsText(*parsed, "again"), "costs").ok(),
                  "what is written can be read");
  } else {
    fuzz::Require(Message(parsed.status()).find("costs:") == 0, "the error names the file");
    fuzz::Require(Message(parsed.status()).size() < 1'000, "an error has a bound");
  }
  const auto unpacked = UnpackedCosts(std::as_bytes(std::span(data, size)));
  fuzz::Require(!unpacked.ok() || size == kPackedCostsBytes, "a length is what it must be");
  return 0;
}
