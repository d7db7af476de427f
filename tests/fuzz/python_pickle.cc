// The pickle in what Python's torch.save() wrote: no tensor lies beyond what it needs of its
// storage, and none has a part that was not in the pickle.
#include "strategy/train/internal/python_pickle.h"

#include <string>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const auto tensors = internal::ReadStatePickle(fuzz::Text(data, size));
  if (!tensors.ok()) {
    fuzz::Require(!Message(tensors.status()).empty(), "a refusal says why");
    return 0;
  }
  fuzz::Require(tensors->size() <= size, "no more tensors than bytes that name them");
  for (const auto& [name, tensor] : *tensors) {
    fuzz::Require(name.size() + tensor.key.size() <= size, "names are from the pickle");
    fuzz::Require(tensor.sizes.size() == tensor.strides.size(), "each dimension has a stride");
    fuzz::Require(tensor.offset >= 0 && tensor.needs >= 0, "offsets are not negative");
    // The last element, by another way than the reader's.
    __int128 last = tensor.offset;
    bool empty = false;
    for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
      fuzz::Require(tensor.sizes[d] >= 0 && tensor.strides[d] >= 0, "no shape is negative");
      empty = empty || tensor.sizes[d] == 0;
      last += static_cast<__int128>(tensor.sizes[d] - 1) * tensor.strides[d];
    }
    fuzz::Require(empty ? tensor.needs == 0 : last + 1 == tensor.needs, "what a tensor needs");
  }
  return 0;
}
