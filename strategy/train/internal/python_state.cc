#include "strategy/train/internal/python_state.h"

#include <cstddef>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <caffe2/serialize/inline_container.h>

#include "strategy/base/error.h"
#include "strategy/base/internal/raise.h"
#include "strategy/train/internal/python_pickle.h"

namespace muster::internal {
namespace {

using caffe2::serialize::PyTorchStreamReader;

std::optional<torch::ScalarType> TypeOf(std::string_view storage) {
  static const std::map<std::string_view, torch::ScalarType> types = {
      {"torch DoubleStorage", torch::kDouble},
      {"torch FloatStorage", torch::kFloat},
      {"torch HalfStorage", torch::kHalf},
      {"torch BFloat16Storage", torch::kBFloat16},
      {"torch LongStorage", torch::kLong},
      {"torch IntStorage", torch::kInt},
      {"torch ShortStorage", torch::kShort},
      {"torch CharStorage", torch::kChar},
      {"torch ByteStorage", torch::kByte},
      {"torch BoolStorage", torch::kBool},
      {"torch ComplexFloatStorage", torch::kComplexFloat},
      {"torch ComplexDoubleStorage", torch::kComplexDouble}};
  const auto found = types.find(storage);
  if (found == types.end()) return std::nullopt;
  return found->second;
}

// An archive's storages, each read once, however many tensors lie in it.
class Storages {
 public:
  explicit Storages(PyTorchStreamReader& archive) : archive_(archive) {}

  torch::Tensor At(const StateTensor& tensor) {
    const auto type = TypeOf(tensor.type.Both());
    if (!type) raise(InvalidArgument("its tensors are of an unknown type, {}", tensor.type.Both()));
    const Memory& memory = MemoryOf(tensor.key);
    const auto there = static_cast<std::int64_t>(memory.bytes / torch::elementSize(*type));
    if (tensor.needs > there) {
      raise(InvalidArgument("its pickle is damaged: a tensor is beyond its storage"));
    }
    if (tensor.needs == 0) return torch::empty(tensor.sizes, *type);
    auto* const begin = static_cast<std::byte*>(memory.data->get()) +
                        static_cast<std::size_t>(tensor.offset) * torch::elementSize(*type);
    // Not a copy, which a stride of 0 could make as large as the file likes.
    return torch::from_blob(
        begin, tensor.sizes, tensor.strides, [keep = memory.data](void*) {}, torch::dtype(*type));
  }

 private:
  struct Memory {
    std::shared_ptr<at::DataPtr> data;
    std::size_t bytes = 0;
  };
  const Memory& MemoryOf(std::string_view key) {
    const auto found = memories_.find(key);
    if (found != memories_.end()) return found->second;
    auto [data, bytes] = archive_.getRecord("data/" + std::string(key));
    return memories_.emplace(key, Memory{std::make_shared<at::DataPtr>(std::move(data)), bytes})
        .first->second;
  }

  PyTorchStreamReader& archive_;
  std::map<std::string_view, Memory> memories_;
};

// The pickle that torch.save() wrote before its 1.6, or with _use_new_zipfile_serialization=False.
bool IsOldPickle(const std::string& path) {
  constexpr std::string_view kMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", 9);
  std::string head(kMagic.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  return head == kMagic;
}

}  // namespace

bool IsPythonState(const std::string& path) {
  if (IsOldPickle(path)) return true;
  try {
    PyTorchStreamReader archive(path);
    return archive.hasRecord("data.pkl") && !archive.hasRecord("constants.pkl");
  } catch (const std::exception&) {  // no archive at all
    return false;
  }
}

std::map<std::string, torch::Tensor> ReadPythonState(const std::string& path) {
  if (IsOldPickle(path))
    raise(InvalidArgument("it is a pickle of the old format: {}", kStateRemedy));
  const torch::NoGradGuard no_grad;
  PyTorchStreamReader archive(path);
  const auto [memory, size] = archive.getRecord("data.pkl");
  Storages storages(archive);
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, tensor] :
       value_of(ReadStatePickle({static_cast<const char*>(memory.get()), size}))) {
    tensors[name] = storages.At(tensor);
  }
  return tensors;
}

}  // namespace muster::internal
