// Where each variable of a plan lives: its shards by server, its memory in the client's arena.
//
// Threading: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/net/arena.h"

namespace muster::v1 {
class JobPlan;
}

namespace muster::ps {

struct ShardRef {
  // Index into VariableMap::servers().
  std::size_t server = 0;
  // The shard's index on its server.
  std::uint32_t wire = 0;
  std::int64_t row_offset = 0;
  std::int64_t rows = 0;
};

struct VariableRef {
  std::string name;
  bool embedding = false;
  std::int64_t rows = 0;
  std::int64_t row_elements = 0;
  // By row_offset; together they are all rows.
  std::vector<ShardRef> shards;

  // Dense: the whole variable.
  std::span<float> value;
  std::span<float> gradient;

  // Embedding: ids as they are sent (local to their shards) and rows, for pull and for push. The
  // sorted rows are used when ids do not come grouped by shard.
  struct RowMemory {
    std::span<std::int64_t> ids;
    std::span<float> rows;
    std::span<float> sorted;
  };
  RowMemory pull;
  RowMemory push;
  // Rows that each RowMemory holds.
  std::size_t capacity = 0;
};

class VariableMap {
 public:
  // kInvalidArgument: the plan is malformed (which variable, how).
  static Result<VariableMap> Create(const v1::JobPlan& plan);

  // Address space that all memory takes.
  std::size_t arena_bytes() const;
  // Gives every variable its memory. kResourceExhausted.
  Status Allocate(net::Arena& arena);

  // Indexes of the servers that hold a shard, ascending.
  std::span<const std::uint32_t> servers() const { return servers_; }
  // kNotFound: no such variable.
  Result<VariableRef*> Find(std::uint32_t id);
  // kInvalidArgument: an embedding.
  Result<VariableRef*> FindDense(std::uint32_t id);
  // kInvalidArgument: not an embedding.
  Result<VariableRef*> FindEmbedding(std::uint32_t id);

 private:
  std::vector<std::uint32_t> servers_;
  std::vector<VariableRef> variables_;
};

// Ids of one embedding, divided among its shards.
struct RowSplit {
  struct Segment {
    const ShardRef* shard = nullptr;
    std::size_t first = 0;
    std::size_t count = 0;
  };
  // One for each shard, also where it has no ids.
  std::vector<Segment> segments;
  // Empty: ids came grouped by shard. Else: position in the segments -> position in the input.
  std::vector<std::uint32_t> order;
};

// Writes the ids, local to their shards, to `local` (as long as `ids`), grouped by shard. `shards`
// are those of variable `name`, by row_offset; together they are all `rows`.
//   kOutOfRange: an id is not in [0, rows).
Result<RowSplit> SplitRows(std::string_view name, std::int64_t rows,
                           std::span<const ShardRef> shards, std::span<const std::int64_t> ids,
                           std::span<std::int64_t> local);
inline Result<RowSplit> SplitRows(const VariableRef& variable, std::span<const std::int64_t> ids,
                                  std::span<std::int64_t> local) {
  return SplitRows(variable.name, variable.rows, variable.shards, ids, local);
}

}  // namespace muster::ps
