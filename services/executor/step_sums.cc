#include "services/executor/step_sums.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "collectives/shard_tree.h"
#include "common/base/job_limits.h"
#include "common/messages/metric_sums.h"
#include "muster/v1/executor.pb.h"

namespace muster::executor {
namespace {

using Tensors = std::vector<torch::Tensor>;
constexpr int kShards = static_cast<int>(job_limits::kLogicalShards);

void Add(Tensors& left, const Tensors& right) {
  for (std::size_t i = 0; i < left.size(); ++i) left[i].add_(right[i]);
}

std::size_t BytesOf(const Tensors& tensors) {
  std::size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// ((0+1)+(2+3))+((4+5)+(6+7)), whoever has which.
Tensors SumShards(const std::vector<PartResult>& parts, collectives::Group* group) {
  const int members = group == nullptr ? 1 : group->size();
  int shard = collectives::ShardsOf(group == nullptr ? 0 : group->rank(), members, kShards).begin;
  std::vector<collectives::ShardNode<Tensors>> nodes;
  for (const PartResult& part : parts) {
    collectives::PushShard(nodes, {{shard, shard + 1}, part.dense}, Add);
    ++shard;
  }
  if (members == 1 || parts[0].dense.empty()) return nodes.front().value;
  const std::size_t bytes = BytesOf(parts[0].dense);
  std::vector<std::byte> mine;
  mine.reserve(nodes.size() * bytes);
  for (const auto& node : nodes) {
    for (const torch::Tensor& tensor : node.value) {
      const auto* const at = static_cast<const std::byte*>(tensor.data_ptr());
      mine.insert(mine.end(), at, at + tensor.nbytes());
    }
  }
  auto gathered = collectives::GatherSubtrees(*group, kShards, mine, bytes, kStepWithin);
  Require(gathered.status());
  std::byte* from = gathered->data();
  std::vector<collectives::ShardNode<Tensors>> tree;
  for (int rank = 0; rank < members; ++rank) {
    for (const collectives::ShardRange range :
         collectives::SubtreesOf(collectives::ShardsOf(rank, members, kShards))) {
      Tensors tensors;
      for (const torch::Tensor& like : parts[0].dense) {
        tensors.push_back(torch::from_blob(from, like.sizes(), torch::kFloat));
        from += like.nbytes();
      }
      collectives::PushShard(tree, {range, std::move(tensors)}, Add);
    }
  }
  // The memory of the gathered ones ends here.
  Tensors sums = parts[0].dense;
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i].copy_(tree.front().value[i]);
  return sums;
}

Tensors SumInOrder(const std::vector<PartResult>& parts, collectives::Group* group) {
  Tensors sums = parts[0].dense;
  for (std::size_t i = 1; i < parts.size(); ++i) Add(sums, parts[i].dense);
  if (group == nullptr || sums.empty()) return sums;
  std::vector<collectives::ReduceBuffer> buffers;
  for (const torch::Tensor& sum : sums) {
    buffers.push_back({.type = DType::kFloat32,
                       .shape = sum.sizes().vec(),
                       .in = sum.data_ptr(),
                       .out = sum.data_ptr()});
  }
  Require(group->AllReduce(collectives::Reduction::kSum, buffers, kStepWithin));
  return sums;
}

// What all members have to know of each other before they join rows: how many each has of every
// embedding, and what its parts have scored.
struct Told {
  std::vector<std::int64_t> rows;
  std::vector<std::string> metrics;
};

std::vector<Told> TellAll(const Told& mine, std::uint64_t step, collectives::Group& group) {
  std::vector<std::int64_t> message = mine.rows;
  for (const std::string& part : mine.metrics) {
    const std::vector<std::int64_t> packed = Packed(part);
    message.push_back(static_cast<std::int64_t>(packed.size()));
    message.insert(message.end(), packed.begin(), packed.end());
  }
  const auto all = group.Exchange(fmt::format("step {}", step), message, kStepWithin);
  Require(all.status());
  std::vector<Told> told;
  for (const std::vector<std::int64_t>& theirs : *all) {
    Told& one = told.emplace_back();
    const auto rows = static_cast<std::ptrdiff_t>(mine.rows.size());
    one.rows.assign(theirs.begin(), theirs.begin() + rows);
    for (auto at = theirs.begin() + rows; at != theirs.end();) {
      const auto end = at + 1 + *at;
      one.metrics.push_back(Unpacked({at + 1, end}));
      at = end;
    }
  }
  return told;
}

// The rows of all members end to end, in the order of parts.
IndexedSlices GatherRows(const IndexedSlices& mine, const std::vector<std::int64_t>& counts,
                         collectives::Group& group) {
  const std::int64_t dim = mine.values.size(1);
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const torch::Tensor values = mine.values.contiguous();
  const torch::Tensor indices = mine.indices.contiguous();
  IndexedSlices all{.values = torch::empty({total, dim}, torch::kFloat),
                    .indices = torch::empty({total}, torch::kLong)};
  std::vector<collectives::GatherBuffer> buffers(2);
  buffers[0] = {.in = values.data_ptr(), .out = all.values.data_ptr(), .block_bytes = {}};
  buffers[1] = {.in = indices.data_ptr(), .out = all.indices.data_ptr(), .block_bytes = {}};
  for (const std::int64_t count : counts) {
    const auto rows = static_cast<std::size_t>(count);
    buffers[0].block_bytes.push_back(rows * static_cast<std::size_t>(dim) * sizeof(float));
    buffers[1].block_bytes.push_back(rows * sizeof(std::int64_t));
  }
  Require(group.AllGather(buffers, kStepWithin));
  return all;
}

}  // namespace

// Joins the rows of all parts, in their order; the rows of one id add up.
IndexedSlices JoinRows(const std::vector<IndexedSlices>& parts) {
  std::vector<torch::Tensor> all_ids, all_rows;
  for (const IndexedSlices& part : parts) {
    all_ids.push_back(part.indices);
    all_rows.push_back(part.values);
  }
  const torch::Tensor ids = torch::cat(all_ids).contiguous();
  const torch::Tensor rows = torch::cat(all_rows).contiguous();
  const auto* const id = ids.data_ptr<std::int64_t>();
  std::vector<std::int64_t> order(static_cast<std::size_t>(ids.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return id[i]; });
  std::int64_t unique = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || id[order[i]] != id[order[i - 1]]) ++unique;
  }
  const std::int64_t dim = rows.size(1);
  IndexedSlices joined{.values = torch::empty({unique, dim}, torch::kFloat),
                       .indices = torch::empty({unique}, torch::kLong)};
  float* to = joined.values.data_ptr<float>() - dim;
  std::int64_t* to_id = joined.indices.data_ptr<std::int64_t>() - 1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const float* const from = rows.data_ptr<float>() + order[i] * dim;
    if (i == 0 || id[order[i]] != *to_id) {
      to += dim;
      *++to_id = id[order[i]];
      std::copy_n(from, dim, to);
    } else {
      for (std::int64_t k = 0; k < dim; ++k) to[k] += from[k];
    }
  }
  return joined;
}

// Over this process's parts, and with a group over all members'. `deterministic`: in an order that
// does not depend on who has which part; otherwise each member adds its own first.
PartResult SumParts(std::vector<PartResult> parts, bool deterministic, std::uint64_t step,
                    collectives::Group* group) {
  const torch::NoGradGuard no_grad;
  PartResult sums;
  std::vector<IndexedSlices> slices(parts[0].rows.size());
  Told mine;
  for (std::size_t e = 0; e < slices.size(); ++e) {
    Tensors rows, ids;
    for (const PartResult& part : parts) {
      rows.push_back(part.rows[e]);
      ids.push_back(part.ids[e]);
    }
    slices[e] = {.values = torch::cat(rows), .indices = torch::cat(ids)};
    mine.rows.push_back(slices[e].indices.numel());
  }
  if (group == nullptr) {
    for (const PartResult& part : parts) AddSums(part.metrics, sums.metrics);
  } else {
    for (const PartResult& part : parts) mine.metrics.push_back(part.metrics.SerializeAsString());
    const std::vector<Told> all = TellAll(mine, step, *group);
    for (const Told& one : all) {
      for (const std::string& text : one.metrics) {
        v1::MetricSums metrics;
        if (!metrics.ParseFromString(text)) Raise(Internal("step {}: no metrics", step));
        AddSums(metrics, sums.metrics);
      }
    }
    for (std::size_t e = 0; e < slices.size(); ++e) {
      std::vector<std::int64_t> counts;
      for (const Told& one : all) counts.push_back(one.rows[e]);
      slices[e] = GatherRows(slices[e], counts, *group);
    }
  }
  sums.dense = deterministic ? SumShards(parts, group) : SumInOrder(parts, group);
  for (const IndexedSlices& one : slices) {
    const IndexedSlices joined = JoinRows({one});
    sums.rows.push_back(joined.values);
    sums.ids.push_back(joined.indices);
  }
  return sums;
}

std::vector<std::int64_t> Packed(std::string_view bytes) {
  std::vector<std::int64_t> numbers(1 + (bytes.size() + 7) / 8);
  numbers[0] = static_cast<std::int64_t>(bytes.size());
  if (!bytes.empty()) std::memcpy(&numbers[1], bytes.data(), bytes.size());
  return numbers;
}

std::string Unpacked(const std::vector<std::int64_t>& numbers) {
  if (numbers.empty()) return {};
  const auto room = (numbers.size() - 1) * sizeof(std::int64_t);
  const auto size = std::min(static_cast<std::size_t>(numbers[0]), room);
  return size == 0 ? std::string() : std::string(reinterpret_cast<const char*>(&numbers[1]), size);
}

}  // namespace muster::executor
