// A program's variable, as its clients know it. Threading: immutable, shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/dtype.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/client/variables.h"

namespace muster::v1 {
class ProgramVariable;
}  // namespace muster::v1

namespace muster::ps {

struct VariableInfo {
  VariableId id;
  std::string name;
  DType dtype = DType::kFloat32;
  // Empty: a scalar, which has one row of one element.
  std::vector<std::int64_t> shape;
  std::int64_t rows = 1;
  std::size_t row_bytes = 0;
  // By row_offset; together they are all rows. ShardRef::server is the server's task index.
  std::vector<ShardRef> shards;

  std::size_t bytes() const { return static_cast<std::size_t>(rows) * row_bytes; }
};

using VariableHandle = std::shared_ptr<const VariableInfo>;

// Gives the bytes of one shard's rows of a variable that is made. It is asked for one shard after
// the other, each when the one before is on its server; they stay until it is asked again. An error
// is that of the whole variable.
using ShardValue = Result<std::span<const std::byte>>;
using ShardValues = absl::FunctionRef<ShardValue(const VariableInfo&, const ShardRef&)>;

// As its driver has described it; where shards are on their servers is not said.
//   kInvalidArgument: its dtype, shape or size is impossible.
Result<VariableInfo> Describe(const v1::ProgramVariable& variable);

// Memory with values for a write set.
struct Operands {
  std::span<const std::byte> bytes;
  // What the values are; unspecified: the variable's.
  DType dtype = DType::kUnspecified;
  // Keeps `bytes` as they are until the set is sent. Null: they are copied.
  std::shared_ptr<const void> owner{};
};

}  // namespace muster::ps
