#include "ps/client/write_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include "common/base/words.h"

namespace muster::ps {
namespace {

// A copy that its owner keeps.
Operands Kept(const Operands& given) {
  if (given.owner != nullptr) return given;
  auto copy = std::make_shared<std::vector<std::byte>>(given.bytes.begin(), given.bytes.end());
  const std::span<const std::byte> bytes = *copy;
  return {.bytes = bytes, .dtype = given.dtype, .owner = std::move(copy)};
}

Status CheckIds(const VariableInfo& variable, std::span<const std::int64_t> ids) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= variable.rows) {
      return InvalidArgument("variable {}: row {} is not in [0, {})", variable.name, id,
                             variable.rows);
    }
  }
  return Ok();
}

// Adds the rows of ids that come twice; the ids that are left stand in the order of their first
// place.
template <class T>
void Coalesce(std::vector<std::int64_t>& ids, std::size_t row_bytes, std::vector<std::byte>& rows) {
  std::unordered_map<std::int64_t, std::size_t> places;
  places.reserve(ids.size());
  std::size_t kept = 0;
  const std::size_t row = row_bytes / sizeof(T);
  T* const data = reinterpret_cast<T*>(rows.data());
  for (std::size_t k = 0; k < ids.size(); ++k) {
    const auto [at, first] = places.try_emplace(ids[k], kept);
    T* const to = data + at->second * row;
    const T* const from = data + k * row;
    if (!first) {
      for (std::size_t i = 0; i < row; ++i) to[i] += from[i];
      continue;
    }
    if (kept != k) std::memmove(to, from, row_bytes);
    ids[kept++] = ids[k];
  }
  ids.resize(kept);
  rows.resize(kept * row_bytes);
}

bool Repeats(std::span<const std::int64_t> ids) {
  if (std::ranges::is_sorted(ids, std::less_equal<>())) return false;
  std::vector<std::int64_t> sorted(ids.begin(), ids.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

}  // namespace

Status WriteSet::Add(Write write) {
  const VariableInfo& variable = *write.variable;
  const DType given = write.operands.dtype;
  if (given != DType::kUnspecified && given != variable.dtype) {
    return InvalidArgument("variable {} is {}; values of {} were given", variable.name,
                           NameOf(variable.dtype), NameOf(given));
  }
  const std::size_t bytes = write.operands.bytes.size();
  const std::size_t rows = write.rows ? write.ids.size() : static_cast<std::size_t>(variable.rows);
  if (bytes != rows * variable.row_bytes) {
    return InvalidArgument("variable {} ({}): {} bytes for {} of {} bytes", variable.name,
                           NameOf(variable.dtype), bytes, Counted(rows, "row"), variable.row_bytes);
  }
  MUSTER_TRY(CheckIds(variable, write.ids));
  if (write.op == kGradient) {
    // Here, before any server has its part: a set is refused as a whole.
    MUSTER_TRY(CheckGradient(variable.dtype, write.operands.bytes, write.learning_rate,
                             "variable " + variable.name));
  }
  write.operands = Kept(write.operands);
  writes_.push_back(std::move(write));
  return Ok();
}

Status WriteSet::Update(const VariableHandle& variable, ElementOp op, const Operands& operands,
                        std::uint16_t slot) {
  MUSTER_TRY(CheckOperands(op, variable->dtype, operands.bytes, "variable " + variable->name));
  return Add({.variable = variable,
              .slot = slot,
              .op = static_cast<std::uint8_t>(op),
              .ids = {},
              .operands = operands});
}

Status WriteSet::Scatter(const VariableHandle& variable, ElementOp op,
                         std::span<const std::int64_t> ids, const Operands& operands) {
  MUSTER_TRY(CheckOperands(op, variable->dtype, operands.bytes, "variable " + variable->name));
  return Add({.variable = variable,
              .op = static_cast<std::uint8_t>(op),
              .rows = true,
              .ids = {ids.begin(), ids.end()},
              .operands = operands});
}

Status WriteSet::Gradient(const VariableHandle& variable, const Operands& gradient,
                          double learning_rate) {
  return Add({.variable = variable,
              .op = kGradient,
              .ids = {},
              .operands = gradient,
              .learning_rate = learning_rate});
}

Status WriteSet::GradientRows(const VariableHandle& variable, std::span<const std::int64_t> ids,
                              const Operands& gradients, double learning_rate) {
  Write write{.variable = variable,
              .op = kGradient,
              .rows = true,
              .ids = {ids.begin(), ids.end()},
              .operands = gradients,
              .learning_rate = learning_rate};
  const bool floats = variable->dtype == DType::kFloat32 || variable->dtype == DType::kFloat64;
  if (!floats || gradients.bytes.size() != ids.size() * variable->row_bytes || !Repeats(ids)) {
    return Add(std::move(write));
  }
  auto rows =
      std::make_shared<std::vector<std::byte>>(gradients.bytes.begin(), gradients.bytes.end());
  if (variable->dtype == DType::kFloat32) {
    Coalesce<float>(write.ids, variable->row_bytes, *rows);
  } else {
    Coalesce<double>(write.ids, variable->row_bytes, *rows);
  }
  write.operands = {.bytes = *rows, .dtype = gradients.dtype, .owner = rows};
  return Add(std::move(write));
}

void WriteSet::Take(WriteSet& other) {
  std::ranges::move(other.writes_, std::back_inserter(writes_));
  other.writes_.clear();
  other.sent_ = 0;
  // What is still to go again keeps its number; the other one cannot have sent anything since.
  if (step_ > 0 && sent_ == 0) flush_ = std::max(flush_, other.flush_);
}

// Servers apply the flushes of a step in the order of their counts (OrderOfFlush). What the closure
// has written before this part began has been sent by now, by whichever part was first, so its
// count is the same in each execution.
Result<std::uint64_t> WriteSet::NextFlush(std::size_t flushes) {
  if (closure_ == ClosureId()) return flush_;
  if (step_ > 0 && under_ != nullptr && sent_ == 0) flush_ = std::max(flush_, under_->flush_);
  const bool alone = step_ == 0 && under_ == nullptr && !has_parts_;
  std::uint64_t last = flush_ + flushes - 1;
  // The closure may have counted beyond before it had parts.
  if (under_ != nullptr) last = std::max(last, under_->flush_ - 1);
  MUSTER_TRY(CheckFlushCount(closure_, last, alone ? kMostFlushesAlone : kMostFlushes));
  return FlushNumber(part_, flush_);
}

bool WriteSet::TouchesHere(const VariableInfo& variable) const {
  return std::ranges::any_of(writes_, [&](const Write& write) {
    return write.variable->id == variable.id && write.slot == 0;
  });
}

bool WriteSet::Touches(const VariableInfo& variable) const {
  return TouchesHere(variable) || (under_ != nullptr && under_->Touches(variable));
}

bool WriteSet::HasGradient(const VariableInfo& variable) const {
  return std::ranges::any_of(writes_, [&](const Write& write) {
    return write.variable->id == variable.id && write.op == kGradient;
  });
}

bool WriteSet::Replaces(const VariableInfo& variable) const {
  if (under_ != nullptr && under_->Touches(variable)) return under_->Replaces(variable);
  const auto first = std::ranges::find_if(writes_, [&](const Write& write) {
    return write.variable->id == variable.id && write.slot == 0;
  });
  return first != writes_.end() && !first->rows &&
         first->op == static_cast<std::uint8_t>(ElementOp::kAssign);
}

void WriteSet::Overlay(const VariableInfo& variable, std::span<std::byte> values) const {
  if (under_ != nullptr) under_->Overlay(variable, values);
  for (const Write& write : writes_) {
    if (write.variable->id != variable.id || write.slot != 0) continue;
    const auto op = static_cast<ElementOp>(write.op);
    if (write.rows) {
      ScatterElements(op, variable.dtype, values.data(), variable.row_bytes, write.ids,
                      write.operands.bytes);
    } else {
      ApplyElements(op, variable.dtype, values.data(), write.operands.bytes);
    }
  }
}

void WriteSet::Overlay(const VariableInfo& variable, std::span<const std::int64_t> ids,
                       std::span<std::byte> values) const {
  if (under_ != nullptr) under_->Overlay(variable, ids, values);
  if (!TouchesHere(variable)) return;
  std::multimap<std::int64_t, std::size_t> places;
  for (std::size_t i = 0; i < ids.size(); ++i) places.emplace(ids[i], i);
  const std::size_t row = variable.row_bytes;
  for (const Write& write : writes_) {
    if (write.variable->id != variable.id || write.slot != 0) continue;
    const auto apply = [&](std::size_t place, std::size_t k) {
      ApplyElements(static_cast<ElementOp>(write.op), variable.dtype, values.data() + place * row,
                    write.operands.bytes.subspan(k * row, row));
    };
    if (!write.rows) {
      for (const auto& [id, place] : places) apply(place, static_cast<std::size_t>(id));
      continue;
    }
    for (std::size_t k = 0; k < write.ids.size(); ++k) {
      const auto [from, to] = places.equal_range(write.ids[k]);
      for (auto at = from; at != to; ++at) apply(at->second, k);
    }
  }
}

}  // namespace muster::ps
