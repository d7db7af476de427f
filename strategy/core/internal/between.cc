#include "strategy/core/internal/between.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/time_left.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/values/internal/reduction.h"

namespace muster::internal {
namespace {

// Type, then sizes; or what it is instead.
using Said = std::vector<std::int64_t>;
constexpr std::int64_t kUndefined = -1;
constexpr std::int64_t kSparse = -2;

Said Describe(const torch::Tensor& value) {
  if (!value.defined()) return {kUndefined};
  if (value.layout() != torch::kStrided) return {kSparse};
  Said said{static_cast<std::int64_t>(value.scalar_type())};
  said.insert(said.end(), value.sizes().begin(), value.sizes().end());
  return said;
}

std::string Text(const Said& said) {
  if (said[0] == kUndefined) return "nothing";
  return fmt::format("{}[{}]", torch::toString(static_cast<torch::ScalarType>(said[0])),
                     fmt::join(said.begin() + 1, said.end(), ", "));
}

torch::Tensor Empty(const Said& said) {
  if (said[0] < 0) return {};
  return torch::empty(std::vector<std::int64_t>(said.begin() + 1, said.end()),
                      torch::dtype(static_cast<torch::ScalarType>(said[0])));
}

// All hear of it, so nobody waits for who has one.
void RefuseSparse(const collectives::Group& group, std::string_view call,
                  const std::vector<Said>& said) {
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (said[r][0] != kSparse) continue;
    raise(
        Unimplemented("{} does not support IndexedSlices or other sparse tensors here; {} has one",
                      call, group.name_of(static_cast<int>(r))));
  }
}

// The rank of a dense shape, then its sizes; rank -1: there is none.
using DenseShape = std::optional<std::vector<std::int64_t>>;

void Append(Said& said, const DenseShape& shape) {
  said.push_back(shape.has_value() ? static_cast<std::int64_t>(shape->size()) : -1);
  if (shape.has_value()) said.insert(said.end(), shape->begin(), shape->end());
}

// Moves `at` behind it. What another process has not said is none.
DenseShape NextShape(Said::const_iterator& at, Said::const_iterator end) {
  if (at == end || *at < 0 || *at >= end - at) {
    if (at != end) ++at;
    return std::nullopt;
  }
  const auto first = at + 1;
  at = first + *at;
  return std::vector<std::int64_t>(first, at);
}

torch::Tensor InHost(const torch::Tensor& value) {
  return plain_of(value.detach().to(torch::kCPU));
}

bool Sums(const torch::Tensor& value) {
  const auto type = dtype_of(value.scalar_type());
  return type.has_value() && collectives::Reducible(*type);
}

// In a catch block: what was caught; of `code` where it is no Error.
Status CurrentError(StatusCode code) {
  try {
    throw;
  } catch (const Error& error) {
    return ToStatus(error);
  } catch (const c10::Error& error) {
    return MakeStatus(code, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return MakeStatus(code, error.what());
  } catch (...) {
    return MakeStatus(code, "an exception of an unknown type");
  }
}

}  // namespace

void end_by_current_error(collectives::Group& group) {
  group.Abort(CurrentError(StatusCode::kInternal));
}

// Types and shapes first, so that each process knows how much the others send.
std::vector<torch::Tensor> gather_between(collectives::Group& group, std::string_view call,
                                          const torch::Tensor& mine, collectives::Timeout timeout) {
  const TimeLeft left(timeout);
  const auto said = group.Exchange(call, Describe(mine), left());
  raise_unless_ok(said.status());
  RefuseSparse(group, call, *said);
  const auto own = static_cast<std::size_t>(group.rank());
  std::vector<torch::Tensor> all;
  collectives::GatherBuffer buffer;
  std::size_t total = 0;
  for (const Said& one : *said) {
    all.push_back(Empty(one));
    buffer.block_bytes.push_back(all.back().defined() ? all.back().nbytes() : 0);
    total += buffer.block_bytes.back();
  }
  all[own] = mine;
  if (total == 0) return all;
  const torch::Tensor sent = mine.defined() ? InHost(mine) : torch::Tensor();
  std::vector<std::byte> joined(total);
  buffer.in = sent.defined() ? sent.data_ptr() : nullptr;
  buffer.out = joined.data();
  raise_unless_ok(group.AllGather({&buffer, 1}, left()));
  const std::byte* at = joined.data();
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::size_t bytes = buffer.block_bytes[r];
    if (r != own && bytes > 0) std::memcpy(all[r].data_ptr(), at, bytes);
    at += bytes;
  }
  return all;
}

std::vector<torch::Tensor> values_of_all(collectives::Group& group, std::string_view call,
                                         const std::vector<torch::Tensor>& mine,
                                         collectives::Timeout timeout) {
  const TimeLeft left(timeout);
  const auto processes = static_cast<std::size_t>(group.size());
  std::vector<torch::Tensor> all(processes * mine.size());
  for (std::size_t replica = 0; replica < mine.size(); ++replica) {
    std::vector<torch::Tensor> values = gather_between(group, call, mine[replica], left());
    for (std::size_t p = 0; p < processes; ++p) {
      all[p * mine.size() + replica] = std::move(values[p]);
    }
  }
  return all;
}

std::vector<IndexedSlices> slices_of_all(collectives::Group& group, std::string_view call,
                                         const std::vector<IndexedSlices>& mine,
                                         collectives::Timeout timeout) {
  const TimeLeft left(timeout);
  std::vector<torch::Tensor> values;
  std::vector<torch::Tensor> indices;
  Said shapes;
  for (const IndexedSlices& one : mine) {
    values.push_back(one.values);
    indices.push_back(one.indices);
    Append(shapes, one.dense_shape);
  }
  const auto said = group.Exchange(call, shapes, left());
  raise_unless_ok(said.status());
  values = values_of_all(group, call, values, left());
  indices = values_of_all(group, call, indices, left());
  std::vector<IndexedSlices> all;
  for (const Said& process : *said) {
    auto at = process.begin();
    for (std::size_t replica = 0; replica < mine.size(); ++replica) {
      const std::size_t r = all.size();
      all.push_back({values[r], indices[r], NextShape(at, process.end())});
    }
  }
  return all;
}

std::vector<torch::Tensor> sum_between(collectives::Group& group,
                                       const std::vector<torch::Tensor>& values,
                                       collectives::Timeout timeout) {
  const torch::NoGradGuard no_grad;
  const TimeLeft left(timeout);
  std::vector<torch::Tensor> sums;
  std::vector<torch::Tensor> sent;
  std::vector<collectives::ReduceBuffer> buffers;
  for (const torch::Tensor& value : values) {
    if (!Sums(value)) {
      const auto all = gather_between(group, "sum", value, left());
      sums.push_back(reduce_tensors(ReduceOp::kSum, all, Axes()));
      continue;
    }
    sent.push_back(InHost(value));
    sums.push_back(torch::empty(value.sizes(), torch::dtype(value.scalar_type())));
    buffers.push_back({.type = *dtype_of(value.scalar_type()),
                       .shape = value.sizes().vec(),
                       .in = sent.back().data_ptr(),
                       .out = sums.back().data_ptr()});
  }
  if (buffers.empty()) return sums;
  raise_unless_ok(group.AllReduce(collectives::Reduction::kSum, buffers, left()));
  return sums;
}

torch::Tensor value_of_first(collectives::Group& group, std::string_view call,
                             const torch::Tensor& mine) {
  const auto said = group.Exchange(call, Describe(mine));
  raise_unless_ok(said.status());
  RefuseSparse(group, call, *said);
  for (std::size_t r = 1; r < said->size(); ++r) {
    if ((*said)[r] == said->front()) continue;
    raise(InvalidArgument("{}: {} has {}, {} {}; all need the same", call,
                          group.name_of(static_cast<int>(r)), Text((*said)[r]), group.name_of(0),
                          Text(said->front())));
  }
  if (!mine.defined()) return mine;
  const torch::Tensor value = InHost(mine).clone();
  const std::span<std::byte> bytes = BytesOf(value);
  if (!bytes.empty()) raise_unless_ok(group.Broadcast(bytes, 0));
  return value.to(mine.device());
}

std::string text_of_first(collectives::Group& group, std::string_view call,
                          const std::string& text) {
  const auto said = group.Exchange(call, Said(text.begin(), text.end()));
  raise_unless_ok(said.status());
  std::string first;
  for (const std::int64_t c : said->front()) first.push_back(static_cast<char>(c));
  return first;
}

void done_by_each(collectives::Group& group, std::string_view call,
                  const std::function<void()>& work) {
  std::string outcome;  // nothing, or the code in decimal, a space, and the text
  try {
    work();
  } catch (...) {  // whatever it is, the others wait to hear of it
    const Status failed = CurrentError(StatusCode::kUnknown);
    outcome = fmt::format("{} {}", static_cast<int>(failed.code()), Message(failed));
  }
  const auto said = group.Exchange(call, Said(outcome.begin(), outcome.end()));
  raise_unless_ok(said.status());
  for (const Said& one : *said) {
    if (one.empty()) continue;
    const std::string text(one.begin(), one.end());
    const std::size_t space = text.find(' ');
    raise(static_cast<ErrorCode>(std::stoi(text)), text.substr(space + 1));
  }
}

void ready_on_all(collectives::Group* group, std::string_view call,
                  const std::function<void()>& work) {
  if (group == nullptr) return work();
  done_by_each(*group, call, [&] {
    try {
      work();
    } catch (...) {
      raise_unless_ok(Annotate(CurrentError(StatusCode::kUnknown), group->name_of(group->rank())));
    }
  });
}

void done_by_first(collectives::Group& group, std::string_view call,
                   const std::function<void()>& work) {
  done_by_each(group, call, [&] {
    if (group.rank() == 0) work();
  });
}

}  // namespace muster::internal
