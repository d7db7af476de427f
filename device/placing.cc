#include "device/placing.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "common/base/number_in.h"
#include "device/gpu.h"
#include "device/tpu.h"

namespace muster::device {
namespace {

// The logical GPU that this thread computes for; -1 when it computes for a CPU.
thread_local int t_gpu = -1;

// Around the memory of a storage that belongs to one of several logical GPUs of a card.
struct Mark {
  at::DataPtr memory;
  Place place;
};
void FreeMark(void* mark) { delete static_cast<Mark*>(mark); }

void MarkStorage(const c10::Storage& storage, Place place) {
  const at::DataPtr& now = storage.data_ptr();
  if (now.get_deleter() == &FreeMark) {
    static_cast<Mark*>(now.get_context())->place = place;
    return;
  }
  at::DataPtr memory = storage.set_data_ptr(at::DataPtr());
  void* const data = memory.get();
  const c10::Device card = memory.device();
  auto* const mark = new Mark{std::move(memory), place};
  storage.set_data_ptr_noswap(at::DataPtr(data, mark, &FreeMark, card));
}

}  // namespace

Result<Place> ParsePlace(std::string_view name) {
  std::string_view rest = name;
  for (const std::string_view part : {"/job:localhost", "/replica:0", "/task:0"}) {
    const bool said = rest.starts_with(part) && rest.substr(part.size()).starts_with('/');
    if (said) rest.remove_prefix(part.size());
  }
  if (rest.starts_with("/device:")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("/")) {
    rest.remove_prefix(1);
  }
  const std::size_t colon = rest.find(':');
  std::string type(rest.substr(0, colon));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const std::string_view digits =
      colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
  const int index = NumberIn<int>(digits).value_or(-1);
  if (index >= 0 && index < Arena::kMaxDevices) {
    if (type == "CPU") return Place::Cpu(index);
    if (type == "GPU") return Place::Gpu(index);
    if (type == "TPU") return Place::Tpu(index);
  }
  return InvalidArgument(
      "device \"{}\" is not CPU:<n>, GPU:<n> or TPU:<n> with n in [0, {}) on this task", name,
      Arena::kMaxDevices);
}

Result<Place> FindPlace(std::string_view name) {
  MUSTER_TRY_ASSIGN(const Place place, ParsePlace(name));
  if (IsGpu(place)) MUSTER_TRY(LogicalGpus::OfProcess().Check(place.index));
  if (place.type == Place::Type::kTpu) MUSTER_TRY(TpuCores::OfProcess().Check(place.index));
  return place;
}

c10::Device CardOf(Place place) {
  const std::vector<int>& cards = LogicalGpus::OfProcess().Cards();
  const int card = cards.at(static_cast<std::size_t>(place.index));
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(card)};
}

Place PlaceOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.is_sparse()) return PlaceOf(tensor._values());
  // The storage's address: an empty tensor has none of its own.
  const at::DataPtr& memory = tensor.storage().data_ptr();
  if (tensor.device().is_cpu()) return PlaceOfArena(Arena::IndexOf(memory.get()));
  if (memory.get_deleter() == &FreeMark) return static_cast<Mark*>(memory.get_context())->place;
  return Place::Gpu(LogicalGpus::OfProcess().FirstOn(tensor.device().index()));
}

at::Tensor Placed(at::Tensor tensor, Place place) {
  if (!IsGpu(place) || !tensor.defined() || !tensor.device().is_cuda() ||
      !LogicalGpus::OfProcess().Shared(CardOf(place).index())) {
    return tensor;
  }
  if (tensor.is_sparse()) {
    MarkStorage(tensor._values().storage(), place);
    MarkStorage(tensor._indices().storage(), place);
  } else {
    MarkStorage(tensor.storage(), place);
  }
  return tensor;
}

struct PlaceScope::Card {
  explicit Card(c10::Device card) : guard(card) {}
  const c10::DeviceGuard guard;
};

PlaceScope::PlaceScope(Place place) : arena_(ArenaOf(place)), outer_(t_gpu) {
  if (IsGpu(place)) card_ = std::make_unique<Card>(CardOf(place));
  t_gpu = IsGpu(place) ? place.index : -1;
}
PlaceScope::~PlaceScope() { t_gpu = outer_; }

Place PlaceScope::Current() {
  return t_gpu >= 0 ? Place::Gpu(t_gpu) : PlaceOfArena(ArenaScope::Current());
}

}  // namespace muster::device
