// Tables of records and errors of closures, as a peer may send them.
#include <algorithm>

#include "dispatch/wire.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const auto bytes = fuzz::Bytes(data, size);
  if (const auto error = dispatch::DecodeError(bytes); error.ok()) {
    fuzz::Require(!error->status.ok(), "an error is none that is OK");
    const auto again = dispatch::DecodeError(dispatch::EncodeError(*error));
    fuzz::Require(again.ok() && again->ToString() == error->ToString(), "an error has one meaning");
  }
  // The first byte says how many records there are; the rest of the input is payload.
  if (size == 0) return 0;
  const std::size_t table = std::min<std::size_t>(data[0] * sizeof(dispatch::WireRecord), size - 1);
  std::size_t used = 0;
  const auto payload = bytes.subspan(1 + table);
  const Status status = dispatch::ReadBatch(
      bytes.subspan(1, table), payload,
      [&](const dispatch::WireRecord& record, std::span<const std::byte> own) {
        fuzz::Require(own.size() == record.bytes, "a closure has the bytes that it says");
        used += own.size();
        fuzz::Require(used <= payload.size(), "no byte belongs to two closures");
        return Ok();
      });
  fuzz::Require(!status.ok() || used == payload.size(), "every byte belongs to a closure");
  return 0;
}
