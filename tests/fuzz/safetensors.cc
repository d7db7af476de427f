// The header of a safetensors file, as it stands in a file of this size.
#include "common/storage/safetensors.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::span<const std::byte> bytes = fuzz::Bytes(data, size);
  if (bytes.size() < 8) return 0;
  const auto header_size = storage::ParseHeaderSize(bytes.first<8>(), size);
  if (!header_size.ok()) return 0;
  fuzz::Require(*header_size <= size - 8, "the header is within the file");
  const auto header = storage::ParseHeader(bytes.subspan(8, *header_size), size);
  if (!header.ok()) return 0;
  for (const auto& [name, tensor] : header->tensors) {
    fuzz::Require(tensor.begin <= tensor.end && tensor.end <= size, "a tensor is within the file");
    const auto needed = storage::TensorBytes(tensor.dtype, tensor.shape);
    fuzz::Require(needed.ok() && *needed == tensor.end - tensor.begin, "a tensor has its size");
  }
  return 0;
}
