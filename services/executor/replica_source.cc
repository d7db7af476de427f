#include "services/executor/replica_source.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "muster/v1/executor.pb.h"
#include "ps/kernels.h"
#include "strategy/core/replica_context.h"

namespace muster::executor {

ReplicaSource::ReplicaSource(LocalVariables& variables, const ModelVariables& ids,
                             engine::Model& model)
    : variables_(variables), ids_(ids), model_(model) {
  lookup_rows_.resize(ids.embeddings.size());
}

void ReplicaSource::Expect(std::size_t parts, Meeting meeting) {
  parts_.resize(parts);
  given_ = 0;
  meeting_ = std::move(meeting);
}

Status ReplicaSource::Fetch(bool train, std::span<engine::Lookup> lookups) {
  return Guarded([&] {
    const torch::NoGradGuard no_grad;
    if (parts_.empty()) parts_.resize(1);
    if (given_ == parts_.size()) given_ = 0;
    MakeRoom(parts_[given_]);
    held_.clear();
    for (std::size_t i = 0; i < ids_.dense.size(); ++i) {
      held_.push_back(variables_.Value(ids_.dense[i]));
      Require(model_.Bind(i, held_.back().data_ptr<float>(),
                          parts_[given_].dense[i].data_ptr<float>()));
    }
    for (engine::Lookup& lookup : lookups) FetchRows(train, lookup);
  });
}

Status ReplicaSource::Give(std::uint64_t step, std::span<const engine::Lookup> lookups,
                           const v1::MetricSums& metrics) {
  return Guarded([&] {
    const torch::NoGradGuard no_grad;
    PartResult& part = parts_[given_];
    for (const engine::Lookup& lookup : lookups) {
      torch::Tensor& ids = part.ids[lookup.embedding];
      ids = torch::empty({static_cast<std::int64_t>(lookup.ids.size())}, torch::kLong);
      std::ranges::copy(lookup.ids, ids.data_ptr<std::int64_t>());
    }
    part.metrics = metrics;
    Given(step);
  });
}

void ReplicaSource::GiveNothing(std::uint64_t step) {
  const torch::NoGradGuard no_grad;
  PartResult& part = parts_[given_];
  MakeRoom(part);
  for (const torch::Tensor& gradient : part.dense) gradient.zero_();
  for (std::size_t e = 0; e < ids_.embeddings.size(); ++e) {
    part.rows[e] = torch::empty({0, model_.embeddings()[e].dim}, torch::kFloat);
    part.ids[e] = torch::empty({0}, torch::kLong);
  }
  part.metrics.Clear();
  Given(step);
}

void ReplicaSource::MakeRoom(PartResult& part) const {
  for (std::size_t i = part.dense.size(); i < ids_.dense.size(); ++i) {
    part.dense.push_back(torch::empty(model_.parameters()[i].shape, torch::kFloat));
  }
  part.rows.resize(ids_.embeddings.size());
  part.ids.resize(ids_.embeddings.size());
}

void ReplicaSource::FetchRows(bool train, engine::Lookup& lookup) {
  const std::size_t e = lookup.embedding;
  const auto dim = static_cast<std::size_t>(model_.embeddings()[e].dim);
  std::vector<float>& rows = lookup_rows_[e];
  rows.resize(lookup.ids.size() * dim);
  const torch::Tensor table = variables_.Value(ids_.embeddings[e]);
  ps::GatherRows(table.data_ptr<float>(), dim, lookup.ids, rows.data());
  lookup.rows = rows;
  if (!train) return;
  torch::Tensor& gradient = parts_[given_].rows[e];
  gradient =
      torch::empty({static_cast<std::int64_t>(lookup.ids.size()), static_cast<std::int64_t>(dim)},
                   torch::kFloat);
  lookup.row_gradients = {gradient.data_ptr<float>(), rows.size()};
}

void ReplicaSource::Given(std::uint64_t step) {
  if (++given_ < parts_.size()) return;
  held_.clear();
  Apply(step, Reduce(step));
}

void ReplicaSource::Apply(std::uint64_t step, const PartResult& sums) {
  for (std::size_t i = 0; i < ids_.dense.size(); ++i) {
    variables_.UpdateDense(ids_.dense[i], step, sums.dense[i]);
  }
  for (std::size_t e = 0; e < ids_.embeddings.size(); ++e) {
    variables_.UpdateRows(ids_.embeddings[e], step, {sums.rows[e], sums.ids[e]});
  }
}

PartResult ReplicaSource::Reduce(std::uint64_t step) {
  ReplicaContext& replica = replica_context();
  if (meeting_) {
    return replica.merge_call(
        [this, step](Strategy&, const PerReplica<std::vector<PartResult>>& replicas) {
          std::vector<PartResult> parts;
          for (const std::vector<PartResult>& some : replicas.values()) {
            parts.insert(parts.end(), some.begin(), some.end());
          }
          return meeting_(step, std::move(parts));
        },
        parts_);
  }
  if (replica.num_replicas_in_sync() == 1) return parts_[0];
  PartResult sums = parts_[0];
  if (!sums.dense.empty()) sums.dense = replica.all_reduce(ReduceOp::kSum, sums.dense);
  std::vector<IndexedSlices> slices;
  for (std::size_t e = 0; e < sums.rows.size(); ++e) {
    slices.push_back({sums.rows[e], sums.ids[e]});
  }
  if (slices.empty()) return sums;
  slices = replica.all_reduce(ReduceOp::kSum, slices);
  for (std::size_t e = 0; e < slices.size(); ++e) {
    const IndexedSlices joined = JoinRows({slices[e]});
    sums.rows[e] = joined.values;
    sums.ids[e] = joined.indices;
  }
  return sums;
}

Status Guarded(const std::function<void()>& function) {
  try {
    function();
    return Ok();
  } catch (const Error& error) {
    return MakeStatus(static_cast<StatusCode>(error.code()), error.message());
  } catch (const c10::OutOfMemoryError& error) {
    return ResourceExhausted("{}", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return Internal("{}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("out of memory");
  } catch (const std::exception& error) {
    return Internal("{}", error.what());
  } catch (...) {
    return Internal("an exception of unknown type");
  }
}

}  // namespace muster::executor
