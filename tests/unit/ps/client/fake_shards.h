// JobShards in memory with the simplest arithmetic: value -= gradient. Keeps what the real ones
// promise: whole updates, one application of each closure, later attempts win.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "muster/v1/cluster.pb.h"
#include "muster/v1/common.pb.h"
#include "ps/job_shards.h"

namespace muster::ps::testing {

class FakeShards : public JobShards {
 public:
  FakeShards(const v1::JobPlan& plan, std::uint32_t ps_index)
      : job_id_(plan.job_id()), view_(plan.view()) {
    for (const auto& layout : plan.variables()) {
      std::int64_t row = 1;
      for (int i = 1; i < layout.shape_size(); ++i) row *= layout.shape(i);
      for (const auto& shard : layout.shards()) {
        if (shard.ps_index() != ps_index) continue;
        infos_.push_back({layout.id(), shard.row_offset(), shard.rows(), row, layout.embedding()});
        shards_.push_back(std::make_unique<Shard>());
        shards_.back()->values.resize(static_cast<std::size_t>(shard.rows() * row));
      }
    }
  }

  const std::string& job_id() const override { return job_id_; }
  ViewId view() const override { return view_; }
  std::span<const ShardInfo> shards() const override { return infos_; }

  Result<std::uint64_t> ReadDense(std::uint32_t shard, std::span<float> into) const override {
    const Shard& s = *shards_[shard];
    const std::shared_lock lock(s.mutex);
    std::copy(s.values.begin(), s.values.end(), into.begin());
    return s.applied.size();
  }

  Result<std::uint64_t> ReadRows(std::uint32_t shard, std::span<const std::int64_t> ids,
                                 std::span<float> into) const override {
    const Shard& s = *shards_[shard];
    const auto row = static_cast<std::size_t>(infos_[shard].row_elements);
    const std::shared_lock lock(s.mutex);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      MUSTER_TRY(CheckId(shard, ids[i]));
      std::copy_n(s.values.begin() + ids[i] * infos_[shard].row_elements, row,
                  into.begin() + static_cast<std::ptrdiff_t>(i * row));
    }
    return s.applied.size();
  }

  Result<ApplyOutcome> ApplyDense(std::uint32_t shard, PushId id,
                                  std::span<const float> gradient) override {
    Shard& s = *shards_[shard];
    const std::unique_lock lock(s.mutex);
    MUSTER_TRY_ASSIGN(const bool fresh, Mark(s, id));
    if (!fresh) return ApplyOutcome::kDuplicate;
    for (std::size_t i = 0; i < gradient.size(); ++i) s.values[i] -= gradient[i];
    return ApplyOutcome::kApplied;
  }

  Result<ApplyOutcome> ApplyRows(std::uint32_t shard, PushId id, std::span<const std::int64_t> ids,
                                 std::span<const float> gradients) override {
    Shard& s = *shards_[shard];
    const auto row = static_cast<std::size_t>(infos_[shard].row_elements);
    const std::unique_lock lock(s.mutex);
    for (const std::int64_t row_id : ids) MUSTER_TRY(CheckId(shard, row_id));
    MUSTER_TRY_ASSIGN(const bool fresh, Mark(s, id));
    if (!fresh) return ApplyOutcome::kDuplicate;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      for (std::size_t j = 0; j < row; ++j) {
        s.values[static_cast<std::size_t>(ids[i]) * row + j] -= gradients[i * row + j];
      }
    }
    return ApplyOutcome::kApplied;
  }

  Status Assign(std::uint32_t shard, std::span<const float> value) override {
    Shard& s = *shards_[shard];
    const std::unique_lock lock(s.mutex);
    if (!s.applied.empty()) return FailedPrecondition("a closure has been applied");
    std::copy(value.begin(), value.end(), s.values.begin());
    return Ok();
  }

  Result<v1::SaveReport> Save(std::uint64_t, const std::string&, storage::FileSystem&) override {
    return Unimplemented("a fake does not save");
  }
  void Report(v1::PsReport&) const override {}
  void ReportTotals(v1::PsReport&) const override {}
  void Adopt(Attempt, v1::AdoptReport&) override {}

 private:
  struct Shard {
    mutable std::shared_mutex mutex;
    std::vector<float> values;
    std::set<std::uint64_t> applied;
    std::map<ClosureId, Attempt> newest_attempt;
  };

  Status CheckId(std::uint32_t shard, std::int64_t id) const {
    if (id >= 0 && id < infos_[shard].rows) return Ok();
    return OutOfRange("row {} of {}", id, infos_[shard].rows);
  }
  static Result<bool> Mark(Shard& shard, PushId id) {
    Attempt& newest = shard.newest_attempt[id.closure];
    if (id.attempt < newest) {
      return Aborted("attempt {} is older than {}", id.attempt.value(), newest.value());
    }
    newest = id.attempt;
    return shard.applied.insert(id.closure.value()).second;
  }

  const std::string job_id_;
  ViewId view_;
  std::vector<ShardInfo> infos_;
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace muster::ps::testing
