// The arithmetic of writes: what a component holds after one, and what several replicas' writes
// come to.
//
// Threading: any thread; functions of their arguments alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/base/options.h"
#include "strategy/base/torch.h"

namespace muster::internal {

enum class WriteKind : std::uint8_t {
  kAssign,
  kAssignAdd,
  kAssignSub,
  kScatterAdd,
  kScatterSub,
  kScatterMul,
  kScatterDiv,
  kScatterMin,
  kScatterMax,
  kScatterUpdate,
};
std::string_view name_of(WriteKind kind);
inline bool is_scatter(WriteKind kind) { return kind >= WriteKind::kScatterAdd; }

// What a write brings, for one component: a dense value, or rows.
struct WriteArgument {
  bool number = false;
  torch::Tensor values;
  torch::Tensor indices = {};  // scatter
};

// What a write brings, for a value of this type and these sizes: in host memory and of its type,
// as many values as the value or the rows have, which are int64. INVALID_ARGUMENT names the
// variable.
WriteArgument Fitted(WriteKind kind, const std::string& name, torch::ScalarType type,
                     const std::vector<std::int64_t>& sizes, const WriteArgument& argument);
// The component's value after a write. INVALID_ARGUMENT names the variable.
torch::Tensor Written(WriteKind kind, const std::string& name, const torch::Tensor& old,
                      const WriteArgument& argument);
// The same in place, for rows.
void ScatterInto(WriteKind kind, const std::string& name, torch::Tensor into,
                 const WriteArgument& argument);
// One argument of what all replicas brought, for a variable that looks like `like`.
// INVALID_ARGUMENT: SUM of one number other than 0, or of one object, that all of them brought.
WriteArgument Aggregate(WriteKind kind, const std::string& name, VariableAggregation aggregation,
                        const std::vector<WriteArgument>& all, const torch::Tensor& like);

}  // namespace muster::internal
