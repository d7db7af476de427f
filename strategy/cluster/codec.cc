#include "strategy/cluster/codec.h"

#include <limits>

#include "common/torch/dtypes.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"

namespace muster {
namespace {

// In place of a number of dimensions.
constexpr std::uint8_t kUndefined = 255;
constexpr std::int64_t kMostDimensions = 64;

std::string text_of(torch::ScalarType type) { return torch::toString(type); }

}  // namespace

void ByteReader::raise_missing(std::size_t wanted, std::size_t left) {
  raise(InvalidArgument("a value is cut off: {} bytes or elements are wanted, {} are left", wanted,
                        left));
}

void internal::append(Bytes& to, const void* from, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(from);
  to.insert(to.end(), bytes, bytes + size);
}

void Codec<std::string>::write(const std::string& text, Bytes& to) {
  internal::append_value(to, static_cast<std::uint64_t>(text.size()));
  internal::append(to, text.data(), text.size());
}

std::string Codec<std::string>::read(ByteReader& from) {
  const auto bytes = from.take(from.count(1));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void Codec<torch::Tensor>::write(const torch::Tensor& tensor, Bytes& to) {
  if (!tensor.defined()) {
    internal::append_value(to, kUndefined);
    return;
  }
  if (tensor.layout() != torch::kStrided) {
    raise(
        InvalidArgument("a sparse tensor does not travel: give its IndexedSlices "
                        "(muster::to_slices), or to_dense() of it"));
  }
  if (tensor.is_quantized() || tensor.dim() > kMostDimensions) {
    raise(
        InvalidArgument("a tensor of {} with {} dimensions does not travel: types are those of "
                        "numbers, dimensions at most {}",
                        text_of(tensor.scalar_type()), tensor.dim(), kMostDimensions));
  }
  const torch::Tensor plain = internal::plain_of(tensor.detach().to(torch::kCPU));
  internal::append_value(to, static_cast<std::uint8_t>(plain.dim()));
  internal::append_value(to, static_cast<std::int8_t>(plain.scalar_type()));
  internal::append(to, plain.sizes().data(), plain.sizes().size() * sizeof(std::int64_t));
  internal::append(to, plain.data_ptr(), plain.nbytes());
}

torch::Tensor Codec<torch::Tensor>::read(ByteReader& from) {
  const auto dimensions = from.value<std::uint8_t>();
  if (dimensions == kUndefined) return {};
  const auto number = from.value<std::int8_t>();
  const auto type = static_cast<torch::ScalarType>(number);
  const bool known = DTypeOf(type) != DType::kUnspecified || type == torch::kComplexFloat ||
                     type == torch::kComplexDouble;
  if (dimensions > kMostDimensions || !known) {
    raise(InvalidArgument("no tensor: {} dimensions, type {}", dimensions, number));
  }
  const std::size_t each = torch::elementSize(type);
  std::vector<std::int64_t> sizes;
  std::size_t bytes = each;
  for (std::uint8_t d = 0; d < dimensions; ++d) {
    const auto size = from.value<std::int64_t>();
    const auto most = static_cast<std::int64_t>(std::numeric_limits<std::int64_t>::max() / each);
    if (size < 0 || size > most ||
        (size > 0 && bytes > std::numeric_limits<std::size_t>::max() / 2 / size)) {
      raise(InvalidArgument("no tensor: dimension {} has size {}", d, size));
    }
    sizes.push_back(size);
    bytes *= static_cast<std::size_t>(size);
  }
  // Before memory is asked for: a wrong size ends here, whatever it says.
  const auto data = from.take(bytes);
  torch::Tensor tensor = torch::empty(sizes, torch::TensorOptions(type));
  if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
  return tensor;
}

void Codec<IndexedSlices>::write(const IndexedSlices& slices, Bytes& to) {
  Codec<torch::Tensor>::write(slices.values, to);
  Codec<torch::Tensor>::write(slices.indices, to);
  Codec<std::optional<std::vector<std::int64_t>>>::write(slices.dense_shape, to);
}

IndexedSlices Codec<IndexedSlices>::read(ByteReader& from) {
  IndexedSlices slices;
  slices.values = Codec<torch::Tensor>::read(from);
  slices.indices = Codec<torch::Tensor>::read(from);
  slices.dense_shape = Codec<std::optional<std::vector<std::int64_t>>>::read(from);
  return slices;
}

}  // namespace muster
