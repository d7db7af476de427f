#include "ps/client/variables.h"

#include <algorithm>
#include <utility>

#include "muster/v1/common.pb.h"

namespace muster::ps {
namespace {

// Rows that one pull or push may name. Address space is reserved for them, memory is not.
constexpr std::int64_t kFewRows = 1 << 16;
constexpr std::int64_t kManyRows = 1 << 22;
constexpr std::int64_t kMaxElements = 1LL << 40;

Result<VariableRef> ParseLayout(const v1::VariableLayout& layout) {
  VariableRef variable;
  variable.name = layout.name();
  variable.embedding = layout.embedding();
  variable.rows = layout.shape_size() > 0 ? layout.shape(0) : 1;
  variable.row_elements = 1;
  std::int64_t left = kMaxElements;
  for (const std::int64_t dimension : layout.shape()) {
    if (dimension < 0 || (dimension > 0 && left / dimension == 0)) {
      return InvalidArgument("variable {}: dimension {} is negative or too large", layout.name(),
                             dimension);
    }
    left /= std::max<std::int64_t>(dimension, 1);
  }
  for (int i = 1; i < layout.shape_size(); ++i) variable.row_elements *= layout.shape(i);
  return variable;
}

Status CheckShards(const VariableRef& variable) {
  std::int64_t next = 0;
  for (const ShardRef& shard : variable.shards) {
    if (shard.row_offset != next || shard.rows < 0) {
      return InvalidArgument("variable {}: a shard begins at row {}, must be {}", variable.name,
                             shard.row_offset, next);
    }
    next += shard.rows;
  }
  if (next != variable.rows || variable.shards.empty()) {
    return InvalidArgument("variable {}: its shards hold {} of {} rows", variable.name, next,
                           variable.rows);
  }
  return Ok();
}

std::size_t FloatBytes(const VariableRef& variable, std::size_t rows) {
  return rows * static_cast<std::size_t>(variable.row_elements) * sizeof(float);
}

template <class T>
std::span<T> As(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

Status AllocateRows(net::Arena& arena, const VariableRef& variable, VariableRef::RowMemory& into) {
  const std::size_t bytes = FloatBytes(variable, variable.capacity);
  MUSTER_TRY_ASSIGN(const auto ids, arena.Allocate(variable.capacity * sizeof(std::int64_t)));
  MUSTER_TRY_ASSIGN(const auto rows, arena.Allocate(bytes));
  MUSTER_TRY_ASSIGN(const auto sorted, arena.Allocate(bytes));
  into = {.ids = As<std::int64_t>(ids), .rows = As<float>(rows), .sorted = As<float>(sorted)};
  return Ok();
}

}  // namespace

Result<VariableMap> VariableMap::Create(const v1::JobPlan& plan) {
  VariableMap map;
  for (const v1::VariableLayout& layout : plan.variables()) {
    MUSTER_TRY_ASSIGN(VariableRef variable, ParseLayout(layout));
    if (layout.id() != map.variables_.size()) {
      return InvalidArgument("variable {} has id {}, must be {}: ids are dense from 0",
                             layout.name(), layout.id(), map.variables_.size());
    }
    for (const v1::ShardPlacement& placement : layout.shards()) {
      // `server` holds the ps index until all of them are known.
      variable.shards.push_back({.server = placement.ps_index(),
                                 .row_offset = placement.row_offset(),
                                 .rows = placement.rows()});
      map.servers_.push_back(placement.ps_index());
    }
    std::ranges::sort(variable.shards, {}, &ShardRef::row_offset);
    MUSTER_TRY(CheckShards(variable));
    variable.capacity = static_cast<std::size_t>(std::clamp(variable.rows, kFewRows, kManyRows));
    map.variables_.push_back(std::move(variable));
  }
  std::ranges::sort(map.servers_);
  map.servers_.erase(std::unique(map.servers_.begin(), map.servers_.end()), map.servers_.end());

  // In the order of variables and rows, as a server numbers its shards.
  std::vector<std::uint32_t> next(map.servers_.size());
  for (VariableRef& variable : map.variables_) {
    for (ShardRef& shard : variable.shards) {
      const auto found = std::ranges::lower_bound(map.servers_, shard.server);
      shard.server = static_cast<std::size_t>(found - map.servers_.begin());
      shard.wire = next[shard.server]++;
    }
  }
  return map;
}

std::size_t VariableMap::arena_bytes() const {
  std::size_t bytes = 0;
  for (const VariableRef& variable : variables_) {
    if (!variable.embedding) {
      bytes +=
          2 * net::Arena::Footprint(FloatBytes(variable, static_cast<std::size_t>(variable.rows)));
      continue;
    }
    bytes += 2 * net::Arena::Footprint(variable.capacity * sizeof(std::int64_t));
    bytes += 4 * net::Arena::Footprint(FloatBytes(variable, variable.capacity));
  }
  return bytes;
}

Status VariableMap::Allocate(net::Arena& arena) {
  for (VariableRef& variable : variables_) {
    if (variable.embedding) {
      MUSTER_TRY(AllocateRows(arena, variable, variable.pull));
      MUSTER_TRY(AllocateRows(arena, variable, variable.push));
      continue;
    }
    const std::size_t bytes = FloatBytes(variable, static_cast<std::size_t>(variable.rows));
    MUSTER_TRY_ASSIGN(const auto value, arena.AllocateWarm(bytes));
    MUSTER_TRY_ASSIGN(const auto gradient, arena.AllocateWarm(bytes));
    variable.value = As<float>(value);
    variable.gradient = As<float>(gradient);
  }
  return Ok();
}

Result<VariableRef*> VariableMap::Find(std::uint32_t id) {
  if (id >= variables_.size()) {
    return NotFound("variable {}: the job has {}", id, variables_.size());
  }
  return &variables_[id];
}

Result<VariableRef*> VariableMap::FindDense(std::uint32_t id) {
  MUSTER_TRY_ASSIGN(VariableRef * variable, Find(id));
  if (variable->embedding) {
    return InvalidArgument("variable {} is an embedding: its rows are pulled and pushed by id",
                           variable->name);
  }
  return variable;
}

Result<VariableRef*> VariableMap::FindEmbedding(std::uint32_t id) {
  MUSTER_TRY_ASSIGN(VariableRef * variable, Find(id));
  if (!variable->embedding) {
    return InvalidArgument("variable {} is no embedding: it is pulled and pushed whole",
                           variable->name);
  }
  return variable;
}

namespace {

// The shard that holds `id`, which is in range; `guess` is tried first.
std::size_t ShardOf(std::span<const ShardRef> shards, std::int64_t id, std::size_t guess) {
  const ShardRef& likely = shards[guess];
  if (id >= likely.row_offset && id < likely.row_offset + likely.rows) return guess;
  const auto after = std::ranges::upper_bound(shards, id, {}, &ShardRef::row_offset);
  auto at = static_cast<std::size_t>(after - shards.begin()) - 1;
  // An empty shard begins where its neighbour does.
  while (id >= shards[at].row_offset + shards[at].rows) --at;
  return at;
}

// Rewrites `split` and `local` for ids that do not come grouped by shard.
void GroupByShard(const std::vector<std::uint32_t>& shard_of, std::span<std::int64_t> local,
                  RowSplit& split) {
  std::vector<std::size_t> next;
  for (const RowSplit::Segment& segment : split.segments) next.push_back(segment.first);
  const std::vector<std::int64_t> as_given(local.begin(), local.end());
  split.order.resize(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    const std::size_t to = next[shard_of[i]]++;
    split.order[to] = static_cast<std::uint32_t>(i);
    local[to] = as_given[i];
  }
}

}  // namespace

// One pass where ids come shard by shard, as sorted ones do; others are moved after it.
Result<RowSplit> SplitRows(std::string_view name, std::int64_t rows,
                           std::span<const ShardRef> shards, std::span<const std::int64_t> ids,
                           std::span<std::int64_t> local) {
  RowSplit split;
  std::vector<std::uint32_t> shard_of(shards.size() > 1 ? ids.size() : 0);
  split.segments.resize(shards.size());
  std::size_t last = 0;
  bool grouped = true;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = ids[i];
    if (id < 0 || id >= rows) {
      return OutOfRange("variable {}: id {} at position {} is not in [0, {})", name, id, i, rows);
    }
    const std::size_t shard = shard_of.empty() ? 0 : ShardOf(shards, id, last);
    local[i] = id - shards[shard].row_offset;
    ++split.segments[shard].count;
    if (shard_of.empty()) continue;
    shard_of[i] = static_cast<std::uint32_t>(shard);
    grouped = grouped && shard >= last;
    last = shard;
  }
  std::size_t first = 0;
  for (std::size_t s = 0; s < split.segments.size(); ++s) {
    split.segments[s].shard = &shards[s];
    split.segments[s].first = first;
    first += split.segments[s].count;
  }
  if (!grouped) GroupByShard(shard_of, local, split);
  return split;
}

}  // namespace muster::ps
