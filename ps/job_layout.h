// One server's part of a job's plan, checked. Threading: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ps/shard.h"

namespace muster::v1 {
class JobPlan;
}

namespace muster::ps {

struct ShardLayout {
  ShardInfo info;
  std::string name;
  std::vector<std::int64_t> shape;  // the whole variable's
  // First element of the shard within the variable, and how many it has.
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;

  // The name of `tensor` in the checkpoint's file: "w", or "w@12" for a part of one.
  std::string KeyOf(const std::string& tensor) const;
  std::vector<std::int64_t> ShardShape() const;
  // Whether there are so many floats for local rows `ids`. kInvalidArgument: there are not.
  // kOutOfRange: a row is not the shard's.
  Status CheckIds(std::span<const std::int64_t> ids, std::size_t floats) const;
};

// The shards on server `ps_index`, in the order of (variable, row_offset).
// kInvalidArgument says what is wrong with the plan.
Result<std::vector<ShardLayout>> LayOut(const v1::JobPlan& plan, std::uint32_t ps_index);

}  // namespace muster::ps
