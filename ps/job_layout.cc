#include "ps/job_layout.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "common/base/words.h"
#include "common/partition/placement.h"
#include "common/storage/checkpoint.h"
#include "muster/v1/common.pb.h"

namespace muster::ps {
namespace {

// The shards must be the variable's rows, each once.
Status CheckShards(const v1::VariableLayout& variable, std::int64_t rows, int ps_count) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const auto& shard : variable.shards()) {
    if (shard.ps_index() >= static_cast<std::uint32_t>(ps_count)) {
      return InvalidArgument("variable {}: a shard lives on ps:{}; the plan has {}",
                             variable.name(), shard.ps_index(),
                             Counted(static_cast<std::uint64_t>(ps_count), "server"));
    }
    ranges.emplace_back(shard.row_offset(), shard.rows());
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t at = 0;
  for (const auto& [offset, count] : ranges) {
    if (offset != at || count < 1 || count > rows - at) {
      return InvalidArgument(
          "variable {} of {} rows: a shard of {} rows from {}, after others to {}", variable.name(),
          rows, count, offset, at);
    }
    at += count;
  }
  if (at == rows) return Ok();
  return InvalidArgument("variable {}: its shards have {} of {} rows", variable.name(), at, rows);
}

}  // namespace

std::string ShardLayout::KeyOf(const std::string& tensor) const {
  const bool whole = shape.empty() || info.rows == shape[0];
  return whole ? tensor : fmt::format("{}@{}", tensor, info.row_offset);
}

std::vector<std::int64_t> ShardLayout::ShardShape() const {
  std::vector<std::int64_t> own = shape;
  if (!own.empty()) own[0] = info.rows;
  return own;
}

Status ShardLayout::CheckIds(std::span<const std::int64_t> ids, std::size_t floats) const {
  if (floats / static_cast<std::size_t>(info.row_elements) != ids.size() ||
      floats % static_cast<std::size_t>(info.row_elements) != 0) {
    return InvalidArgument("variable {}: {} rows of {} elements and {} floats", name, ids.size(),
                           info.row_elements, floats);
  }
  std::uint64_t worst = 0;
  for (const std::int64_t id : ids) worst = std::max(worst, static_cast<std::uint64_t>(id));
  if (worst < static_cast<std::uint64_t>(info.rows)) return Ok();
  return OutOfRange("variable {}: row {} of the shard from row {}, which has {} rows", name,
                    static_cast<std::int64_t>(worst), info.row_offset, info.rows);
}

Result<std::vector<ShardLayout>> LayOut(const v1::JobPlan& plan, std::uint32_t ps_index) {
  if (ps_index >= static_cast<std::uint32_t>(plan.ps_size())) {
    return InvalidArgument("ps:{}: the plan has {}", ps_index,
                           Counted(static_cast<std::uint64_t>(plan.ps_size()), "server"));
  }
  std::vector<ShardLayout> mine;
  std::set<std::uint32_t> ids;
  std::set<std::string> names;
  for (const v1::VariableLayout& variable : plan.variables()) {
    const std::string& name = variable.name();
    if (name.empty() || storage::IsSlotName(name)) {
      return InvalidArgument("variable \"{}\": a name without \"/slot/\" is required", name);
    }
    if (!names.insert(name).second || !ids.insert(variable.id()).second) {
      return InvalidArgument("variable {}, id {}: the plan has it twice", name, variable.id());
    }
    if (variable.dtype() != v1::DTYPE_FLOAT32) {
      return InvalidArgument("variable {}: dtype {}; only float32 is possible", name,
                             v1::DType_Name(variable.dtype()));
    }
    const std::vector<std::int64_t> shape(variable.shape().begin(), variable.shape().end());
    MUSTER_TRY_ASSIGN(const std::int64_t elements,
                      partition::CountElements(shape, "variable " + name));
    const std::int64_t rows = shape.empty() ? 1 : shape[0];
    MUSTER_TRY(CheckShards(variable, rows, plan.ps_size()));
    for (const auto& shard : variable.shards()) {
      if (shard.ps_index() != ps_index) continue;
      ShardLayout layout;
      layout.info = {variable.id(), shard.row_offset(), shard.rows(), elements / rows,
                     variable.embedding()};
      layout.name = name;
      layout.shape = shape;
      layout.first_element =
          static_cast<std::uint64_t>(shard.row_offset() * layout.info.row_elements);
      layout.elements = static_cast<std::uint64_t>(shard.rows() * layout.info.row_elements);
      mine.push_back(std::move(layout));
    }
  }
  std::sort(mine.begin(), mine.end(), [](const ShardLayout& a, const ShardLayout& b) {
    return std::pair(a.info.variable, a.info.row_offset) <
           std::pair(b.info.variable, b.info.row_offset);
  });
  return mine;
}

}  // namespace muster::ps
