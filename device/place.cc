#include "device/place.h"

#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "device/gpu.h"

namespace muster::device {
namespace {

// The logical GPU that this thread computes for; 0 when it computes for a CPU.
thread_local int t_gpu = 0;

// Around the memory of a storage that belongs to one of several logical GPUs of a card.
struct Mark {
  at::DataPtr memory;
  int place;
};
void FreeMark(void* mark) { delete static_cast<Mark*>(mark); }

void MarkStorage(const c10::Storage& storage, int place) {
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

Result<int> FindPlace(std::string_view name) {
  MUSTER_TRY_ASSIGN(const Device parsed, ParseDevice(name));
  if (parsed.type == Device::Type::kGpu) {
    MUSTER_TRY(LogicalGpus::OfProcess().Check(parsed.index));
  }
  return PlaceOf(parsed);
}

c10::Device CardOf(int place) {
  const std::vector<int>& cards = LogicalGpus::OfProcess().Cards();
  const int card = cards.at(static_cast<std::size_t>(place - kFirstGpu));
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(card)};
}

int PlaceOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  if (tensor.is_sparse()) return PlaceOf(tensor._values());
  // The storage's address: an empty tensor has none of its own.
  const at::DataPtr& memory = tensor.storage().data_ptr();
  if (tensor.device().is_cpu()) return Arena::IndexOf(memory.get());
  if (memory.get_deleter() == &FreeMark) return static_cast<Mark*>(memory.get_context())->place;
  return kFirstGpu + LogicalGpus::OfProcess().FirstOn(tensor.device().index());
}

const at::Tensor& Placed(const at::Tensor& tensor, int place) {
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

PlaceScope::PlaceScope(int place) : arena_(IsGpu(place) ? 0 : place), outer_(t_gpu) {
  if (IsGpu(place)) card_ = std::make_unique<Card>(CardOf(place));
  t_gpu = IsGpu(place) ? place : 0;
}
PlaceScope::~PlaceScope() { t_gpu = outer_; }

int PlaceScope::Current() { return t_gpu != 0 ? t_gpu : ArenaScope::Current(); }

}  // namespace muster::device
